"""A command that is killed politely tidies up."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BOOK = "This is one of very many sentences that nobody will ever hear. " * 2000


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["terminated", "interrupted"])
def test_no_part_of_a_recording_stays_behind(number: signal.Signals, tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "nightingale",
        "say",
        "-",
        "-m",
        "noise",
        "-q",
        "-o",
        str(tmp_path / "a.wav"),
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as saying:
        assert saying.stdin
        saying.stdin.write(BOOK.encode())
        saying.stdin.close()
        deadline = time.monotonic() + 60
        while not list(tmp_path.iterdir()):
            assert saying.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        saying.send_signal(number)
        assert saying.wait(30) == 128 + number
        assert saying.stderr
        assert b"Traceback" not in saying.stderr.read()
    assert not list(tmp_path.iterdir())
