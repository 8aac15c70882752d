"""Home Assistant's integration of Wyoming, in the environment that `make contract` makes for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from live_server import free_port, live_server

from nightingale import TTS

pytestmark = pytest.mark.contract

PYTHON = Path(sys.prefix) / "home-assistant" / "bin" / "python"
PROGRAM = Path(__file__).with_name("home_assistant_program.py")


@pytest.mark.skipif(not PYTHON.exists(), reason="`make contract` installs Home Assistant")
def test_home_assistant_finds_the_voices_and_speaks(brief: TTS) -> None:
    port = free_port()
    with live_server(brief, wyoming=f"tcp://127.0.0.1:{port}"):
        command = [str(PYTHON), "-W", "ignore", str(PROGRAM), str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("seconds") > 0.1
    assert found == {
        "name": "nightingale",
        "platforms": ["tts"],
        "language": "en",
        "voices": ["noise"],
        "kind": "wav",
        "kind of an unknown voice": None,
    }
