"""Encoded audio with timestamps: the encoder that all protocols use, and the time of each segment of the text.

The engine knows the first and last sample of each segment (a sentence, or a part of a long one). It does not
know when a word within a segment is said, so word timestamps are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel

from nightingale.audio.encoders.streaming import FORMATS, check_format, open_encoder
from nightingale.clocks import CLOCKS
from nightingale.errors import ConfigError
from nightingale.types import AudioChunk, Samples, SegmentStart

Timestamps = Literal["none", "segment", "word"]
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
        self, chunks: AsyncIterable[AudioChunk]
    ) -> AsyncGenerator[tuple[list[TimedSegment], bytes], None]:
        """Yield segments that have ended and the bytes that follow; both may be empty."""
        timer, is_first = SegmentTimer(), True
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


class TimedSegment(BaseModel):
    """A segment of the text and when it is said."""

    text: str
    """The text as spoken: numbers and symbols are written out."""
    start: float
    end: float
    """Both are seconds from the beginning, without the pause after the segment."""


class SegmentTimer:
    """Computes the segments of one utterance."""

    def __init__(self) -> None:
        self._samples, self._rate_hz = 0, 1
        self._current: tuple[SegmentStart, int] | None = None

    def add(self, chunk: AudioChunk) -> list[TimedSegment]:
        """Return the segments that ended before this chunk."""
        self._rate_hz = chunk.sample_rate_hz
        ended = self.finish() if chunk.begins is not None else []
        if chunk.begins is not None and chunk.begins.text:
            self._current = (chunk.begins, self._samples)
        self._samples += len(chunk.samples)
        return ended

    def finish(self) -> list[TimedSegment]:
        """Return the segment that ends with the last chunk."""
        if self._current is None:
            return []
        (segment, start), self._current = self._current, None
        end = max(start, self._samples - segment.pause_samples)
        text = " ".join(segment.text.split())
        return [TimedSegment(text=text, start=self._seconds(start), end=self._seconds(end))]

    def _seconds(self, samples: int) -> float:
        return round(samples / self._rate_hz, 3)


def check_timestamps(timestamps: Timestamps | None) -> None:
    if timestamps == "word":
        raise ConfigError(
            "word timestamps are not available",
            got='timestamps="word"',
            allowed='"segment", which times sentences and parts of long ones, or "none"',
            param="timestamps",
        )


def format_srt(segments: list[TimedSegment]) -> str:
    """Format the segments as SubRip subtitles."""
    return "\n".join(
        f"{number}\n{_clock(segment.start)} --> {_clock(segment.end)}\n{segment.text}\n"
        for number, segment in enumerate(segments, start=1)
    )


def _clock(seconds: float) -> str:
    minutes, ms = divmod(round(1000 * seconds), 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{ms // 1000:02d},{ms % 1000:03d}"
