"""`nightingale say`: text in, an audio file out, written while it is rendered."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nightingale.cli import options
from nightingale.cli.console import loading, note, parse_options, progress_line
from nightingale.cli.options import argument, of_model, option
from nightingale.errors import ConfigError, EmptyText, OutputError, TextError, raising_memory_full

if TYPE_CHECKING:
    from nightingale.audio.encoders.recording import Recorder

PIPE = "-"
Text = str | None
Number = float | None


SPEECH_OPTIONS = ("voice", "language", "seed", "temperature", "top_p", "min_p", "repetition_penalty", "cfg_weight",
                  "exaggeration", "speed")  # fmt: skip
"""Options that are arguments of `TTS.stream`."""


def say(
    text: Annotated[str, argument("TEXT|-", "The text to speak; - reads it from stdin.")],
    out: Annotated[
        str, option("Output file: .wav .flac .ogg .mp3, or - for WAV on stdout.", "-o", "--out", default=True)
    ] = "nightingale.wav",
    model: options.Model = None,
    voice: options.VoiceName = None,
    language: Annotated[Text, option("Language code, for multilingual models.", "-l", "--language")] = None,
    seed: Annotated[int | None, option("The same seed gives the same bytes.", default="random")] = None,
    temperature: Annotated[Number, of_model("Sampling temperature.")] = None,
    top_p: Annotated[Number, of_model("Nucleus sampling: total probability of the tokens kept.")] = None,
    min_p: Annotated[Number, of_model("Minimum probability, relative to the best token.")] = None,
    repetition_penalty: Annotated[Number, of_model("Penalty for tokens that occurred before.")] = None,
    cfg_weight: Annotated[Number, of_model("Classifier-free guidance; 0 is off and faster.")] = None,
    exaggeration: Annotated[Number, of_model("Strength of emotion.")] = None,
    speed: Annotated[Number, option("0.25 to 4.0; keeps the pitch.", default="1.0")] = None,
    profile: options.Profile = None,
    stream: options.Stream = None,
    device: options.Device = "auto",
    offline: options.Offline = False,
    choices: options.Choices = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Speak TEXT into a file."""
    controls = {name: value for name, value in locals().items() if name in SPEECH_OPTIONS}
    # Check everything that needs no model before loading one.
    model_options = parse_options(choices)
    check_out(out, as_json)
    words = read_text(text)

    with progress_line(loading(model), quiet=quiet), fast_startup(), raising_memory_full():
        from nightingale.backends.profiles import with_options
        from nightingale.engine import TTS

        asked = with_options(profile, {"stream": stream})
        tts = TTS(model, device=device, profile=asked, offline=offline, **model_options)
    if tts.notice is not None:
        note(f"note: {tts.notice}")
    with progress_line("speaking …", quiet=quiet) as show_progress, raising_memory_full():
        speech = tts.stream(words, **controls)
        digest, samples = hashlib.sha256(), 0
        with open_recorder(out, tts.sample_rate_hz) as recorder:
            for chunk in speech:
                recorder.feed(chunk.samples)
                digest.update(chunk.samples.astype("<f4", copy=False).tobytes())
                samples += len(chunk.samples)
                minutes, seconds = divmod(samples // tts.sample_rate_hz, 60)
                show_progress(f"{minutes}:{seconds:02}")
    metrics = speech.metrics
    if not quiet:
        times = f"first audio after {metrics.ttfa_ms:.0f} ms, rtf {metrics.rtf:.3f}"
        note(f"{out}: {metrics.audio_seconds:.2f} s, {times}, seed {speech.seed}")
    if as_json:
        summary = {
            "model": tts.name,
            "voice": voice or "default",
            "seed": speech.seed,
            "tokens": metrics.tokens,
            "audio_seconds": round(metrics.audio_seconds, 6),
            "ttfa_ms": round(metrics.ttfa_ms, 3),
            "rtf": round(metrics.rtf, 6) if math.isfinite(metrics.rtf) else None,
            "sha256": digest.hexdigest(),
        }
        print(json.dumps(summary))


@contextmanager
def fast_startup() -> Iterator[None]:
    """Change global settings that make loading faster, which only a program may do.

    Loading creates no garbage, and the collector took a tenth of the time. Huge pages cause fewer page faults.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch reads it at its first allocation
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def check_out(out: str, as_json: bool) -> None:
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
                fix="For example: nightingale say … -o - | aplay",
            )
        return
    from nightingale.audio.encoders.recording import check_suffix

    path = Path(out)
    check_suffix(path)
    if path.is_dir() or not path.parent.is_dir():
        raise OutputError(
            "the file cannot be written",
            got=f"{out} ({'a folder' if path.is_dir() else 'no such folder'})",
            allowed="a file in an existing folder",
        )


def read_text(text: str) -> str:
    """Return TEXT, or stdin for `-`; refuse blank or invalid text."""
    try:
        words = sys.stdin.buffer.read().decode() if text == PIPE else text
        words.encode()  # an argument that was not UTF-8 contains lone surrogates
    except UnicodeError as error:
        raise TextError(
            "the text is not UTF-8", got=str(error), fix="Convert it, for example with iconv."
        ) from error
    if not words.strip():
        raise EmptyText(
            "there is nothing to say", got=repr(words[:20]), fix='For example: nightingale say "Hello."'
        )
    return words


@contextmanager
def open_recorder(out: str, sample_rate_hz: int) -> Iterator[Recorder]:
    """Open the output: a file, which appears when it is complete, or stdout, chunk by chunk."""
    from nightingale.audio.encoders.recording import WavRecorder, recording

    if out != PIPE:
        with recording(Path(out), sample_rate_hz) as recorder:
            yield recorder
        return
    try:
        piped = WavRecorder(sys.stdout.buffer, sample_rate_hz)
        yield piped
        piped.finish()
    except OSError as error:
        # The reader is gone. Python flushes stdout once more at exit; redirect that to nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError("stdout cannot be written", got=error.strerror or str(error)) from error
