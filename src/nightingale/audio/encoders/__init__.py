"""Samples to bytes: the table of file formats, and saving by suffix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from nightingale.audio.encoders.sndfile import flac_bytes, mp3_bytes, ogg_bytes
from nightingale.audio.encoders.wav import wav_bytes
from nightingale.errors import ConfigError
from nightingale.files import write_whole
from nightingale.types import AudioChunk, Samples

Encode = Callable[[Samples, int], bytes]

CONTAINERS: Final[Mapping[str, Encode]] = {
    ".wav": wav_bytes,
    ".flac": flac_bytes,
    ".ogg": ogg_bytes,
    ".mp3": mp3_bytes,
}


def encoder_for(path: Path) -> Encode:
    """The encoder of a path's suffix. Ask before the work is done, so that a typo costs nothing."""
    suffix = path.suffix.lower()
    if suffix not in CONTAINERS:
        raise ConfigError(
            "no encoder for this kind of file",
            got=repr(path.name),
            allowed=", ".join(CONTAINERS),
            fix="End the output path with one of these.",
        )
    return CONTAINERS[suffix]


def save(path: Path | str, audio: AudioChunk) -> None:
    """Write a recording in the format its suffix names, whole or not at all."""
    path = Path(path)
    encode = encoder_for(path)
    write_whole(path, encode(audio.samples, audio.sample_rate_hz))
