"""An audio encoder for the event loop: what takes long is done in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from nightingale.audio.encoders.streaming import FORMATS, check_format, open_encoder
from nightingale.clocks import CLOCKS
from nightingale.server.service.timestamps import SegmentTimer, TimedSegment
from nightingale.types import AudioChunk, Samples

INLINE_SAMPLES: Final = round(0.5 * CLOCKS.sample_rate_hz)
"""Less audio than this is encoded in the event loop (a few milliseconds), more in a thread."""
FIRST_SAMPLES: Final = round(0.1 * CLOCKS.sample_rate_hz)
"""The first bytes are encoded from this much audio at a time: each frame that FFmpeg encodes passes Python's
lock to the engine and waits to get it back, and a whole chunk of frames would delay the first audio."""


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The encoding of the audio that a client receives."""

    codec: str
    sample_rate_hz: int
    bit_rate: int | None = None
    """The bit rate in bits per second; None for lossless codecs and for a codec's default."""

    def __post_init__(self) -> None:
        """Raise ConfigError if the codec is unknown or does not support the sample rate."""
        check_format(self.codec, self.sample_rate_hz)


class AsyncEncoder:
    """Encodes the audio of one response, from its first sample to its last."""

    def __init__(self, output: OutputFormat, threads: Executor) -> None:
        self._cheap = FORMATS[output.codec].cheap
        self._encoder = open_encoder(
            output.codec, sample_rate_hz=output.sample_rate_hz, bit_rate=output.bit_rate
        )
        self._threads = threads

    async def encode(
        self, chunks: AsyncIterable[AudioChunk], timer: SegmentTimer
    ) -> AsyncGenerator[tuple[list[TimedSegment], bytes], None]:
        """Yield segments that have ended and the bytes that follow; both may be empty."""
        is_first = True
        async for chunk in chunks:
            segments, samples = timer.add(chunk), chunk.samples
            if is_first:
                data, samples = self._encode_first(samples)
                yield [], data
                is_first = False
            yield segments, await self._encode(samples)
        if not is_first:
            yield [], self._encoder.finish()
            yield timer.finish(), b""

    def _encode_first(self, samples: Samples) -> tuple[bytes, Samples]:
        """Encode only until the first bytes come out; return them and the samples that are left."""
        step = FIRST_SAMPLES if not self._cheap else max(1, len(samples))
        for end in range(step, len(samples) + step, step):
            if data := self._encoder.feed(samples[end - step : end]):
                return data, samples[end:]
        return b"", samples[:0]

    async def _encode(self, samples: Samples) -> bytes:
        if not len(samples):
            return b""
        if self._cheap or len(samples) < INLINE_SAMPLES:
            return self._encoder.feed(samples)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._encoder.feed, samples)
