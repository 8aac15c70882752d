"""A command that is terminated or interrupted removes its partial output."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TEXT = "This is one of very many sentences that are only here to make the text long. " * 2000


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["terminated", "interrupted"])
def test_partial_file_is_removed(number: signal.Signals, tmp_path: Path) -> None:
    command = [
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
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write(TEXT.encode())
        process.stdin.close()
        deadline = time.monotonic() + 60
        while not list(tmp_path.iterdir()):
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        assert process.stderr
        assert b"Traceback" not in process.stderr.read()
    assert not list(tmp_path.iterdir())
