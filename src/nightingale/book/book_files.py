"""Audio files with tags, chapter marks and a cover: M4B for a whole book, and MP3, Opus or FLAC for a chapter."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from nightingale.audio.encoders.recording import BIT_RATES
from nightingale.audio.encoders.streaming import (
    OPUS_RATES_HZ,
    RATES_HZ,
    Encoder,
    FFmpegEncoder,
    ResamplingEncoder,
)
from nightingale.clocks import CLOCKS
from nightingale.errors import ConfigError
from nightingale.files import whole_file
from nightingale.install import install_command
from nightingale.types import Samples

BOOK_SUFFIX: Final = ".m4b"
CHAPTER_FORMATS: Final = ("mp3", "opus", "flac", "m4a")
MIN_AV: Final = 16
"""The first version of PyAV that writes chapters."""
_MS: Final = Fraction(1, 1000)


class ChapterMark(NamedTuple):
    """A chapter of a file."""

    title: str
    start_ms: int
    end_ms: int


class _Codec(NamedTuple):
    muxer: str
    codec: str
    bit_rate: int | None
    has_cover: bool = True
    rates_hz: tuple[int, ...] = RATES_HZ
    brand: str = ""


_CODECS: Final[Mapping[str, _Codec]] = {
    # Not FFmpeg's "ipod": PyAV lets it have no picture. The brand is what players tell an audiobook by.
    ".m4b": _Codec("mp4", "aac", 64_000, brand="M4B "),
    ".m4a": _Codec("mp4", "aac", 64_000, brand="M4A "),
    ".mp3": _Codec("mp3", "libmp3lame", 64_000),
    ".opus": _Codec("ogg", "libopus", 32_000, has_cover=False, rates_hz=OPUS_RATES_HZ),
    ".flac": _Codec("flac", "flac", None),
}


class BookEncoder(FFmpegEncoder):
    """Encodes one file with what players show of it."""

    def __init__(
        self,
        file: BinaryIO,
        suffix: str,
        rate_hz: int,
        bit_rate: int | None,
        *,
        tags: Mapping[str, str],
        marks: Sequence[ChapterMark] = (),
        cover: bytes | None = None,
    ) -> None:
        """Open an encoder that writes to `file`, which can seek. A cover that cannot be read is left out."""
        codec = _CODECS[suffix]
        # Bit-exact: Ogg has random serial numbers otherwise, and a book would differ from its second making.
        options = {"fflags": "+bitexact", **({"brand": codec.brand} if codec.brand else {})}
        super().__init__(codec.muxer, codec.codec, codec.bit_rate, options, rate_hz, bit_rate, file)
        self._container.metadata.update(tags)
        self._container.set_chapters(
            [
                {"id": number, "start": mark.start_ms, "end": mark.end_ms, "time_base": _MS,
                 "metadata": {"title": mark.title}}
                for number, mark in enumerate(marks, start=1)
            ]
        )  # fmt: skip
        if cover is not None and codec.has_cover:
            self._add_cover(cover)

    def _add_cover(self, cover: bytes) -> None:
        from av.stream import Disposition

        try:
            with self._av.open(io.BytesIO(cover)) as image:
                source = image.streams.video[0]
                if not (source.width and source.height):
                    return
                picture = next(packet for packet in image.demux(source) if packet.size)
                # Any: a template's copy has the type of the template, and this one is never encoded.
                stream: Any = self._container.add_stream_from_template(source, opaque=True)
        except (self._av.FFmpegError, IndexError, StopIteration):
            return
        stream.disposition = Disposition.attached_pic
        picture.stream = stream
        self._container.mux(picture)


@contextmanager
def book_file(
    path: Path,
    *,
    rate_hz: int,
    bit_rate: int | None,
    tags: Mapping[str, str],
    marks: Sequence[ChapterMark] = (),
    cover: bytes | None = None,
) -> Iterator[Encoder]:
    """Yield an encoder for samples at the engine's rate. The file appears when it is complete."""
    with whole_file(path) as file:
        encoder: Encoder = BookEncoder(
            file, path.suffix.lower(), rate_hz, bit_rate, tags=tags, marks=marks, cover=cover
        )
        if rate_hz != CLOCKS.sample_rate_hz:
            encoder = ResamplingEncoder(encoder, rate_hz)
        yield encoder
        encoder.finish()


def feed_silence(encoder: Encoder, samples: int, zeros: Samples) -> None:
    """Feed so many zeros, from an array that may be shorter."""
    while samples > 0:
        part = zeros[:samples]
        encoder.feed(part)
        samples -= len(part)


def check_book_file(suffix: str, rate_hz: int, bit_rate: int | None) -> None:
    """Raise ConfigError unless this install can write such a file."""
    if suffix not in _CODECS:
        known = ", ".join(_CODECS)
        raise ConfigError("not a format for books", got=suffix or "no suffix", allowed=known, param="out")
    codec = _CODECS[suffix]
    if rate_hz not in codec.rates_hz:
        allowed = ", ".join(map(str, codec.rates_hz))
        got = f"{rate_hz} Hz for {suffix}"
        raise ConfigError("no such sample rate", got=got, allowed=allowed, param="sample_rate")
    low, high = BIT_RATES
    if bit_rate is not None and (codec.bit_rate is None or not low <= bit_rate <= high):
        got = f"{bit_rate} bits per second for {suffix}"
        allowed = f"{low} to {high}, not for .flac"
        raise ConfigError("no such bit rate", got=got, allowed=allowed, param="bitrate")
    installed = version("av") if find_spec("av") is not None else "none"
    if installed == "none" or int(installed.partition(".")[0]) < MIN_AV:
        fix = install_command("book")
        raise ConfigError("books need the package av", got=installed, allowed=f"{MIN_AV} or newer", fix=fix)
