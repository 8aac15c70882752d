"""Recordings in files: the table of file formats, `save`, and recorders that write chunk by chunk.

A recorder writes audio while it is synthesized, so that a book takes no more memory than a sentence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from nightingale.audio.encoders.streaming import Encoder, FFmpegEncoder, PcmEncoder, WavEncoder, open_encoder
from nightingale.audio.samples import HEADER_BYTES, UNKNOWN_LENGTH, Samples, check_samples, wav_header
from nightingale.errors import ConfigError, OutputError, wrong_type
from nightingale.files import as_path, whole_file

FILE_FORMATS: Final[Mapping[str, tuple[str, str]]] = {
    ".wav": ("WAV", "PCM_16"),
    ".flac": ("FLAC", "PCM_16"),
    ".ogg": ("OGG", "VORBIS"),
    ".opus": ("OGG", "OPUS"),
    ".mp3": ("MP3", "MPEG_LAYER_III"),
    ".m4a": ("", ""),
    ".pcm": ("", ""),
    ".raw": ("", ""),
}
"""Suffix -> libsndfile's names of the format and its subtype. WAV, samples without a header (.pcm, .raw) and M4A,
which needs FFmpeg's libraries, are written without libsndfile."""
BIT_RATES: Final = (8_000, 320_000)
"""Range of bits per second of a lossy format."""
LOSSY: Final = (".mp3", ".opus", ".m4a")
"""Formats with a choice of bit rates, which needs FFmpeg's libraries."""


class HasSamples(Protocol):
    """An `AudioChunk` or `Audio`."""

    @property
    def samples(self) -> Samples: ...

    @property
    def sample_rate_hz(self) -> int: ...


def check_suffix(path: Path) -> str:
    """Return the path's suffix in lower case, or raise `ConfigError` if no format has it."""
    suffix = path.suffix.lower()
    if suffix not in FILE_FORMATS:
        raise ConfigError(
            "no encoder for this kind of file",
            got=repr(path.name),
            allowed=", ".join(FILE_FORMATS),
            fix="End the output path with one of these.",
        )
    return suffix


def check_output(path: Path, bit_rate: int | None = None) -> None:
    """Raise ConfigError unless this install can write the kind of file that the suffix names."""
    suffix = check_suffix(path)
    low, high = BIT_RATES
    if bit_rate is not None and (suffix not in LOSSY or not low <= bit_rate <= high):
        raise ConfigError(
            "no such bit rate",
            got=f"{bit_rate} bits per second for {suffix}",
            allowed=f"{low} to {high}, for {', '.join(LOSSY)}",
            param="bitrate",
        )
    if (bit_rate is not None or suffix == ".m4a") and find_spec("av") is None:
        what = "a bit rate" if bit_rate is not None else suffix
        allowed = ", ".join(kind for kind in FILE_FORMATS if kind != ".m4a") + ", without --bitrate"
        fix = "pip install av"
        raise ConfigError(f"{what} needs the package av", allowed=allowed, fix=fix, param="out")


def save(path: Path | str, audio: HasSamples) -> None:
    """Write audio in the format that the path's suffix names.

    The file appears when it is complete. On any failure, a file that was there before stays unchanged.
    """
    if not hasattr(audio, "sample_rate_hz"):
        fix = "To write an array, make a value of it: AudioChunk(samples=array, sample_rate_hz=24000)."
        raise wrong_type("audio", audio, "an Audio or an AudioChunk", fix=fix)
    with recording(as_path(path), audio.sample_rate_hz) as recorder:
        recorder.feed(audio.samples)


@contextmanager
def recording(path: Path, sample_rate_hz: int, bit_rate: int | None = None) -> Iterator[Recorder]:
    """Yield a recorder for the format that the suffix names. The file appears when it is complete."""
    check_output(path, bit_rate)
    with whole_file(path) as file:
        recorder = _open_recorder(file, path.suffix.lower(), sample_rate_hz, bit_rate)
        yield recorder
        recorder.finish()


def _open_recorder(file: BinaryIO, suffix: str, sample_rate_hz: int, bit_rate: int | None) -> Recorder:
    if suffix == ".wav":
        return WavRecorder(file, sample_rate_hz)
    if suffix in (".pcm", ".raw"):
        return EncoderRecorder(file, PcmEncoder())
    if suffix == ".m4a":
        return EncoderRecorder(file, FFmpegEncoder("ipod", "aac", 64_000, {}, sample_rate_hz, bit_rate, file))
    if bit_rate is not None:
        return EncoderRecorder(
            file, open_encoder(suffix[1:], sample_rate_hz=sample_rate_hz, bit_rate=bit_rate)
        )
    return SndfileRecorder(file, sample_rate_hz, *FILE_FORMATS[suffix])


class WavRecorder:
    """Writes 16-bit WAV and, where the file can seek, puts the length into the header at the end.

    In a pipe, and beyond 4 GiB, the header keeps saying that the length is unknown.
    """

    def __init__(self, file: BinaryIO, sample_rate_hz: int) -> None:
        self._file, self._rate_hz, self._encoder = file, sample_rate_hz, WavEncoder(sample_rate_hz)
        self._start = file.tell() if _can_rewrite(file) else None
        self._bytes = 0

    def feed(self, samples: Samples) -> None:
        check_samples(samples)
        self._write(self._encoder.feed(samples))

    def finish(self) -> None:
        self._write(self._encoder.finish())
        if self._start is not None and self._bytes <= UNKNOWN_LENGTH:
            self._file.seek(self._start)
            self._file.write(wav_header(self._rate_hz, self._bytes - HEADER_BYTES))
            self._file.seek(self._start + self._bytes)
        self._file.flush()

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()  # a player may read the other end of a pipe
        self._bytes += len(data)


class EncoderRecorder:
    """Writes what an encoder returns, chunk by chunk."""

    def __init__(self, file: BinaryIO, encoder: Encoder) -> None:
        self._file, self._encoder = file, encoder

    def feed(self, samples: Samples) -> None:
        check_samples(samples)
        self._file.write(self._encoder.feed(samples))
        self._file.flush()  # a player may read the other end of a pipe

    def finish(self) -> None:
        self._file.write(self._encoder.finish())
        self._file.flush()


class SndfileRecorder:
    """Writes FLAC, Ogg Vorbis, Opus and MP3 through libsndfile."""

    def __init__(
        self, file: BinaryIO, sample_rate_hz: int, form: str, subtype: str, comment: str | None = None
    ) -> None:
        """Open the file; `comment` becomes a tag where the format has tags."""
        import soundfile

        with self._output_errors():
            self._sound: Any = soundfile.SoundFile(
                file.fileno(), "w", sample_rate_hz, 1, subtype, format=form, closefd=False
            )
            if comment is not None:
                self._sound.comment = comment

    def feed(self, samples: Samples) -> None:
        check_samples(samples)
        with self._output_errors():
            self._sound.write(samples)

    def finish(self) -> None:
        with self._output_errors():
            self._sound.close()

    @contextmanager
    def _output_errors(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, AssertionError) as error:  # what soundfile raises when a disk is full
            raise OutputError(
                "the recording could not be written",
                got=str(error) or "fewer samples were written than given",
                allowed="free space on the disk, and libsndfile 1.1 or newer for MP3",
                fix="Free some space, or write .wav or .flac instead.",
            ) from error


Recorder = WavRecorder | EncoderRecorder | SndfileRecorder


def _can_rewrite(file: BinaryIO) -> bool:
    """Return whether written bytes can be replaced: not in a pipe, nor in a file opened to append."""
    try:
        import fcntl

        appends = bool(fcntl.fcntl(file.fileno(), fcntl.F_GETFL) & os.O_APPEND)
    except (ImportError, OSError):  # Windows, or an object without a file descriptor
        appends = False
    return file.seekable() and not appends
