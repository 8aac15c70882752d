"""Decoding of untrusted audio files to mono float32 samples.

Reference clips come from users and from the network, so nothing in the file is trusted: its size is checked
before it is opened, the header's channel count and rate before it is decoded, and the decoder stops when more
audio arrives than a reference may hold, whatever length the header claims.
"""

from __future__ import annotations

import io
import stat
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nightingale.audio.samples import Samples
from nightingale.errors import BadReference

if TYPE_CHECKING:
    import soundfile

MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_SECONDS = 600
MAX_CHANNELS = 8
MIN_RATE_HZ = 4_000
MAX_RATE_HZ = 384_000
MAX_LEVEL = 8.0
"""Full scale is 1.0. A louder clip holds, for example, 16-bit integers stored as floats."""
COMPLETE_SHARE = 0.99
"""Some programs write a length that is a little too large."""
UNKNOWN_LENGTH = 0x7FFFF000
"""From here on, a length in a header means that the writer did not know it."""
FORMATS = frozenset({"WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3", "AIFF"})

_BLOCK_FRAMES = 1 << 16
_FORMAT_NAMES = "an audio file in one of these formats: " + ", ".join(sorted(FORMATS))
_CONVERT = "Convert the clip to WAV or FLAC and try again."
_CUT = "Cut out ten to thirty seconds of clear speech."


def read_audio(source: str | Path | bytes, *, max_seconds: float = MAX_SECONDS) -> tuple[Samples, int]:
    """Return the file's channels averaged to one, and its sample rate in hertz.

    Args:
        source: A path, or the bytes of a file.
        max_seconds: A longer clip is refused.

    Raises:
        BadReference: The file cannot be read or decoded, or its contents are out of range.
    """
    data = source if isinstance(source, bytes) else _file_bytes(Path(source))
    if not data:
        raise BadReference("the audio file is empty", allowed=_FORMAT_NAMES)
    _check_size(len(data))
    import soundfile  # late, because speaking with a named voice reads no clip

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_header(file)
            samples = _decode(file, max_seconds)
            _check_complete(data, file, len(samples))
            rate_hz = int(file.samplerate)
    except (soundfile.SoundFileError, RuntimeError, TypeError, ValueError, OverflowError) as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, soundfile.LibsndfileError):  # whose own message begins with a Python object
            reason = f"libsndfile says {error.error_string.rstrip('.')!r}"
        raise BadReference(
            "the audio file cannot be decoded",
            got=reason if isinstance(source, bytes) else f"{source}: {reason}",
            allowed=_FORMAT_NAMES,
            fix=_CONVERT,
        ) from error
    _check_samples(samples)
    return samples, rate_hz


def check_clip(samples: object, rate_hz: object) -> tuple[Samples, int]:
    """Return the samples of a clip in memory as mono float32, and its rate, checked as those of a file.

    Args:
        samples: Numbers, of one axis or of frames and channels in either order. Integers are full-scale PCM.
        rate_hz: The sample rate, an integer.
    """
    if isinstance(rate_hz, bool) or not isinstance(rate_hz, Integral):
        got = f"{type(samples).__name__}, {type(rate_hz).__name__}"
        raise BadReference("not a clip", got=got, allowed="(samples, sample rate in hertz), in this order")
    _check_counts(1, int(rate_hz))
    try:
        array = np.asarray(samples)
        if array.dtype.kind not in "fiu" or array.ndim not in (1, 2):
            raise ValueError(f"shape {array.shape}, {array.dtype}")
    except (TypeError, ValueError) as error:
        allowed = "an array of numbers with one axis, or with frames and channels"
        raise BadReference("the clip's samples cannot be read", got=str(error), allowed=allowed) from error
    if array.dtype.kind in "iu":
        info = np.iinfo(array.dtype)
        middle = (int(info.max) + int(info.min) + 1) // 2
        array = (array.astype(np.float64) - middle) / (int(info.max) - middle + 1)
    if array.ndim == 2:
        array = array if array.shape[0] >= array.shape[1] else array.T  # (frames, channels)
        _check_counts(array.shape[1], int(rate_hz))
        array = array.mean(axis=1)
    mono = np.ascontiguousarray(array, dtype=np.float32)
    _check_samples(mono)
    if len(mono) > MAX_SECONDS * int(rate_hz):
        raise BadReference("the clip is too long", allowed=f"at most {MAX_SECONDS} s", fix=_CUT)
    return mono, int(rate_hz)


def _file_bytes(path: Path) -> bytes:
    try:
        status = path.stat()
        # A device or a pipe may deliver bytes without end, and its size says nothing.
        if not stat.S_ISREG(status.st_mode):
            raise BadReference("the reference is not a regular file", got=str(path))
        _check_size(status.st_size)
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise BadReference(
            "the audio file cannot be opened",
            got=f"{path}: {error.strerror if isinstance(error, OSError) else error}",
            fix="Check the path and its permissions.",
        ) from error


def _check_header(file: soundfile.SoundFile) -> None:
    if file.format not in FORMATS:
        raise BadReference(
            "this audio format is not supported", got=file.format, allowed=_FORMAT_NAMES, fix=_CONVERT
        )
    _check_counts(file.channels, file.samplerate)


def _check_counts(channels: int, rate_hz: int) -> None:
    for what, value, low, high, fix in (
        ("number of channels", channels, 1, MAX_CHANNELS, "Mix the clip down to mono."),
        ("sample rate", rate_hz, MIN_RATE_HZ, MAX_RATE_HZ, "Resample the clip to 24000 Hz."),
    ):
        if not low <= value <= high:
            allowed = f"{low} to {high}"
            raise BadReference(f"the clip's {what} is out of range", got=str(value), allowed=allowed, fix=fix)


def _decode(file: soundfile.SoundFile, max_seconds: float) -> Samples:
    """Decode block by block, so that a wrong length in the header does not allocate memory."""
    max_frames = max_seconds * int(file.samplerate)
    blocks: list[Samples] = []
    frames = 0
    while len(block := file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):  # (frames, channels)
        frames += len(block)
        if frames > max_frames:
            raise BadReference("the clip is too long", allowed=f"at most {max_seconds:g} s", fix=_CUT)
        blocks.append(block.mean(axis=1, dtype=np.float32))
    return np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.float32)


def _check_complete(data: bytes, file: soundfile.SoundFile, frames: int) -> None:
    """Refuse a file of which a part is missing. Headers of streams do not know the length."""
    claimed, there = file.frames, frames
    if file.format in ("WAV", "WAVEX"):  # libsndfile corrects the header by itself
        claimed, there = int.from_bytes(data[4:8], "little") + 8, len(data)
    if there < COMPLETE_SHARE * claimed < UNKNOWN_LENGTH:
        raise BadReference(
            "the audio file is incomplete",
            got=f"{100 * there / claimed:.0f} % of the length in its header",
            fix="Copy or upload the whole file again.",
        )


def _check_samples(samples: Samples) -> None:
    if not len(samples):
        raise BadReference("the clip holds no samples", allowed="at least one second of speech")
    # min and max propagate NaN and infinities without a mask the size of the clip.
    level = max(float(samples.max()), -float(samples.min()))
    if not level <= MAX_LEVEL:
        raise BadReference(
            f"the clip's samples are {'far outside full scale' if np.isfinite(level) else 'not finite'}",
            got=f"a peak of {level:.6g}",
            allowed=f"samples in [-1, 1], tolerated up to {MAX_LEVEL:g}",
            fix="Export the clip as 16-bit PCM, or scale its floats to [-1, 1].",
        )


def _check_size(size_bytes: int) -> None:
    if size_bytes > MAX_FILE_BYTES:
        limit = f"at most {MAX_FILE_BYTES} bytes"
        raise BadReference("the audio file is too big", got=f"{size_bytes} bytes", allowed=limit, fix=_CUT)
