"""A book that workers of a cluster speak has the bytes of one that a single process speaks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sample_books import long_text, write_epub


def make(book: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nightingale", "book", str(book), "-o", str(out), "-m", "noise", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=os.environ)


@pytest.mark.ray
def test_two_workers_speak_a_book_as_one_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    (tmp_path / "token").write_text("0" * 64)
    book = write_epub(tmp_path / "book.epub", {"One": long_text(1500), "Two": long_text(1500)})
    alone, spread = tmp_path / "alone.m4b", tmp_path / "spread.m4b"
    assert make(book, alone).returncode == 0
    result = make(book, spread, "--cluster", "2")
    assert result.returncode == 0, result.stderr
    assert spread.read_bytes() == alone.read_bytes()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # nobody is there, and nobody is needed
    assert make(book, spread, "--cluster", "2").returncode == 0


def test_a_book_needs_a_worker(tmp_path: Path) -> None:
    book = write_epub(tmp_path / "book.epub", {"One": long_text(200)})
    result = make(book, tmp_path / "out.m4b", "--cluster", "0")
    assert result.returncode != 0
    assert "too few workers" in result.stderr
