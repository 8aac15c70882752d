"""Samples to bytes while they still come: one encoder per recording, from its first sample to its last.

An encoder per chunk would put a header, or a gap, at each seam. The formats are OpenAI's and telephones'.
FFmpeg (the package `av`) is imported when the first format is opened that needs it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from nightingale.clocks import CLOCKS
from nightingale.errors import ConfigError
from nightingale.types import AudioChunk, Samples

RATES_HZ: Final = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
OPUS_RATES_HZ: Final = (8000, 12000, 16000, 24000, 48000)
_UNKNOWN: Final = 0xFFFFFFFF
"""In a header: the length is not known yet. Players, and OpenAI's own WAVs, agree on this."""


class Encoder(Protocol):
    """One recording on its way out. `feed` may give nothing, `finish` gives what was held back."""

    def feed(self, samples: Samples) -> bytes: ...

    def finish(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    media_type: str
    open: Callable[[int, int | None], Encoder]
    """(sample rate in hertz, bits per second or None) -> an encoder for samples of that rate."""
    rates_hz: tuple[int, ...] = RATES_HZ
    cheap: bool = False
    """Needs so little time that it is never worth another thread."""


class Pcm:
    """Bare 16-bit little-endian samples."""

    def __init__(self, rate_hz: int, bit_rate: int | None = None) -> None:  # noqa: ARG002, a table's shape
        self._rate_hz = rate_hz

    def feed(self, samples: Samples) -> bytes:
        return AudioChunk(samples=samples, sample_rate_hz=self._rate_hz).pcm16

    def finish(self) -> bytes:
        return b""


class Wav(Pcm):
    """PCM behind a header that does not know how long it will be."""

    _started = False

    def feed(self, samples: Samples) -> bytes:
        head = b"" if self._started else self._header()
        self._started = True
        return head + super().feed(samples)

    def finish(self) -> bytes:
        return b"" if self._started else self._header()

    def _header(self) -> bytes:
        form = struct.pack("<HHIIHH", 1, 1, self._rate_hz, 2 * self._rate_hz, 2, 16)
        return (
            struct.pack("<4sI4s4sI", b"RIFF", _UNKNOWN, b"WAVE", b"fmt ", len(form))
            + form
            + struct.pack("<4sI", b"data", _UNKNOWN)
        )


class Mulaw(Pcm):
    """G.711 µ-law: what telephones speak."""

    def feed(self, samples: Samples) -> bytes:
        pcm = np.frombuffer(super().feed(samples), "<i2").astype(np.int32)
        magnitude = np.minimum(np.abs(pcm), 32635) + 132  # the bias of G.711, in 16-bit steps
        exponent = np.floor(np.log2(magnitude)).astype(np.int32) - 7
        mantissa = (magnitude >> (exponent + 3)) & 15
        sign = np.where(pcm < 0, 128, 0)
        return bytes((~(sign | (exponent << 4) | mantissa) & 255).astype(np.uint8).tobytes())


class Resampled:
    """An encoder fed with samples of another rate."""

    def __init__(self, encoder: Encoder, source_rate_hz: int, rate_hz: int) -> None:
        import soxr

        self._encoder = encoder
        self._stream = soxr.ResampleStream(source_rate_hz, rate_hz, 1, dtype="float32", quality="HQ")

    def feed(self, samples: Samples) -> bytes:
        ready = self._stream.resample_chunk(samples)
        return self._encoder.feed(ready) if len(ready) else b""

    def finish(self) -> bytes:
        rest = self._stream.resample_chunk(np.zeros(0, np.float32), last=True)
        return (self._encoder.feed(rest) if len(rest) else b"") + self._encoder.finish()


def _ffmpeg(
    muxer: str, codec: str, bit_rate: int | None, **options: str
) -> Callable[[int, int | None], Encoder]:
    def make(rate_hz: int, asked: int | None) -> Encoder:
        from nightingale.audio.encoders.ffmpeg import FFmpegEncoder

        return FFmpegEncoder(muxer, codec, rate_hz, None if bit_rate is None else asked or bit_rate, options)

    return make


FORMATS: Final[Mapping[str, Format]] = {
    # A Xing header counts frames, and could only be written after the last.
    "mp3": Format(
        media_type="audio/mpeg",
        open=_ffmpeg("mp3", "libmp3lame", 64_000, write_xing="0", id3v2_version="0"),
    ),
    # Pages of 60 ms and not of a second: a page is the least that can be heard.
    "opus": Format(
        media_type="audio/ogg",
        open=_ffmpeg("ogg", "libopus", 32_000, page_duration="60000"),
        rates_hz=OPUS_RATES_HZ,
    ),
    "aac": Format(media_type="audio/aac", open=_ffmpeg("adts", "aac", 64_000)),
    "flac": Format(media_type="audio/flac", open=_ffmpeg("flac", "flac", None)),
    "wav": Format(media_type="audio/wav", open=Wav, cheap=True),
    "pcm": Format(media_type="audio/pcm", open=Pcm, cheap=True),
    "ulaw": Format(media_type="audio/basic", open=Mulaw, cheap=True),
}


def check_format(name: str, sample_rate_hz: int) -> Format:
    """The format of that name, if it can hold that rate."""
    if name not in FORMATS:
        raise ConfigError(
            "no such format",
            got=repr(name),
            allowed=", ".join(FORMATS),
            fix="Choose one of these.",
            param="response_format",
        )
    form = FORMATS[name]
    if sample_rate_hz not in form.rates_hz:
        raise ConfigError(
            f"{name} cannot have that sample rate",
            got=f"{sample_rate_hz} Hz",
            allowed=", ".join(str(rate) for rate in form.rates_hz),
            fix="Choose one of these, or leave it out.",
            param="sample_rate",
        )
    return form


def open_encoder(
    name: str,
    *,
    sample_rate_hz: int = CLOCKS.sample_rate_hz,
    bit_rate: int | None = None,
    source_rate_hz: int = CLOCKS.sample_rate_hz,
) -> Encoder:
    """A new encoder. bit_rate: bits per second, for formats that lose something; None is a good default."""
    encoder = check_format(name, sample_rate_hz).open(sample_rate_hz, bit_rate)
    return encoder if sample_rate_hz == source_rate_hz else Resampled(encoder, source_rate_hz, sample_rate_hz)
