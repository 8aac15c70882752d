"""The programs of README.md, docs/integrations.md and docs/http-api.md, each in its own process."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_server import LiveServer, free_port, live_server

from nightingale import TTS

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    f"{page.name}, {section.splitlines()[0]} {number}": program
    for page in (ROOT / "README.md", ROOT / "docs" / "integrations.md", ROOT / "docs" / "http-api.md")
    for section in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    for number, program in enumerate(re.findall(r"```py\n(.*?)```", section, flags=re.DOTALL), start=1)
}


def test_the_pages_show_the_clients() -> None:
    assert any("from openai import" in text for name, text in PROGRAMS.items() if name.startswith("README"))
    for client in ("httpx.post", "livekit.plugins", "pipecat.", "elevenlabs"):
        assert any(client in program for program in PROGRAMS.values()), client


@pytest.fixture(scope="module")
def both(brief: TTS) -> Iterator[tuple[LiveServer, int]]:
    wyoming = free_port()
    with live_server(brief, wyoming=f"tcp://127.0.0.1:{wyoming}") as server:
        yield server, wyoming


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_of_a_page_runs_unchanged(name: str, both: tuple[LiveServer, int], tmp_path: Path) -> None:
    server, wyoming = both
    program = PROGRAMS[name].replace("8880", str(server.port)).replace("10200", str(wyoming))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    files = list(tmp_path.iterdir())
    assert files or re.search(r"[1-9]\d*\.\d s of speech|0\.[1-9] s of speech", done.stdout), done.stdout
    assert all(file.stat().st_size > 1000 for file in files)
