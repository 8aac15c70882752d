"""Playing of audio: by sounddevice, by a program of the system, and on machines that have neither."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nightingale import Audio, Metrics, OutputError
from nightingale.audio import playback
from nightingale.audio.playback import PLAYERS, Player, can_play
from nightingale.install import install_command

RATE = 24_000
SAMPLES = np.linspace(-1, 1, 5000, dtype=np.float32)


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Hide sounddevice and all programs; return the folder that is searched for programs."""
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def install(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
    path.chmod(0o755)


def feed(player: Player, samples: np.ndarray = SAMPLES, *, times: int = 1) -> None:
    with player:
        for _ in range(times):
            player.feed(samples)


def audio() -> Audio:
    metrics = Metrics(ttfa_ms=1, total_ms=1, audio_seconds=1, tokens=1)
    return Audio(samples=SAMPLES, sample_rate_hz=RATE, seed=1, metrics=metrics)


@pytest.mark.parametrize("name", PLAYERS)
def test_a_program_is_given_the_samples_and_their_rate(name: str, no_device: Path, tmp_path: Path) -> None:
    played = tmp_path / "played"
    script = (
        f"open({str(played)!r}, 'wb').write(repr(sys.argv[1:]).encode() + b'|' + sys.stdin.buffer.read())"
    )
    install(no_device, name, script)
    audio().play()
    arguments, _, data = played.read_bytes().partition(b"|")
    assert str(RATE).encode() in arguments
    assert b"{" not in arguments
    assert data == audio().pcm16


def test_the_error_of_a_program_is_told(no_device: Path) -> None:
    install(
        no_device, "aplay", "sys.stdin.buffer.read(); print('no such card', file=sys.stderr); sys.exit(1)"
    )
    with pytest.raises(OutputError, match="aplay: no such card"):
        audio().play()


def test_a_program_that_dies_is_told(no_device: Path) -> None:
    install(no_device, "aplay", "print('busy', file=sys.stderr); sys.exit(1)")
    with pytest.raises(OutputError, match="aplay: busy"):
        feed(Player(RATE), times=1000)


def test_an_error_in_the_block_stops_the_program(no_device: Path) -> None:
    install(no_device, "aplay", "import time; time.sleep(600)")
    with pytest.raises(OutputError, match="not a recording"):
        feed(Player(RATE), SAMPLES * np.nan)


def test_a_machine_without_a_player_says_what_to_install(no_device: Path) -> None:
    assert not can_play()
    with pytest.raises(OutputError, match=re.escape(install_command("play"))):
        audio().play()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems are expected to have one")
def test_a_player_without_a_device_cannot_play(
    no_device: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(no_device, "paplay", "")
    monkeypatch.delenv("PULSE_SERVER", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(playback, "SOUND_CARDS", tmp_path / "snd")
    assert not can_play()
    monkeypatch.setenv("PULSE_SERVER", "unix:/somewhere")
    assert can_play()


class FakeDevice(SimpleNamespace):
    """The part of sounddevice that is used."""

    PortAudioError = OSError

    def __init__(self, *, works: bool = True) -> None:
        super().__init__(played=[], ended=[], works=works)

    def query_devices(self, kind: str) -> dict[str, str]:
        return {"name": f"a loudspeaker for {kind}"}

    def OutputStream(self, **options: Any) -> Any:
        if not self.works:
            raise OSError("device unavailable")
        assert options == {"samplerate": RATE, "channels": 1, "dtype": "float32"}
        names = ("start", "stop", "abort", "close")
        actions = {name: lambda name=name: self.ended.append(name) for name in names}
        return SimpleNamespace(write=self.played.append, **actions)


def test_sounddevice_plays_if_it_is_installed(no_device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDevice()
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    assert can_play()
    audio().play()
    assert np.array_equal(np.concatenate(fake.played)[:, 0], SAMPLES)
    assert fake.ended == ["start", "stop", "close"]
    monkeypatch.setitem(sys.modules, "sounddevice", FakeDevice(works=False))
    with pytest.raises(OutputError, match="device unavailable"):
        audio().play()
