"""Outputs of `nightingale say`: a file, stdout, the loudspeaker, or two of them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nightingale.cli.say_input import PIPE
from nightingale.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from nightingale.audio.samples import Samples

DEFAULT_FILE = "nightingale.wav"


class Sink(Protocol):
    """A recorder or a player."""

    def feed(self, samples: Samples) -> None: ...


def choose_output(out: str | None, play: bool) -> tuple[str | None, bool]:
    """Return the file to write, if there is one, and whether to play.

    Without an output, audio is played for a person at a terminal, if this machine can, and else written.
    """
    if out is not None or play:
        return out, play
    from nightingale.audio.playback import can_play

    if sys.stdout.isatty() and can_play():
        return None, True
    return DEFAULT_FILE, False


def parse_bit_rate(text: str | None) -> int | None:
    """Return bits per second: "64k" is 64,000."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6})(k?)", text.strip().lower())
    if found is None:
        raise ConfigError("not a bit rate", got=repr(text), allowed="such as 64k or 64000", param="bitrate")
    return int(found[1]) * (1000 if found[2] else 1)


def check_out(out: str, as_json: bool, bit_rate: int | None, form: str | None) -> None:
    """Refuse an output that cannot work."""
    if out == PIPE:
        if as_json:
            raise ConfigError(
                "audio and JSON cannot both go to stdout", got="-o - with --json", fix="Write to a file."
            )
        if sys.stdout.isatty():
            raise ConfigError(
                "stdout is a terminal, which cannot play a WAV",
                allowed="a pipe or a file",
                fix="Say --play, or for example: nightingale say … -o - | aplay",
            )
        if form not in (None, "wav"):
            from nightingale.audio.encoders.streaming import open_encoder

            open_encoder(form or "wav", bit_rate=bit_rate)
        elif bit_rate is not None:
            raise ConfigError("WAV has no bit rate", got="--bitrate with -o -", fix="Say --format mp3.")
        return
    if form is not None:
        fix = "The name of the output file says its format."
        raise ConfigError("--format is for -o - and --batch", got=f"--format {form}", fix=fix)
    from nightingale.audio.encoders.recording import check_output

    path = Path(out)
    check_output(path, bit_rate)
    if path.is_dir() or not path.parent.is_dir():
        raise OutputError(
            "the file cannot be written",
            got=f"{out} ({'a folder' if path.is_dir() else 'no such folder'})",
            allowed="a file in an existing folder",
        )


@contextmanager
def open_sinks(
    out: str | None, sample_rate_hz: int, *, play: bool, bit_rate: int | None = None, form: str | None = None
) -> Iterator[Sequence[Sink]]:
    """Open all outputs. A file appears when it is complete; stdout and the player take chunk by chunk."""
    with ExitStack() as stack:
        sinks: list[Sink] = []
        if out == PIPE:
            sinks.append(stack.enter_context(_open_pipe(sample_rate_hz, bit_rate, form)))
        elif out is not None:
            from nightingale.audio.encoders.recording import recording

            sinks.append(stack.enter_context(recording(Path(out), sample_rate_hz, bit_rate)))
        if play:
            from nightingale.audio.playback import Player

            sinks.append(stack.enter_context(Player(sample_rate_hz)))
        yield sinks


@contextmanager
def _open_pipe(sample_rate_hz: int, bit_rate: int | None, form: str | None) -> Iterator[Sink]:
    from nightingale.audio.encoders.recording import EncoderRecorder, WavRecorder
    from nightingale.audio.encoders.streaming import open_encoder

    stdout = sys.stdout.buffer
    try:
        piped: WavRecorder | EncoderRecorder
        if form in (None, "wav"):
            piped = WavRecorder(stdout, sample_rate_hz)
        else:
            piped = EncoderRecorder(stdout, open_encoder(form or "wav", bit_rate=bit_rate))
        yield piped
        piped.finish()
    except OSError as error:
        # The reader is gone. Python flushes stdout once more at exit; redirect that to nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError("stdout cannot be written", got=error.strerror or str(error)) from error
