"""Playing of audio while it arrives: by the package sounddevice (extra `play`), or by a player of the system.

A player that reads samples from its standard input is on most machines with a loudspeaker, so that the base
install needs no library for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Protocol, Self

from nightingale.audio.samples import Samples, check_samples, pcm16
from nightingale.errors import OutputError
from nightingale.install import install_command

PLAYERS: Final = {
    "pw-cat": ("--playback", "--raw", "--format=s16", "--rate={rate}", "--channels=1", "-"),
    "paplay": ("--raw", "--format=s16le", "--rate={rate}", "--channels=1"),
    "aplay": ("-q", "-t", "raw", "-f", "S16_LE", "-r", "{rate}", "-c", "1"),
    "play": ("-q", "-t", "raw", "-e", "signed", "-b", "16", "-r", "{rate}", "-c", "1", "-"),
    "ffplay": ("-nodisp", "-autoexit", "-loglevel", "error", "-f", "s16le", "-ar", "{rate}", "-i", "-"),
}
"""Program -> arguments with which it plays 16-bit mono samples from its standard input, best first."""

SOUND_CARDS: Final = Path("/dev/snd")
"""The folder in which Linux has the devices of sound cards."""


class _Output(Protocol):
    def write(self, samples: Samples) -> None: ...

    def close(self, *, drop: bool) -> None: ...


class Player:
    """Plays samples in the order in which they are fed. Use it in a `with` block, which waits for the end.

    Raises:
        OutputError: This machine has no way to play audio, or playing failed.
    """

    def __init__(self, sample_rate_hz: int) -> None:
        self._output: _Output = _open_device(sample_rate_hz) or _open_program(sample_rate_hz)

    def feed(self, samples: Samples) -> None:
        """Play samples after those before; wait while the player's buffer is full."""
        check_samples(samples)
        self._output.write(samples)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._output.close(drop=kind is not None)


def can_play() -> bool:
    """Return whether this machine seems to have an audio output and a way to reach it."""
    return _has_sounddevice() or (_find_program() is not None and _has_output())


class _Device:
    """The default output of PortAudio."""

    def __init__(self, sounddevice: Any, sample_rate_hz: int) -> None:
        try:
            self._stream = sounddevice.OutputStream(samplerate=sample_rate_hz, channels=1, dtype="float32")
            self._stream.start()
        except sounddevice.PortAudioError as error:
            raise _cannot_play(str(error)) from error

    def write(self, samples: Samples) -> None:
        self._stream.write(samples.reshape(-1, 1))

    def close(self, *, drop: bool) -> None:
        self._stream.abort() if drop else self._stream.stop()
        self._stream.close()


class _Program:
    """A player that reads its standard input."""

    def __init__(self, command: list[str]) -> None:
        self._name = Path(command[0]).name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def write(self, samples: Samples) -> None:
        try:
            self._stdin.write(pcm16(samples))
            self._stdin.flush()
        except OSError as error:
            raise self._failed() from error

    def close(self, *, drop: bool) -> None:
        if drop:
            self._process.kill()
        try:
            _, said = self._process.communicate()
        except BaseException:
            self._process.kill()
            raise
        if self._process.returncode and not drop:
            raise self._failed(said)

    def _failed(self, said: bytes | None = None) -> OutputError:
        if said is None:
            self._process.kill()
            said = self._process.stderr.read() if self._process.stderr else b""
        lines = said.decode(errors="replace").strip().splitlines()
        return _cannot_play(f"{self._name}: {lines[-1] if lines else f'exit code {self._process.wait()}'}")


def _open_device(sample_rate_hz: int) -> _Device | None:
    sounddevice = _sounddevice()
    return _Device(sounddevice, sample_rate_hz) if sounddevice and _has_sounddevice() else None


def _open_program(sample_rate_hz: int) -> _Program:
    program = _find_program()
    if program is None:
        raise _cannot_play("no sounddevice, and none of the programs " + ", ".join(PLAYERS))
    arguments = [part.format(rate=sample_rate_hz) for part in PLAYERS[Path(program).stem]]
    return _Program([program, *arguments])


def _find_program() -> str | None:
    return next((found for name in PLAYERS if (found := shutil.which(name)) is not None), None)


def _has_output() -> bool:
    """Return whether a sound server or a sound card is here; other systems than Linux always have one."""
    if not sys.platform.startswith("linux"):
        return True
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", "/nonexistent"))
    servers = (runtime / "pipewire-0", runtime / "pulse" / "native")
    is_served = "PULSE_SERVER" in os.environ or any(server.exists() for server in servers)
    return is_served or any(SOUND_CARDS.glob("pcm*p"))


def _sounddevice() -> Any:
    try:
        import sounddevice
    except (ImportError, OSError):  # not installed, or without the library PortAudio
        return None
    return sounddevice


def _has_sounddevice() -> bool:
    sounddevice = _sounddevice()
    if sounddevice is None:
        return False
    try:
        return bool(sounddevice.query_devices(kind="output"))
    except (sounddevice.PortAudioError, ValueError):
        return False


def _cannot_play(got: str) -> OutputError:
    return OutputError(
        "audio cannot be played here",
        got=got,
        fix=f"Install a player ({install_command('play')}), or write a file.",
    )
