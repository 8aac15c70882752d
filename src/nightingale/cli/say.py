"""`nightingale say`: text in, a recording out, written while it is spoken."""

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
from typing import TYPE_CHECKING

from nightingale.cli import options
from nightingale.cli.talk import busy, note, read_options
from nightingale.errors import ConfigError, EmptyText, OutputError, TextError

if TYPE_CHECKING:
    from nightingale.audio.encoders.recording import Recorder
    from nightingale.types import Metrics

PIPE = "-"


def say(
    text: options.Text,
    out: options.Out = "nightingale.wav",
    model: options.Model = None,
    voice: options.VoiceName = None,
    language: options.Language = None,
    seed: options.Seed = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    cfg_weight: options.CfgWeight = None,
    exaggeration: options.Exaggeration = None,
    speed: options.Speed = None,
    profile: options.Profile = None,
    device: options.Device = "auto",
    offline: options.Offline = False,
    choices: options.Choices = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Speak TEXT into a file."""
    # Everything that can be wrong without a model is found before one is loaded.
    chosen = read_options(choices or [])
    check_out(out, as_json)
    words = read_text(text)

    with busy(f"loading {model or 'the voice in the box'} …", quiet=quiet), starting():
        from nightingale.engine import TTS

        tts = TTS(model, device=device, profile=profile, offline=offline, **chosen)
    if tts.notice is not None:
        note(f"note: {tts.notice}")
    with busy("speaking …", quiet=quiet) as tell:
        stream = tts.stream(
            words,
            voice=voice,
            language=language,
            seed=seed,
            temperature=temperature,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            cfg_weight=cfg_weight,
            exaggeration=exaggeration,
            speed=speed,
        )
        digest, spoken = hashlib.sha256(), 0
        with recorder_for(out, tts.sample_rate_hz) as recorder:
            for chunk in stream:
                recorder.feed(chunk.samples)
                digest.update(chunk.samples.astype("<f4", copy=False).tobytes())
                spoken += len(chunk.samples)
                minutes, seconds = divmod(spoken // tts.sample_rate_hz, 60)
                tell(f"{minutes}:{seconds:02}")
    cost = stream.metrics
    if not quiet:
        times = f"first sound {cost.ttfa_ms:.0f} ms, rtf {cost.rtf:.3f}"
        note(f"{out}: {cost.audio_seconds:.2f} s, {times}, seed {stream.seed}")
    if as_json:
        print(json.dumps(summary(tts.name, voice, stream.seed, cost, digest.hexdigest())))


@contextmanager
def starting() -> Iterator[None]:
    """What makes a process start sooner, and is nobody's business but a program's.

    Nothing becomes garbage while modules and weights are loaded, and what is loaded stays: looking for it
    took a tenth of the start. Weights in large pages take a fraction of the page faults.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch reads it when it first allocates
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def check_out(out: str, as_json: bool) -> None:
    """Refuse an output that cannot work before the work is done."""
    if out == PIPE:
        if as_json:
            raise ConfigError(
                "stdout can hold the sound or the JSON, not both",
                got="-o - with --json",
                allowed="one of them",
                fix="Write the sound to a file.",
            )
        if sys.stdout.isatty():
            raise ConfigError(
                "a terminal cannot play a WAV",
                got="-o - on a terminal",
                allowed="a pipe or a file",
                fix="For example: nightingale say … -o - | aplay",
            )
        return
    from nightingale.audio.encoders.recording import check_suffix

    path = Path(out)
    check_suffix(path)
    if path.is_dir() or not path.parent.is_dir():
        raise OutputError(
            "the recording cannot be written there",
            got=f"{out} ({'a folder' if path.is_dir() else 'no such folder'})",
            allowed="a file in an existing folder",
            fix="Choose another path, or make the folder.",
        )


def read_text(text: str) -> str:
    """TEXT, or stdin for `-`; blank or broken text is refused here, before a model is loaded."""
    try:
        words = sys.stdin.buffer.read().decode() if text == PIPE else text
        words.encode()  # an argument that was not UTF-8 arrives with lone surrogates
    except UnicodeError as error:
        raise TextError(
            "the text is not UTF-8",
            got=str(error),
            allowed="text encoded as UTF-8",
            fix="Convert it, for example with iconv.",
        ) from error
    if not words.strip():
        raise EmptyText(
            "there is nothing to say",
            got=repr(words[:20]),
            allowed="text with at least one letter or digit",
            fix='For example: nightingale say "Hello."',
        )
    return words


@contextmanager
def recorder_for(out: str, sample_rate_hz: int) -> Iterator[Recorder]:
    """Where the sound goes: a file, which is there when all of it is, or stdout, chunk by chunk."""
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
        # The reader left. Python flushes stdout once more on its way out; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError(
            "stdout could not be written",
            got=error.strerror or str(error),
            allowed="an open pipe or file",
            fix="Keep the reader running.",
        ) from error


def summary(
    model: str, voice: str | None, seed: int, cost: Metrics, sha256: str
) -> dict[str, str | int | float | None]:
    """What --json prints."""
    return {
        "model": model,
        "voice": voice or "default",
        "seed": seed,
        "tokens": cost.tokens,
        "audio_seconds": round(cost.audio_seconds, 6),
        "ttfa_ms": round(cost.ttfa_ms, 3),
        "rtf": round(cost.rtf, 6) if math.isfinite(cost.rtf) else None,
        "sha256": sha256,
    }
