"""MP3, Opus, AAC and FLAC through PyAV (FFmpeg's libraries, no program), as a stream that cannot seek."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from nightingale.audio.encoders.wav import check_samples
from nightingale.errors import ConfigError, OutputError
from nightingale.types import AudioChunk, Samples


class Sink:
    """A file that can only be written to; FFmpeg then writes formats that need no going back."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken


class FFmpegEncoder:
    def __init__(
        self, muxer: str, codec: str, rate_hz: int, bit_rate: int | None, options: Mapping[str, str]
    ) -> None:
        try:
            import av
        except ImportError as error:
            raise ConfigError(
                f"{muxer} needs the package av",
                got="an installation without it",
                allowed="wav and pcm without it",
                fix="pip install 'nightingale-tts[server]'",
            ) from error
        self._av, self._rate_hz, self._muxer = av, rate_hz, muxer
        self._sink = Sink()
        # Each packet at once: FFmpeg would otherwise fill 32 KB first, four seconds of MP3.
        self._container = av.open(
            self._sink, "w", format=muxer, options=dict(options), container_options={"flush_packets": "1"}
        )
        # Any: PyAV types the stream of a codec that is not spelled out as one of any kind.
        self._stream = cast("Any", self._container.add_stream(codec, rate=rate_hz, layout="mono"))
        if bit_rate is not None:
            self._stream.bit_rate = bit_rate
        self._at = 0

    def feed(self, samples: Samples) -> bytes:
        if not len(samples):
            return b""
        check_samples(samples)
        pcm = np.frombuffer(AudioChunk(samples=samples, sample_rate_hz=self._rate_hz).pcm16, np.int16)
        frame = self._av.AudioFrame.from_ndarray(pcm.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts = self._rate_hz, self._at
        self._at += len(samples)
        try:
            for packet in self._stream.encode(frame):
                self._container.mux(packet)
        except self._av.FFmpegError as error:
            raise self._broken(error) from error
        return self._sink.take()

    def finish(self) -> bytes:
        try:
            for packet in self._stream.encode(None):
                self._container.mux(packet)
            self._container.close()
        except self._av.FFmpegError as error:
            raise self._broken(error) from error
        return self._sink.take()

    def _broken(self, error: Exception) -> OutputError:
        return OutputError(
            f"the {self._muxer} encoder failed",
            got=str(error),
            allowed="sound of one rate, in order",
            fix="Ask for wav or pcm.",
        )
