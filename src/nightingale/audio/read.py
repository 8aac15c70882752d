"""A sound file from anywhere becomes mono float32 samples, or a clear refusal.

Reference clips come from users and from the network, so nothing in the file is believed: its size is checked
before it is opened, the header's channel count and rate before it is decoded, and the decoder is stopped when
more sound arrives than a reference may hold, whatever length the header claims.
"""

from __future__ import annotations

import io
import stat
from pathlib import Path

import numpy as np
import soundfile

from nightingale.errors import BadReference
from nightingale.types import Samples

MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_SECONDS = 600
MAX_CHANNELS = 8
MIN_RATE_HZ = 4_000
MAX_RATE_HZ = 384_000
MAX_LEVEL = 8.0
"""Full scale is 1.0. Louder than this is not sound in [-1, 1] but, say, 16-bit numbers stored as floats."""
FORMATS = frozenset({"WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3", "AIFF"})

_BLOCK_FRAMES = 1 << 16


def read_audio(source: str | Path | bytes, *, max_seconds: float = MAX_SECONDS) -> tuple[Samples, int]:
    """The file's channels averaged to one, and its sample rate in hertz."""
    data = source if isinstance(source, bytes) else _file_bytes(Path(source))
    if not data:
        raise BadReference(
            "the audio file is empty", got="0 bytes", allowed=_formats(), fix="Choose another file."
        )
    if len(data) > MAX_FILE_BYTES:
        raise _too_big(len(data))
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_header(file)
            samples = _decode(file, max_seconds)
            rate_hz = int(file.samplerate)
    except (soundfile.SoundFileError, RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise BadReference(
            "the audio file cannot be decoded",
            got=_said(error) if isinstance(source, bytes) else f"{source}: {_said(error)}",
            allowed=_formats(),
            fix="Convert the clip to WAV or FLAC and try again.",
        ) from error
    _check_samples(samples)
    return samples, rate_hz


def _said(error: Exception) -> str:
    """What the decoder said, without soundfile's words before it, in which the clip is a Python object."""
    if isinstance(error, soundfile.LibsndfileError):
        return f"libsndfile says {error.error_string.rstrip('.')!r}"
    return str(error) or type(error).__name__


def _file_bytes(path: Path) -> bytes:
    try:
        status = path.stat()
        # A device or a pipe could deliver bytes for ever; its size says nothing.
        if not stat.S_ISREG(status.st_mode):
            raise BadReference(
                "the reference is not a file",
                got=str(path),
                allowed="a regular audio file",
                fix="Give the path of one sound file.",
            )
        if status.st_size > MAX_FILE_BYTES:
            raise _too_big(status.st_size)
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise BadReference(
            "the audio file cannot be opened",
            got=f"{path}: {error.strerror if isinstance(error, OSError) else error}",
            allowed="a readable audio file",
            fix="Check the path and its permissions.",
        ) from error


def _check_header(file: soundfile.SoundFile) -> None:
    if file.format not in FORMATS:
        raise BadReference(
            "this kind of sound file is not supported",
            got=file.format,
            allowed=_formats(),
            fix="Convert the clip to WAV or FLAC and try again.",
        )
    if not 1 <= file.channels <= MAX_CHANNELS:
        raise BadReference(
            "the clip has too many channels",
            got=f"{file.channels} channels",
            allowed=f"1 to {MAX_CHANNELS}",
            fix="Mix the clip down to mono.",
        )
    if not MIN_RATE_HZ <= file.samplerate <= MAX_RATE_HZ:
        raise BadReference(
            "the clip's sample rate is out of range",
            got=f"{file.samplerate} Hz",
            allowed=f"{MIN_RATE_HZ} to {MAX_RATE_HZ} Hz",
            fix="Resample the clip, for example to 24000 Hz.",
        )


def _decode(file: soundfile.SoundFile, max_seconds: float) -> Samples:
    """Mono samples, decoded block by block so that a lying header cannot ask for memory."""
    limit_frames = max_seconds * int(file.samplerate)
    blocks: list[Samples] = []
    frames = 0
    while True:
        block = file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)  # (frames, channels)
        if not len(block):
            break
        frames += len(block)
        if frames > limit_frames:
            raise BadReference(
                "the clip is too long",
                got=f"more than {max_seconds:g} s",
                allowed=f"at most {max_seconds:g} s",
                fix="Cut out ten to thirty seconds of clear speech.",
            )
        blocks.append(block.mean(axis=1, dtype=np.float32))
    return np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.float32)


def _check_samples(samples: Samples) -> None:
    if not len(samples):
        raise BadReference(
            "the clip holds no sound",
            got="0 samples",
            allowed="at least one second of speech",
            fix="Record it again.",
        )
    # min and max carry NaN and infinities to the top without a mask the size of the clip.
    level = max(float(samples.max()), -float(samples.min()))
    if not np.isfinite(level):
        raise BadReference(
            "the clip holds numbers that are not sound",
            got="NaN or infinity among the samples",
            allowed="finite samples in [-1, 1]",
            fix="Export the clip again from its source.",
        )
    if level > MAX_LEVEL:
        raise BadReference(
            "the clip's samples are far outside full scale",
            got=f"a peak of {level:.6g}",
            allowed=f"samples in [-1, 1], tolerated up to {MAX_LEVEL:g}",
            fix="Export the clip as 16-bit PCM, or scale its floats to [-1, 1].",
        )


def _too_big(size_bytes: int) -> BadReference:
    return BadReference(
        "the audio file is too big",
        got=f"{size_bytes} bytes",
        allowed=f"at most {MAX_FILE_BYTES} bytes",
        fix="Cut out ten to thirty seconds of clear speech.",
    )


def _formats() -> str:
    return "a sound file of one of these kinds: " + ", ".join(sorted(FORMATS))
