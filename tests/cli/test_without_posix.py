"""Wren speaks, clones and serves without the parts of Python that Windows lacks, and prints in its code pages.

The processes of these tests run on this system with those parts removed, so they show that our code does not use
them; other packages are imported before, since they have builds of their own for Windows. How Windows itself
behaves is tested by .github/workflows/ci.yml.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import soundfile
from synthetic_clip import voice_like

LIMIT_S = 120

REMOVE_POSIX = '''
import asyncio, builtins, ctypes, io, os, signal, socket, sys
import av, fastapi, numpy, onnxruntime, platformdirs, safetensors.numpy, soundfile, soxr, typer, uvicorn

ABSENT = {"crypt", "fcntl", "grp", "nis", "pty", "pwd", "resource", "spwd", "syslog", "termios", "tty"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ABSENT:
            raise ModuleNotFoundError(f"{name} is not on Windows", name=name)

sys.meta_path.insert(0, Absent())
for name in ABSENT & sys.modules.keys():
    del sys.modules[name]
for name in """chown chroot fchmod fchown fork forkpty getegid geteuid getgid getgroups getloadavg getpgid getpgrp
        getpriority getuid initgroups killpg lchown mkfifo mknod nice openpty pipe2 posix_fadvise posix_fallocate
        posix_spawn pread pwrite readv register_at_fork sched_getaffinity sched_setaffinity sched_yield sendfile
        setegid setsid setuid statvfs sync sysconf uname wait3 writev O_CLOEXEC O_DIRECTORY O_NOFOLLOW
        O_NONBLOCK O_SYNC""".split():
    if hasattr(os, name):
        delattr(os, name)
for name in "SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGQUIT SIGUSR1 SIGUSR2 alarm pthread_kill setitimer".split():
    delattr(signal, name)
family = socket.AF_UNIX
make_pair = socket.socketpair
socket.socketpair = lambda: make_pair(family)  # asyncio's own
for name in "AF_UNIX SO_REUSEPORT TCP_USER_TIMEOUT".split():
    delattr(socket, name)

def not_here(*_, **__):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = not_here

def without_system_files(open_file):
    def opened(file, *args, **kwargs):
        if str(file).startswith(("/proc", "/sys", "/dev/")):
            raise FileNotFoundError(2, "not on Windows", str(file))
        return open_file(file, *args, **kwargs)
    return opened

builtins.open = io.open = without_system_files(io.open)
library = ctypes.CDLL.__init__

def load(self, name, *args, **kwargs):
    if name is None:
        raise TypeError("Windows needs the name of a library")
    library(self, name, *args, **kwargs)

ctypes.CDLL.__init__ = load
'''
COMMAND = """
from nightingale.cli.main import main
main()
"""
EVERY_COMMAND = """
import sys
from nightingale.cli.main import main

for command in ("--help", "say --help", "serve --help", "voices list", "docs text"):
    sys.argv = ["nightingale", *command.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
"""
PYTHON = """
from nightingale import TTS, save
from nightingale.server.service.model_loading import release_memory, resident_bytes

tts = TTS()
save("python.wav", tts.say("Good morning.", seed=1))
assert sum(chunk.seconds for chunk in tts.stream("Good morning.", voice=tts.voice("clip.wav"), seed=1)) > 0.5
tts.close()
release_memory()
assert resident_bytes() == 0
"""


def start(script: str, *arguments: str, folder: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Start a script in a folder of its own."""
    variables = {**os.environ, "NIGHTINGALE_HOME": str(folder), **environment}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def run(script: str, *arguments: str, folder: Path, **environment: str) -> bytes:
    """Run a script to its end and return what it printed."""
    process = start(script, *arguments, folder=folder, **environment)
    out, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, error.decode(errors="replace")
    return out


def test_python_and_the_command_line_speak_and_clone_without_posix(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "clip.wav", voice_like(3.0, 24_000), 24_000)
    run(REMOVE_POSIX + PYTHON, folder=tmp_path)
    said = ("say", "Good morning.", "-q", "-o", "said.wav")
    run(REMOVE_POSIX + COMMAND, *said, folder=tmp_path)
    run(REMOVE_POSIX + COMMAND, "voices", "add", "mine", "clip.wav", folder=tmp_path)
    assert soundfile.info(tmp_path / "python.wav").duration > 0.5
    assert soundfile.info(tmp_path / "said.wav").duration > 0.5
    assert (tmp_path / "voices" / "mine.safetensors").is_file()


def test_the_server_answers_without_posix(tmp_path: Path) -> None:
    server = start(REMOVE_POSIX + COMMAND, "serve", "--port", "0", folder=tmp_path)
    try:
        assert server.stderr is not None
        lines = iter(server.stderr.readline, b"")
        address = next(found[0].decode() for line in lines if (found := re.search(rb"http://[\d.:]+", line)))
        asked = {"model": "wren", "voice": "emma", "input": "Good morning.", "response_format": "wav"}
        request = urllib.request.Request(
            f"{address}/v1/audio/speech", json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            assert len(answer.read()) > 24_000
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize("code_page", ["cp1252", "cp437"])
def test_a_code_page_without_our_characters_stops_no_command(code_page: str, tmp_path: Path) -> None:
    printed = run(EVERY_COMMAND, folder=tmp_path, PYTHONIOENCODING=code_page, PYTHONUTF8="0")
    assert r"\u" in printed.decode(code_page)  # a character that the code page lacks


@pytest.mark.thorough
def test_json_is_the_same_in_every_code_page(tmp_path: Path) -> None:
    command = ("say", "Grüße, 你好 – €5.", "-q", "--json", "--seed", "1", "-o", "said.wav")
    printed = [
        json.loads(run(COMMAND, *command, folder=tmp_path, PYTHONIOENCODING=code_page, PYTHONUTF8="0"))
        for code_page in ("cp1252", "utf-8")
    ]
    assert printed[0]["sha256"] == printed[1]["sha256"]
    assert printed[0]["warnings"] == printed[1]["warnings"]


@pytest.mark.thorough
def test_line_ends_and_marks_of_windows_do_not_change_speech(tmp_path: Path) -> None:
    options = ("-q", "--json", "--seed", "1", "-o", "said.wav")
    (tmp_path / "unix.txt").write_bytes(b"Good morning.\n\nHow are you?\n")
    (tmp_path / "windows.txt").write_bytes("\ufeffGood morning.\r\n\r\nHow are you?\r\n".encode())
    printed = [
        json.loads(run(COMMAND, "say", "-f", name, *options, folder=tmp_path))
        for name in ("unix.txt", "windows.txt")
    ]
    assert printed[0]["sha256"] == printed[1]["sha256"]
