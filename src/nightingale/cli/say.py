"""`nightingale say`: text in, audio out, written or played while it is rendered."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

from nightingale.cli import options
from nightingale.cli.arguments import given_options
from nightingale.cli.console import format_clock, loading, note, parse_options, progress_bar, progress_line
from nightingale.cli.option_defaults import takes_defaults
from nightingale.cli.options import argument, option
from nightingale.cli.say_captions import caption_files, write_captions
from nightingale.cli.say_input import PIPE, read_text
from nightingale.cli.say_output import check_out, choose_output, open_sinks, parse_bit_rate
from nightingale.errors import ConfigError, OutputError, raising_memory_full

if TYPE_CHECKING:
    from nightingale.engine import TTS
    from nightingale.types import TimedWord

Text = str | None


@takes_defaults
def say(
    text: Annotated[
        Text, argument("[TEXT|-]", "The text to speak; - reads it from stdin, as a pipe does.")
    ] = None,
    file: Annotated[Text, option("Speak the text of this file.", "-f", "--file", metavar="FILE")] = None,
    batch: Annotated[
        Text,
        option(
            "Speak each line of a .txt, .csv or .jsonl file into the folder -o, or go on with it (docs/cli.md).",
            metavar="FILE",
        ),
    ] = None,
    out: options.Output = None,
    play: options.Play = False,
    form: Annotated[Text, option("Format for -o - and --batch.", "--format", default="wav")] = None,
    bitrate: options.BitRate = None,
    model: options.Model = None,
    voice: options.VoiceName = None,
    profile: options.Profile = None,
    stream: options.Stream = None,
    device: Annotated[Text, option("auto, cpu, cuda, cuda:1, mlx, mps.", default="auto")] = None,
    offline: options.Offline = False,
    yes: options.Yes = False,
    choices: options.Choices = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
    lexicon: options.LexiconFile = None,
    srt: Annotated[Text, option("Write captions in SubRip format.", "--srt", metavar="FILE")] = None,
    vtt: Annotated[Text, option("Write captions in WebVTT format.", "--vtt", metavar="FILE")] = None,
    timestamps: Annotated[
        Text, option("Write the time of each word as JSON.", "--timestamps", metavar="FILE")
    ] = None,
    watermark: options.Watermark = False,
    quiet: options.Quiet = False,
    **request: Any,
) -> None:
    """Speak TEXT into a file or on the loudspeaker. Without TEXT, speak what a pipe has, or lines as they are typed.

    A text that begins with a hyphen comes after --: nightingale say -- "-5 degrees".
    """
    # Check everything that needs no model before loading one.
    asked = SimpleNamespace(**locals())
    controls = {"voice": voice, "language": None, "lexicon": lexicon, **given_options(request)}
    bit_rate = parse_bit_rate(asked.bitrate)
    model_options = parse_options(asked.choices)
    if asked.lexicon is not None:
        from nightingale.engine.lexicon_files import open_lexicon

        open_lexicon(asked.lexicon)
    if batch is not None:
        caption_files(asked, has_text=False)
        _say_batch(asked, controls, bit_rate, model_options)
        return
    out, play = choose_output(asked.out, asked.play)
    if out is not None:
        check_out(out, asked.as_json, bit_rate, asked.form)
    words = read_text(text, file)
    captions = caption_files(asked, has_text=words is not None)
    if words is None and not play:
        what = "typed lines can only be played, and audio cannot be played here"
        raise OutputError(what, fix='Give a text: nightingale say "Hello." -o hello.wav')
    tts = open_engine(asked, controls, model_options, timestamps=bool(captions))
    if words is not None:
        _speak(tts, words, asked, controls, out, play, bit_rate, captions)
        return
    from nightingale.cli.interactive import speak_lines

    speak_lines(lambda line: _speak(tts, line, asked, controls, None, True, None))


def open_engine(
    asked: SimpleNamespace,
    controls: dict[str, Any],
    model_options: dict[str, Any],
    *,
    timestamps: bool = False,
) -> TTS:
    """Check the options, ask before a download, and load the model."""
    with fast_startup(), raising_memory_full():
        from nightingale.cli.downloads import prepare_model

        profile = prepare_model(asked, model_options, timestamps=timestamps, **controls)
        from nightingale.engine import TTS

        with progress_line(loading(asked.model), quiet=asked.quiet):
            tts = TTS(
                asked.model,
                device=asked.device or "auto",
                profile=profile,
                offline=asked.offline,
                watermark=asked.watermark,
                **model_options,
            )
    if tts.notice is not None:
        note(f"note: {tts.notice}")
    return tts


def _speak(
    tts: TTS,
    words: str,
    asked: SimpleNamespace,
    controls: dict[str, Any],
    out: str | None,
    play: bool,
    bit_rate: int | None,
    captions: Mapping[str, Path] | None = None,
) -> None:
    """Speak a text into the outputs, and report on it."""
    from nightingale.engine.requests.whole import ProgressMeter

    meter = ProgressMeter(len(words))
    timed: list[TimedWord] = []
    with progress_line("speaking …", quiet=asked.quiet) as show_progress, raising_memory_full():
        speech = tts.stream(words, **controls, timestamps=bool(captions))
        digest = hashlib.sha256()
        with open_sinks(out, tts.sample_rate_hz, play=play, bit_rate=bit_rate, form=asked.form) as sinks:
            for chunk in speech:
                for sink in sinks:
                    sink.feed(chunk.samples)
                digest.update(chunk.samples.astype("<f4", copy=False).tobytes())
                timed += chunk.words
                progress = meter.add(chunk)
                show_progress(f"{progress_bar(progress.fraction)} {format_clock(progress.audio_seconds)}")
    if captions:
        write_captions(captions, timed, controls["language"])
    metrics = speech.metrics
    for warning in speech.warnings:
        note(f"warning: {warning}")
    if not asked.quiet:
        times = f"first audio after {metrics.ttfa_ms:.0f} ms, rtf {metrics.rtf:.3f}"
        note(f"{out or 'played'}: {metrics.audio_seconds:.2f} s, {times}, seed {speech.seed}")
    if asked.as_json:
        summary = {
            "model": tts.name,
            "voice": asked.voice or "default",
            "seed": speech.seed,
            "tokens": metrics.tokens,
            "audio_seconds": round(metrics.audio_seconds, 6),
            "ttfa_ms": round(metrics.ttfa_ms, 3),
            "rtf": round(metrics.rtf, 6) if math.isfinite(metrics.rtf) else None,
            "sha256": digest.hexdigest(),
            "warnings": [{"what": one.what, "got": one.got, "at": one.at} for one in speech.warnings],
        }
        print(json.dumps(summary))


def _say_batch(
    asked: SimpleNamespace, controls: dict[str, Any], bit_rate: int | None, model_options: dict[str, Any]
) -> None:
    from nightingale.audio.encoders.recording import check_output
    from nightingale.cli.batch import read_lines, speak_batch

    suffix = f".{asked.form or 'wav'}"
    if asked.text is not None or asked.file is not None or asked.play or asked.out in (None, PIPE):
        fix = "For example: nightingale say --batch lines.csv -o recordings --format mp3"
        raise ConfigError("--batch needs a folder, and no text or player", allowed="-o FOLDER", fix=fix)
    folder = Path(asked.out)
    check_output(folder / f"0001{suffix}", bit_rate)
    if folder.exists() and not folder.is_dir():
        raise OutputError("the output of --batch is not a folder", got=asked.out)
    lines = read_lines(Path(asked.batch).expanduser(), controls)
    tts = open_engine(asked, controls, model_options)
    with progress_line("speaking …", quiet=asked.quiet) as show_progress, raising_memory_full():

        def show(done: int) -> None:
            show_progress(f"{progress_bar(done / len(lines))} {done} of {len(lines)}")

        settings = {"profile": asked.profile, "options": model_options, "watermark": asked.watermark}
        written, failed = speak_batch(
            tts, lines, folder, suffix, bit_rate=bit_rate, settings=settings, on_line=show
        )
    summary = {"written": written, "kept": len(lines) - written - failed, "failed": failed}
    if not asked.quiet:
        counts = ", ".join(f"{count} {name}" for name, count in summary.items())
        note(f"{folder}: {counts}; see manifest.jsonl")
    if asked.as_json:
        print(json.dumps(summary))
    if failed:
        raise SystemExit(1)


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
