"""The programs of docs/integrations.md, each in a process of its own, against a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from live_server import LiveServer, free_port, live_server

from nightingale import TTS

pytestmark = pytest.mark.contract

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
PROGRAMS = {
    heading: program
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    for number, program in enumerate(re.findall(r"```py\n(.*?)```", section, flags=re.DOTALL))
    for heading in [f"{section.splitlines()[0]} {number + 1}"]
}


@pytest.fixture(scope="module")
def both(brief: TTS) -> tuple[LiveServer, int]:
    wyoming = free_port()
    with live_server(brief, wyoming=f"tcp://127.0.0.1:{wyoming}") as server:
        yield server, wyoming


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_page_runs_as_it_stands(
    name: str, both: tuple[LiveServer, int], tmp_path: Path
) -> None:
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
