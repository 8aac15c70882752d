"""Use wren as a new user does, on any system: `make smoke`. Exit with an error if anything does not work.

It speaks with Python and on the command line, adds a voice and uses it, prints help in an old code page, and asks a
server for speech. CI runs it on macOS and Windows, where the tests do not run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
import wave
from pathlib import Path

LIMIT_S = 300
TEXT = "Good morning."


def run(*arguments: str, **variables: str) -> str:
    """Run `nightingale` with these arguments and return what it printed."""
    command = [sys.executable, "-m", "nightingale", *arguments]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
    return done.stdout.decode(variables.get("PYTHONIOENCODING", "utf-8"))


def seconds_of(path: Path) -> float:
    """Return the length of a recording that is not silent."""
    with wave.open(str(path)) as audio:
        assert any(audio.readframes(audio.getnframes())), f"{path} is silent"
        return audio.getnframes() / audio.getframerate()


def speak_in_python(folder: Path) -> None:
    from nightingale import TTS, save

    with TTS() as tts:
        save(folder / "python.wav", tts.say(TEXT, seed=1))
        streamed = sum(chunk.seconds for chunk in tts.stream(TEXT, seed=1))
    assert abs(streamed - seconds_of(folder / "python.wav")) < 0.01


def speak_on_the_command_line(folder: Path) -> None:
    out = folder / "said.wav"
    summary = json.loads(run("say", "Grüße – 5 €.", "--json", "-o", str(out), PYTHONIOENCODING="cp1252"))
    assert abs(summary["audio_seconds"] - seconds_of(out)) < 0.01, summary
    long = folder / "clip.wav"
    run(
        "say",
        "This recording is long enough to be the clip of a voice. It has two sentences.",
        "-o",
        str(long),
    )
    for replace in ((), ("--replace",)):
        run("voices", "add", "mine", str(long), *replace)
    run("say", TEXT, "-v", "mine", "-o", str(out))
    assert seconds_of(out) > 0.5
    assert "mine" in run("voices", "list")
    assert "say" in run("--help", PYTHONIOENCODING="cp1252")


def ask_a_server() -> None:
    command = [sys.executable, "-m", "nightingale", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8", errors="replace") as server:
        try:
            assert server.stderr is not None
            printed = iter(server.stderr.readline, "")
            address = next(found[0] for line in printed if (found := re.search(r"http://[\d.:]+", line)))
            asked = {"model": "wren", "voice": "emma", "input": TEXT, "response_format": "wav"}
            body, headers = json.dumps(asked).encode(), {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{address}/v1/audio/speech", body, headers)
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                assert len(answer.read()) > 24_000, "less than half a second of speech"
        finally:
            server.kill()


def main() -> None:
    """Try everything in a temporary folder, and print what was tried."""
    # A server that was killed may hold its files for a moment on Windows.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        os.environ["NIGHTINGALE_HOME"] = name
        speak_in_python(Path(name))
        speak_on_the_command_line(Path(name))
        ask_a_server()
    print(f"wren speaks and serves on {sys.platform}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
