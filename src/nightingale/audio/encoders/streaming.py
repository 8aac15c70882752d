"""Samples to bytes while they arrive: one encoder per recording, from its first sample to its last.

An encoder per chunk would put a header or a gap at each boundary. The formats are those of the OpenAI API and
of telephony. MP3, Opus, AAC and FLAC need FFmpeg's libraries (the package `av`), imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Final, Protocol, cast

import numpy as np

from nightingale.audio.samples import Samples, check_samples, pcm16, wav_header
from nightingale.clocks import CLOCKS
from nightingale.errors import ConfigError, OutputError
from nightingale.install import install_command

RATES_HZ: Final = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
OPUS_RATES_HZ: Final = (8000, 12000, 16000, 24000, 48000)


class Encoder(Protocol):
    """Encodes one recording. `feed` may return nothing; `finish` returns what was held back."""

    def feed(self, samples: Samples) -> bytes: ...

    def finish(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One response format."""

    media_type: str
    open: Callable[[int, int | None], Encoder]
    """(sample rate in hertz, bits per second or None) -> an encoder for samples of that rate."""
    rates_hz: tuple[int, ...] = RATES_HZ
    cheap: bool = False
    """True if encoding takes too little time to be worth another thread."""


class PcmEncoder:
    """Encodes 16-bit little-endian samples without a header."""

    def feed(self, samples: Samples) -> bytes:
        return pcm16(samples)

    def finish(self) -> bytes:
        return b""


class WavEncoder:
    """Encodes PCM after a WAV header of unknown length."""

    def __init__(self, rate_hz: int) -> None:
        self._header = wav_header(rate_hz)

    def feed(self, samples: Samples) -> bytes:
        return self.finish() + pcm16(samples)

    def finish(self) -> bytes:
        header, self._header = self._header, b""
        return header


class MulawEncoder(PcmEncoder):
    """Encodes G.711 µ-law, the format of telephony."""

    def feed(self, samples: Samples) -> bytes:
        pcm = np.frombuffer(pcm16(samples), "<i2").astype(np.int32)
        magnitude = np.minimum(np.abs(pcm), 32635) + 132  # the bias of G.711, in 16-bit steps
        exponent = np.floor(np.log2(magnitude)).astype(np.int32) - 7
        mantissa = (magnitude >> (exponent + 3)) & 15
        sign = np.where(pcm < 0, 128, 0)
        return bytes((~(sign | (exponent << 4) | mantissa) & 255).astype(np.uint8).tobytes())


class AlawEncoder(PcmEncoder):
    """Encodes G.711 A-law, the format of telephony outside of North America and Japan."""

    def feed(self, samples: Samples) -> bytes:
        pcm = np.frombuffer(pcm16(samples), "<i2").astype(np.int32) >> 3  # 13 bits
        magnitude = np.where(pcm < 0, ~pcm, pcm)
        exponent = np.maximum(np.floor(np.log2(np.maximum(magnitude, 1))).astype(np.int32) - 4, 0)
        mantissa = (magnitude >> np.maximum(exponent, 1)) & 15
        mask = np.where(pcm < 0, 0x55, 0xD5)  # the sign, and every other bit inverted
        return bytes((((exponent << 4) | mantissa) ^ mask).astype(np.uint8).tobytes())


class ResamplingEncoder:
    """Resamples what it is fed for another encoder."""

    def __init__(self, encoder: Encoder, rate_hz: int) -> None:
        import soxr

        self._encoder = encoder
        self._stream = soxr.ResampleStream(CLOCKS.sample_rate_hz, rate_hz, 1, dtype="float32", quality="HQ")

    def feed(self, samples: Samples) -> bytes:
        ready = self._stream.resample_chunk(samples)
        return self._encoder.feed(ready) if len(ready) else b""

    def finish(self) -> bytes:
        rest = self._stream.resample_chunk(np.zeros(0, np.float32), last=True)
        return (self._encoder.feed(rest) if len(rest) else b"") + self._encoder.finish()


class _Output(list[bytes]):
    """A file without `seek`, so that FFmpeg writes formats that need none."""

    def write(self, data: Any) -> int:
        self.append(bytes(data))
        return len(data)


class FFmpegEncoder:
    """Encodes with one of FFmpeg's codecs through PyAV."""

    def __init__(
        self,
        muxer: str,
        codec: str,
        default_bit_rate: int | None,
        options: dict[str, str],
        rate_hz: int,
        bit_rate: int | None,
        file: BinaryIO | None = None,
    ) -> None:
        """Open an encoder; a lossless codec has no default bit rate and ignores `bit_rate`.

        With `file`, which can seek, it writes there, and `feed` and `finish` return nothing: for formats such as
        MP4, whose index is at the end.
        """
        try:
            import av
        except ImportError as error:
            raise ConfigError(
                f"{muxer} needs the package av",
                allowed="wav and pcm without it",
                fix=install_command("server"),
            ) from error
        self._av, self._rate_hz, self._muxer = av, rate_hz, muxer
        self._output = _Output()
        # Each packet at once: FFmpeg would otherwise fill 32 KB first, four seconds of MP3.
        self._container = av.open(
            file or self._output, "w", format=muxer, options=options, container_options={"flush_packets": "1"}
        )
        # Any: PyAV has no type for the stream of a codec whose name is not a literal.
        self._stream = cast("Any", self._container.add_stream(codec, rate=rate_hz, layout="mono"))
        if default_bit_rate is not None:
            self._stream.bit_rate = bit_rate or default_bit_rate
        self._encoded_samples = 0

    def feed(self, samples: Samples) -> bytes:
        if not len(samples):
            return b""
        check_samples(samples)
        pcm = np.frombuffer(pcm16(samples), np.int16)
        frame = self._av.AudioFrame.from_ndarray(pcm.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts = self._rate_hz, self._encoded_samples
        self._encoded_samples += len(samples)
        return self._encode(frame)

    def finish(self) -> bytes:
        return self._encode(None)

    def _encode(self, frame: Any) -> bytes:
        """Encode one frame, or all that is left for None."""
        try:
            for packet in self._stream.encode(frame):
                self._container.mux(packet)
            if frame is None:
                self._container.close()
        except self._av.FFmpegError as error:
            raise OutputError(
                f"the {self._muxer} encoder failed", got=str(error), fix="Ask for wav or pcm."
            ) from error
        encoded = b"".join(self._output)
        self._output.clear()
        return encoded


FORMATS: Final[Mapping[str, Format]] = {
    # No Xing header: it counts frames, and could only be written after the last.
    "mp3": Format(
        media_type="audio/mpeg",
        open=partial(FFmpegEncoder, "mp3", "libmp3lame", 64_000, {"write_xing": "0", "id3v2_version": "0"}),
    ),
    # Pages of 60 ms instead of a second: a player can start after one page.
    "opus": Format(
        media_type="audio/ogg",
        open=partial(FFmpegEncoder, "ogg", "libopus", 32_000, {"page_duration": "60000"}),
        rates_hz=OPUS_RATES_HZ,
    ),
    "aac": Format(media_type="audio/aac", open=partial(FFmpegEncoder, "adts", "aac", 64_000, {})),
    "flac": Format(media_type="audio/flac", open=partial(FFmpegEncoder, "flac", "flac", None, {})),
    "wav": Format(media_type="audio/wav", open=lambda rate_hz, _: WavEncoder(rate_hz), cheap=True),
    "pcm": Format(media_type="audio/pcm", open=lambda *_: PcmEncoder(), cheap=True),
    "ulaw": Format(media_type="audio/basic", open=lambda *_: MulawEncoder(), cheap=True),
    "alaw": Format(media_type="audio/pcma", open=lambda *_: AlawEncoder(), cheap=True),
}


def check_format(name: str, sample_rate_hz: int) -> Format:
    """Return the format of that name, or raise `ConfigError` if there is none or it lacks the rate."""
    if name not in FORMATS:
        raise ConfigError(
            "no such format", got=repr(name), allowed=", ".join(FORMATS), param="response_format"
        )
    form = FORMATS[name]
    if sample_rate_hz not in form.rates_hz:
        raise ConfigError(
            f"{name} cannot have that sample rate",
            got=f"{sample_rate_hz} Hz",
            allowed=", ".join(str(rate) for rate in form.rates_hz),
            param="sample_rate",
        )
    return form


def open_encoder(
    name: str, *, sample_rate_hz: int = CLOCKS.sample_rate_hz, bit_rate: int | None = None
) -> Encoder:
    """Return a new encoder of samples at the engine's rate.

    Args:
        name: A key of `FORMATS`.
        sample_rate_hz: The rate of the encoded audio.
        bit_rate: Bits per second of a lossy format; None takes the format's default.
    """
    encoder = check_format(name, sample_rate_hz).open(sample_rate_hz, bit_rate)
    return encoder if sample_rate_hz == CLOCKS.sample_rate_hz else ResamplingEncoder(encoder, sample_rate_hz)
