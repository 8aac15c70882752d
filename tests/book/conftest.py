"""Each test of books has a folder of its own, with a small book in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from book_runs import DOCUMENTS
from sample_books import png, write_epub

from nightingale import TTS
from nightingale.engine import load


@pytest.fixture(autouse=True)
def _work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brief: TTS) -> None:
    monkeypatch.setattr(load, "load_noise", lambda: brief._model)
    monkeypatch.chdir(tmp_path)
    write_epub(Path("sea.epub"), DOCUMENTS, cover=png())
