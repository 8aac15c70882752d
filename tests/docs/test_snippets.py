"""Run the Python snippets and `say` and `convert` commands of the documents; the model "noise" replaces downloads."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sample_books import write_epub
from typer.testing import CliRunner

from nightingale import TTS, VoiceConverter, compat, save
from nightingale.audio import watermark
from nightingale.cli.commands import app
from nightingale.engine import load
from nightingale.hub.find import resolve
from nightingale.types import AudioChunk

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ELSEWHERE = {
    "websocket.md": "tests/server/test_websocket_docs.py",
    "kernels.md": "fragments of a function, which compile",
}
"""Pages whose Python is not run by itself, and where it is checked. The programs of clients are marked `py`:
tests/contract/test_integrations.py runs them."""


def blocks(language: str) -> list[tuple[str, str]]:
    """Return (page, text) of every fenced block of a language."""
    return [
        (page.name, text)
        for page in PAGES
        for text in re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)
    ]


FINE_TUNES = [text for _, text in blocks("python") if "my-model" in text]
"""Snippets that load a fine-tuned model: test_fine_tune_snippets_name_files_and_options_that_resolve runs them."""
PYTHON = [(page, text) for page, text in blocks("python") if page not in ELSEWHERE and text not in FINE_TUNES]
SAY_COMMANDS = [
    (page, line)
    for page, text in blocks("sh")
    for line in text.splitlines()
    if line.startswith(("nightingale say", "nightingale convert"))
]

BOOK_COMMANDS = [
    line
    for _, text in blocks("sh")
    for line in text.splitlines()
    if line.startswith("nightingale book") and "--cluster" not in line  # tests/cluster/test_book.py runs it
]


class UnmarkedAudio:
    """Stands for the marker of resemble-perth, which is an optional package."""

    def apply_watermark(self, wav: np.ndarray, sample_rate: int) -> np.ndarray:
        return wav


@pytest.fixture(autouse=True)
def _work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brief: TTS) -> None:
    monkeypatch.setattr(watermark, "open_marker", UnmarkedAudio)
    monkeypatch.setattr(load, "load_noise", lambda: brief._model)
    monkeypatch.setattr(compat, "TTS", lambda _, **__: TTS("noise"))
    monkeypatch.setattr(VoiceConverter, "load", lambda _, **__: TTS("noise").converter)
    monkeypatch.setitem(sys.modules, "torchaudio", SimpleNamespace(save=lambda path, wav, rate: record(path)))
    monkeypatch.chdir(tmp_path)


def record(path: str) -> None:
    t = np.arange(48_000) / 24_000
    samples = (0.3 * np.sin(2 * np.pi * 200 * t * (1 + t))).astype(np.float32)
    save(path, AudioChunk(samples=samples, sample_rate_hz=24_000))


def test_the_readme_has_snippets_and_commands() -> None:
    assert "README.md" in {page for page, _ in PYTHON}
    assert "README.md" in {page for page, _ in SAY_COMMANDS}


@pytest.mark.parametrize(("page", "text"), PYTHON, ids=[page for page, _ in PYTHON])
def test_a_python_snippet_runs(page: str, text: str) -> None:
    for clip in re.findall(r'"(\w+\.wav)"', text):
        if not Path(clip).exists() and f'save("{clip}"' not in text:
            record(clip)
    text = re.sub(r'TTS\("\w+"', 'TTS("noise"', text).replace('device="cuda"', 'device="cpu"')
    exec(compile(text, page, "exec"), {"__name__": "snippet"})
    for written in re.findall(r'save\("([^"]+)"', text):
        assert Path(written).stat().st_size > 1000


def test_fine_tune_snippets_name_files_and_options_that_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("my-model")
    folder.mkdir()
    for name in ("t3_finnish.safetensors", "grapheme_mtl_merged_expanded_v1.json"):
        (folder / name).touch()
    opened: list[dict[str, Any]] = []

    def open_tts(model: str, **options: Any) -> None:
        assert resolve(model, **options).card.name == "multilingual"
        opened.append(options)

    monkeypatch.setattr("nightingale.TTS", open_tts)
    for text in FINE_TUNES:
        exec(compile(text, "compat.md", "exec"), {"__name__": "snippet"})
    assert [*map(sorted, opened)] == [[], ["t3"], ["kind", "t3"]]


@pytest.mark.parametrize(("page", "line"), SAY_COMMANDS, ids=[page for page, _ in SAY_COMMANDS])
def test_a_say_command_runs(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    if "-m" in words:
        words[words.index("-m") + 1] = "noise"
    else:
        place = words.index("--") if "--" in words else len(words)
        words[place:place] = ["-m", "noise"]
    Path("chapter.txt").write_text("A chapter.")
    Path("lines.csv").write_text("id,text\none,One.\n")
    record("me.wav")
    record("anna.wav")
    # Voices of wren, and one that `voices add` stored.
    words = ["default" if word in ("emma", "george", "anna") else word for word in words]
    result = CliRunner().invoke(app, words, input="A line.")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("line", BOOK_COMMANDS)
def test_a_book_command_runs(line: str) -> None:
    write_epub(Path("tale.epub"), {"The Storm": "<h1>One</h1><p>“Rain,” she said.</p>"})
    Path("notes.md").write_text("# Notes\n\nA note.")
    words = shlex.split(line, comments=True)[1:]
    # The model "noise" knows its own voice by all of OpenAI's names.
    words = ["nova" if word in ("emma", "george") else word for word in words]
    result = CliRunner().invoke(app, [*words, "-m", "noise"])
    assert result.exit_code == 0, result.output
    assert "--list" in words or list(Path().glob("*.m4b")) or list(Path("tale").glob("*.mp3"))
