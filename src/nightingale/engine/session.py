"""A request from opening to last sample. All of its mutable state is here.

The worker thread writes audio, the listener's thread reads it; they share one buffer behind one lock.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from nightingale.clocks import CLOCKS
from nightingale.engine.faults import check_finite, engine_failed
from nightingale.engine.monotonic_clock import Clock, system_clock
from nightingale.engine.requests.segments import TextSegment
from nightingale.engine.serial_calls import SerialCalls
from nightingale.engine.stream_capacity import QueuePlace
from nightingale.errors import NightingaleError
from nightingale.types import AudioChunk, Metrics, Samples, Sampling, SegmentStart, TextWarning, TimedWord
from nightingale.voices.voice import Voice

SAMPLE_SIZE: Final = 512
"""Large enough that two times in three the p95 lies between the 94th and the 96th percentile of all gaps."""

FIRST_AUDIO_S: Final = 0.25
"""The deadline of a request's first audio, after it was opened."""
LATE_S: Final = 10.0
"""A stream that is later than this has no earlier deadline than one that is so late: otherwise, on a machine that is
too slow for it, no other request would start until its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request with defaults filled in, its voice resolved and its seed drawn."""

    voice: Voice
    sampling: Sampling
    exaggeration: float
    seed: int
    speed: float = 1.0
    """Playback speed of the finished speech; the pitch stays."""


@dataclass(slots=True)
class ChunkGapStats:
    """Count every gap between chunks and keep a uniform random sample of them (reservoir sampling)."""

    count: int = 0
    sum_ms: float = 0.0
    longest_ms: float = 0.0
    sample_ms: list[float] = field(default_factory=list)
    _rng: random.Random | None = None  # created on demand: short requests never need it

    def add(self, gap_ms: float) -> None:
        self.count += 1
        self.sum_ms += gap_ms
        self.longest_ms = max(self.longest_ms, gap_ms)
        if len(self.sample_ms) < SAMPLE_SIZE:
            self.sample_ms.append(gap_ms)
            return
        self._rng = self._rng or random.Random(0)
        if (index := self._rng.randrange(self.count)) < SAMPLE_SIZE:
            self.sample_ms[index] = gap_ms


@dataclass(slots=True)
class Timing:
    """Timestamps and counters of one request."""

    clock: Clock = system_clock
    opened_s: float = field(init=False)
    admitted_s: float | None = None
    first_audio_s: float | None = None
    ended_s: float | None = None
    samples: int = 0
    tokens: int = 0
    retries: int = 0
    stage_ms: dict[str, float] = field(default_factory=dict)
    kv_bytes: int = 0
    """KV cache bytes of the longest segment."""
    gaps: ChunkGapStats = field(default_factory=ChunkGapStats)
    _played_from_s: float = 0.0
    """The time of the first audio; later, if the stream is later than LATE_S."""
    _last_chunk_s: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.opened_s = self.clock()

    @property
    def deadline_s(self) -> float:
        """When a listener that plays from the first chunk on runs out of audio."""
        if self.first_audio_s is None:
            return self.opened_s + FIRST_AUDIO_S
        return self._played_from_s + self.samples / CLOCKS.sample_rate_hz

    def delivered(self) -> None:
        """Note that the listener can have a chunk."""
        now = self.clock()
        if self.first_audio_s is None:
            self.first_audio_s = self._played_from_s = now
        self._played_from_s = max(self._played_from_s, now - LATE_S - self.samples / CLOCKS.sample_rate_hz)
        if self._last_chunk_s is not None:
            self.gaps.add(1000 * (now - self._last_chunk_s))
        self._last_chunk_s = now

    def record(self, stage: str, started_s: float) -> float:
        """Add the time since `started_s` to a stage, which several threads may run; return the time now."""
        now = self.clock()
        with self._lock:
            self.stage_ms[stage] = self.stage_ms.get(stage, 0.0) + 1000 * (now - started_s)
        return now

    def segmenting(self, segments: Iterator[TextSegment]) -> Iterator[TextSegment]:
        """Yield segments and record the time they take as the stage "text"."""
        started = self.clock()
        for segment in segments:
            self.record("text", started)
            yield segment
            started = self.clock()

    def metrics(self) -> Metrics:
        end = self.ended_s or self.clock()
        return Metrics(
            ttfa_ms=1000 * ((self.first_audio_s or end) - self.opened_s),
            total_ms=1000 * (end - self.opened_s),
            queue_ms=1000 * ((self.admitted_s or end) - self.opened_s),
            audio_seconds=self.samples / CLOCKS.sample_rate_hz,
            tokens=self.tokens,
            retries=self.retries,
            stage_ms=dict(self.stage_ms),
            chunk_gaps_ms=tuple(self.gaps.sample_ms),
            chunk_gaps=self.gaps.count,
            memory_bytes=self.kv_bytes,
            chunk_gap_mean_ms=self.gaps.sum_ms / max(1, self.gaps.count),
            chunk_gap_longest_ms=self.gaps.longest_ms,
        )


class Session:
    """One request between the worker and its listener."""

    def __init__(
        self,
        request: Request,
        *,
        ahead_seconds: float,
        on_change: Callable[[], None],
        mark: Callable[[Samples], Samples] | None = None,
        clock: Clock = system_clock,
    ) -> None:
        """Call `on_change` when the listener reads or leaves; beyond `ahead_seconds` unread, it is stalled.

        mark: marks each chunk, if audio is watermarked. clock: the one of the worker that it is submitted to.
        """
        self.request = request
        self.timing = Timing(clock)
        self._mark = mark
        self._calls = SerialCalls()
        self._on_change = on_change
        self._ahead_samples = ahead_seconds * CLOCKS.sample_rate_hz
        self._changed = threading.Condition()
        self._chunks: deque[AudioChunk] = deque()
        self._unread_samples = 0
        self._error: NightingaleError | None = None
        self._ended = False
        self.cancelled = False
        self.plays = True
        """False if the audio is wanted as a whole: its blocks then have the sizes of a request that runs alone."""
        self.find_place: Callable[[], QueuePlace | None] = lambda: None
        """Returns the place in the queue; set by the worker."""
        self.first_position = 0
        """The position in the queue on arrival; 0 if the request could start at once."""
        self.warnings: list[TextWarning] = []
        """Parts of the text that are not spoken; a live session adds to them."""
        self._notify: Callable[[], None] | None = None
        self._segment_start: SegmentStart | None = None
        """The segment start that belongs to the next samples."""
        self._segment: TextSegment | None = None
        """The segment whose samples are put."""
        self._segment_start_s = 0.0
        self._words: list[TimedWord] = []
        """Words that belong to the next samples."""

    def reached(self, segment: TextSegment, words: Iterable[TimedWord] = ()) -> None:
        """Note that the next samples are this segment's, and the words that end with them."""
        if segment is not self._segment:
            self._segment = segment
            self._segment_start_s = self.timing.samples / CLOCKS.sample_rate_hz
            text = segment.text if segment.text_ids else ""
            self._segment_start = SegmentStart(text=text, pause_samples=segment.pause_samples)
        start_s = self._segment_start_s
        self._words += [replace(w, start_s=w.start_s + start_s, end_s=w.end_s + start_s) for w in words]

    def put(self, samples: Samples) -> None:
        """Append rendered audio."""
        if not len(samples):
            return
        begins = self._segment_start
        self._segment_start = None
        words = tuple(self._words)
        self._words = []
        chunk = AudioChunk(samples=samples, sample_rate_hz=CLOCKS.sample_rate_hz, begins=begins, words=words)
        with self._changed:
            self.timing.samples += len(samples)
            self._unread_samples += 0 if self.cancelled else len(samples)
        if self._mark is None:
            self._deliver(chunk)
        else:
            self._calls.submit(partial(self._mark_and_deliver, chunk, self._mark))

    def _mark_and_deliver(self, chunk: AudioChunk, mark: Callable[[Samples], Samples]) -> None:
        """Mark a chunk in a thread of its own: the engine's would keep all other listeners waiting."""
        if self.cancelled:
            return
        try:
            self._deliver(replace(chunk, samples=check_finite(mark(chunk.samples), "watermark")))
        except Exception as error:
            self._end(engine_failed(error))
            self.cancel()

    def _deliver(self, chunk: AudioChunk) -> None:
        with self._changed:
            self.timing.delivered()
            if not self.cancelled:
                self._chunks.append(chunk)
            self._signal()

    def end(self, error: NightingaleError | None = None) -> None:
        """End the stream after the audio that was put, with an error if there is one."""
        if self._mark is None:
            self._end(error)
        else:
            self._calls.submit(partial(self._end, error))

    def _end(self, error: NightingaleError | None) -> None:
        with self._changed:
            if not self._ended:
                self._ended = True
                self._error = error
                self.timing.ended_s = self.timing.clock()
            self._signal()

    def cancel(self) -> None:
        """Stop listening; the worker frees the request's slot at its next step."""
        with self._changed:
            self.cancelled = True
            self._chunks.clear()
            self._unread_samples = 0
            self._signal()
        self._on_change()

    @property
    def wait_s(self) -> float | None:
        """Estimated seconds until synthesis starts: 0 once it has, None if that is not known."""
        return 0.0 if (place := self.place) is None else place.wait_s

    @property
    def place(self) -> QueuePlace | None:
        """The place in the queue; None if the request has started or starts now."""
        return None if self.timing.admitted_s is not None else self.find_place()

    @property
    def is_ahead(self) -> bool:
        """True if the listener has so much unread audio that the request may wait."""
        return self._unread_samples >= self._ahead_samples

    def chunks(self) -> Iterator[AudioChunk]:
        """Yield audio as it is rendered, until the end."""
        while True:
            with self._changed:
                while not self._chunks and not self._ended and not self.cancelled:
                    self._changed.wait()
            try:
                chunk = self.take()
            except EOFError:
                return
            if chunk is not None:
                yield chunk

    def listen(self, notify: Callable[[], None]) -> None:
        """Call `notify` in the worker's thread whenever there is something to take. It must not block."""
        with self._changed:
            self._notify = notify
            self._signal()

    def take(self) -> AudioChunk | None:
        """Return the next chunk without waiting, or None if there is none yet.

        Raises:
            EOFError: The stream has ended.
            NightingaleError: The request failed.
        """
        with self._changed:
            if not self._chunks:
                if self._error is not None:
                    raise self._error
                if self._ended or self.cancelled:
                    raise EOFError
                return None
            chunk = self._chunks.popleft()
            self._unread_samples -= len(chunk.samples)
        self._on_change()
        return chunk

    def _signal(self) -> None:
        """Wake the listener. Called under the lock."""
        self._changed.notify_all()
        if self._notify is not None:
            self._notify()
