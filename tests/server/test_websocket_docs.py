"""The example program of docs/websocket.md runs unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_server import LiveServer, live_server

from nightingale import TTS

PAGE = (Path(__file__).parents[2] / "docs" / "websocket.md").read_text()


@pytest.fixture
def server(brief: TTS) -> Iterator[LiveServer]:
    with live_server(brief) as running:
        yield running


def test_example_program_runs(
    server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(program.replace("8880", str(server.port)), "websocket.md", "exec"), {"__name__": "__main__"})
    assert (tmp_path / "answer.pcm").stat().st_size > 1000
    assert "ms to the first audio" in capsys.readouterr().out
