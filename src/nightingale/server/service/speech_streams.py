"""Streams of speech that the protocols read, their encoding, and the time of each segment of the text.

A segment is a sentence, or a part of a long one. Words are timed if a request asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from pydantic import BaseModel

from nightingale.audio.encoders.streaming import FORMATS, check_format, open_encoder
from nightingale.clocks import CLOCKS
from nightingale.engine.aio import iter_chunks
from nightingale.engine.requests.live import LiveSession
from nightingale.engine.session import Session
from nightingale.engine.stream_capacity import QueuePlace
from nightingale.errors import NightingaleError
from nightingale.server.metrics import ServerMetrics
from nightingale.server.tenants.tenant_usage import TenantRequest
from nightingale.types import AudioChunk, Metrics, Samples, SegmentStart, TextWarning, TimedWord

OnClose = Callable[["SpeechStream"], None]
"""Called once, with the stream and whether it was read to its end."""
INLINE_SAMPLES: Final = round(0.5 * CLOCKS.sample_rate_hz)
"""Less audio than this is encoded in the event loop (a few milliseconds), more in a thread."""
FIRST_SAMPLES: Final = round(0.1 * CLOCKS.sample_rate_hz)
"""The first bytes are encoded from this much audio at a time: each frame that FFmpeg encodes passes Python's
lock to the engine and waits to get it back, and a whole chunk of frames would delay the first audio."""


class SpeechStream:
    """The audio of one request: an async context manager, and an async iterable of chunks to be read once."""

    def __init__(
        self, session: Session, counters: ServerMetrics, on_close: OnClose, tenant_request: TenantRequest
    ) -> None:
        self.tenant_request = tenant_request
        self.seed = session.request.seed
        self.voice_name = session.request.voice.name
        self.queue_position = session.first_position
        """The position in the queue on arrival; 0 if the request could start at once."""
        self._session, self._counters, self._on_close = session, counters, on_close
        self._open = True
        self.outcome = "open"
        """One of open, completed, cancelled and failed."""
        self._chunks = self._read()

    @property
    def warnings(self) -> tuple[TextWarning, ...]:
        """Parts of the text that are not spoken."""
        return tuple(self._session.warnings)

    @property
    def metrics(self) -> Metrics:
        return self._session.timing.metrics()

    @property
    def place(self) -> QueuePlace | None:
        """The place in the queue; None if the request has started or starts now."""
        return self._session.place

    def cancel(self) -> None:
        """Stop the engine's work on the request; after the end this does nothing."""
        self._session.cancel()
        self._close(cancelled=True)

    def __aiter__(self) -> AsyncGenerator[AudioChunk, None]:
        return self._chunks

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
        with contextlib.suppress(RuntimeError):  # another task is reading; the cancellation wakes it
            await self._chunks.aclose()

    async def _read(self) -> AsyncGenerator[AudioChunk, None]:
        buffered_until_s: float | None = None
        try:
            async with contextlib.aclosing(iter_chunks(self._session)) as chunks:
                async for chunk in chunks:
                    now_s = time.monotonic()
                    # An underrun: a player that started with the first chunk has run out of audio.
                    if buffered_until_s is not None and now_s > buffered_until_s:
                        self._counters.underruns.inc()
                    buffered_until_s = max(now_s, buffered_until_s or now_s) + chunk.seconds
                    yield chunk
        except NightingaleError:
            self._close(failed=True)
            raise
        except (GeneratorExit, asyncio.CancelledError):
            self.cancel()
            raise
        self._close()

    def _close(self, *, cancelled: bool = False, failed: bool = False) -> None:
        if self._open:
            self._open = False
            self.outcome = "cancelled" if cancelled else "failed" if failed else "completed"
            self._counters.count_request(self.metrics, cancelled=cancelled, failed=failed)
            self._on_close(self)


class LiveSpeechStream(SpeechStream):
    """A stream whose text is still being written. The methods are those of the engine's `LiveSession`."""

    def __init__(
        self, session: LiveSession, counters: ServerMetrics, on_close: OnClose, tenant_request: TenantRequest
    ) -> None:
        super().__init__(session.audio, counters, on_close, tenant_request)
        self._live = session
        self.flush, self.end = session.flush, session.end

    def push(self, text: str) -> None:
        self.tenant_request.charge(len(text))
        self._counters.characters.inc(len(text))
        self._live.push(text)


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

    async def encode(self, chunks: AsyncIterable[AudioChunk]) -> AsyncGenerator[tuple[Timings, bytes], None]:
        """Yield the segments and words that have ended, and the bytes that follow; each may be empty."""
        timer, is_first = SegmentTimer(), True
        async for chunk in chunks:
            timings, samples = Timings(timer.add(chunk), chunk.words), chunk.samples
            if is_first:
                data, samples = self._encode_first(samples)
                yield timings, data
                is_first, timings = False, Timings()
            yield timings, await self._encode(samples)
        if not is_first:
            yield Timings(), self._encoder.finish()
            yield Timings(timer.finish()), b""

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


class Timings(NamedTuple):
    """The parts of the text that have ended with some audio."""

    segments: Sequence[TimedSegment] = ()
    words: Sequence[TimedWord] = ()
    """Empty unless the request asked for them."""


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
        start_s, end_s = round(start / self._rate_hz, 3), round(end / self._rate_hz, 3)
        return [TimedSegment(text=" ".join(segment.text.split()), start=start_s, end=end_s)]
