"""All that wren can do, in processes that must not import PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
from synthetic_clip import voice_like

from nightingale.install import install_command

BLOCK_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "triton", "safetensors.torch"):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, NoTorch())
sys.modules["torch"] = None  # for importlib.util.find_spec
"""
SPEAK = """
import sys
sys.argv = ["nightingale", "say", "Good morning.", "-q", "-o", "said.wav", "--profile", sys.argv[1]]
from nightingale.install import install_command
from nightingale.cli.main import main
main()
assert "typer" not in sys.modules
"""
CLONE = """
from nightingale import TTS
tts = TTS("wren", profile=sys.argv[-1])
voice = tts.voice("clip.wav")
assert sum(chunk.seconds for chunk in tts.stream("Good morning.", voice=voice, seed=1)) > 0.5
assert abs(tts.convert("clip.wav", voice="emma", seed=1).seconds - 3.0) < 0.1
live = tts.converter.stream([tts.convert("clip.wav", seed=1).samples], 24_000, voice=voice, seed=1)
assert abs(sum(chunk.seconds for chunk in live) - 3.0) < 0.1
if sys.argv[-1] == "exact":
    alone, *together = [tts.say("One.", seed=1), *tts.say_many(["One.", "One."], seed=1)]
    assert all((audio.samples == alone.samples).all() for audio in together)
"""
SERVE = """
from starlette.testclient import TestClient
from nightingale.server.app import create_app
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.settings import ServerSettings
settings = ServerSettings()
with TestClient(create_app(settings, SpeechService(settings, tts)), base_url="http://localhost") as client:
    asked = {"model": "wren", "voice": "emma", "input": "Good morning.", "response_format": "wav"}
    answer = client.post("/v1/audio/speech", json=asked)
    assert answer.status_code == 200 and len(answer.content) > 24_000, answer.text
"""
NOT_IMPORTED = """
loaded = [name for name, module in sys.modules.items() if name.split(".")[0] == "torch" and module]
assert not loaded, loaded
"""

THOROUGH_PROFILES = [pytest.param(name, marks=pytest.mark.thorough) for name in ("exact", "fast")]


def run(script: str, profile: str, folder: Path) -> str:
    """Run a script and return what it wrote to stderr."""
    soundfile.write(folder / "clip.wav", voice_like(3.0, 24_000), 24_000)
    env = {**os.environ, "NIGHTINGALE_HOME": str(folder)}
    command = [sys.executable, "-c", script + NOT_IMPORTED, profile]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("profile", ["balanced", *THOROUGH_PROFILES])
def test_wren_speaks_streams_clones_converts_and_serves_without_torch(profile: str, tmp_path: Path) -> None:
    told = run(BLOCK_TORCH + SPEAK + CLONE + SERVE, profile, tmp_path)
    assert soundfile.info(tmp_path / "said.wav").duration > 0.5
    # `exact` promises upstream's way of rendering, so it says once for each engine that another backend renders.
    assert told.count("onnx float32 is used, not torch float32") == (2 if profile == "exact" else 0)


@pytest.mark.parametrize("profile", ["balanced", THOROUGH_PROFILES[1]])
def test_installed_torch_is_not_imported_for_wren(profile: str, tmp_path: Path) -> None:
    run(SPEAK + CLONE, profile, tmp_path)


def test_official_models_without_torch_say_what_to_install(tmp_path: Path) -> None:
    script = """
from nightingale import TTS, ConfigError
try:
    TTS("turbo", offline=True)
except ConfigError as error:
    print(error.fix, file=sys.stderr)
"""
    told = run(BLOCK_TORCH + script, "", tmp_path)
    assert install_command("torch") in told
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in told


@pytest.mark.parametrize("home", ["a folder that is read-only", "a file"])
def test_say_needs_no_writable_home(home: str, tmp_path: Path) -> None:
    folder = tmp_path / "home"
    if home == "a file":
        folder.touch()  # not even root can make folders in it
    else:
        folder.mkdir(mode=0o555)
    soundfile.write(tmp_path / "clip.wav", voice_like(3.0, 24_000), 24_000)
    hidden = ("NIGHTINGALE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")
    env = {name: value for name, value in os.environ.items() if name not in hidden} | {"HOME": str(folder)}
    command = [sys.executable, "-m", "nightingale", "say", "Hi.", "-q", "-o", "hi.wav", "-v", "clip.wav"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert soundfile.info(tmp_path / "hi.wav").duration > 0.3


def test_two_processes_clone_the_same_clip_at_once(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "clip.wav", voice_like(3.0, 24_000), 24_000)
    env = {**os.environ, "NIGHTINGALE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "nightingale", "say", "Hi.", "-q", "--seed", "1", "-v", "clip.wav", "-o"]
    both = [subprocess.Popen([*command, f"{name}.wav"], cwd=tmp_path, env=env) for name in "ab"]
    assert [one.wait() for one in both] == [0, 0]
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()
    (stored,) = (tmp_path / "cache" / "voices").iterdir()
    stored.write_bytes(stored.read_bytes()[:100])  # a damaged entry is made again
    subprocess.run([*command, "c.wav"], cwd=tmp_path, env=env, check=True)
    assert (tmp_path / "c.wav").read_bytes() == (tmp_path / "a.wav").read_bytes()
    assert stored.stat().st_size > 100
