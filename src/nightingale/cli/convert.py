"""`nightingale convert`: a recording in, the same words in another voice out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

from nightingale.cli import options
from nightingale.cli.console import loading, note, parse_options, progress_line
from nightingale.cli.option_defaults import takes_defaults
from nightingale.cli.options import argument, option
from nightingale.cli.say_input import PIPE
from nightingale.cli.say_output import check_out, choose_output, open_sinks, parse_bit_rate
from nightingale.errors import BadReference, raising_memory_full

if TYPE_CHECKING:
    from nightingale.engine.conversion import VoiceConverter
    from nightingale.types import AudioChunk

Text = str | None
BLOCK_FRAMES = 1 << 16


@takes_defaults
def convert(
    recording: Annotated[str, argument("IN", "A wav, flac, ogg or mp3 recording; - reads it from stdin.")],
    voice: options.VoiceName = None,
    out: options.Output = None,
    play: options.Play = False,
    form: Annotated[Text, option("Format for -o -.", "--format", default="wav")] = None,
    bitrate: options.BitRate = None,
    model: options.Model = None,
    seed: options.Seed = None,
    profile: options.Profile = None,
    stream: options.Stream = None,
    device: options.Device = "auto",
    offline: options.Offline = False,
    yes: options.Yes = False,
    choices: options.Choices = None,
    config: options.Config = None,
    watermark: options.Watermark = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Speak the words of the recording IN in another voice, with its timing (docs/conversion.md).

    Use only voices and recordings that you are allowed to use.
    """
    asked = SimpleNamespace(**locals())
    bit_rate, model_options = parse_bit_rate(bitrate), parse_options(choices)
    target, play = choose_output(out, play)
    if target is not None:
        check_out(target, as_json, bit_rate, form)
    if recording != PIPE and not Path(recording).expanduser().is_file():
        raise BadReference("no such recording", got=recording, fix="Check the path.")
    converter = _open(asked, model_options)
    with converter, progress_line("converting …", quiet=quiet) as show_progress, raising_memory_full():
        seconds = 0.0
        with open_sinks(target, converter.sample_rate_hz, play=play, bit_rate=bit_rate, form=form) as sinks:
            for chunk in _converted(converter, recording, voice, seed):
                for sink in sinks:
                    sink.feed(chunk.samples)
                seconds += chunk.seconds
                show_progress(f"{seconds:.0f} s")
    if not quiet:
        note(f"{target or 'played'}: {seconds:.2f} s in the voice {voice or 'default'}")
    if as_json:
        summary = {"model": converter.name, "voice": voice or "default", "audio_seconds": round(seconds, 6)}
        print(json.dumps(summary | {"watermark": watermark}))


def _open(asked: SimpleNamespace, model_options: dict[str, Any]) -> VoiceConverter:
    """Check the options, ask before a download, and load the model."""
    from nightingale.cli.downloads import prepare_model
    from nightingale.engine.conversion import VoiceConverter
    from nightingale.engine.load import CONVERTER_WITHOUT

    controls = {"voice": asked.voice, "language": None, "seed": asked.seed}
    profile = prepare_model(asked, model_options, without=CONVERTER_WITHOUT, **controls)
    with progress_line(loading(asked.model), quiet=asked.quiet), raising_memory_full():
        return VoiceConverter.load(
            asked.model,
            device=asked.device,
            profile=profile,
            offline=asked.offline,
            watermark=asked.watermark,
            **model_options,
        )


def _converted(
    converter: VoiceConverter, recording: str, voice: str | None, seed: int | None
) -> Iterator[AudioChunk]:
    """Yield the converted audio. A recording of more than ten minutes is read part by part."""
    import soundfile

    from nightingale.audio.read import MAX_SECONDS

    if recording == PIPE:
        yield from converter.submit(sys.stdin.buffer.read(), voice=voice, seed=seed).chunks()
        return
    path = Path(recording).expanduser()
    try:
        info = soundfile.info(path)
    except soundfile.SoundFileError:
        info = None  # `submit` says what is wrong with it
    if info is None or info.duration <= MAX_SECONDS:
        yield from converter.submit(path, voice=voice, seed=seed).chunks()
    else:
        parts = soundfile.blocks(path, BLOCK_FRAMES, dtype="float32")
        yield from converter.stream(parts, info.samplerate, voice=voice, seed=seed)
