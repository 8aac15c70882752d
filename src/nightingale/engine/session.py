"""A request from its opening to its last sample: everything that changes lives here, and nothing else does.

The worker's thread writes; the listener's thread reads. They meet in one small buffer behind one lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from nightingale.clocks import CLOCKS
from nightingale.decoding.decoding import DraftStats
from nightingale.engine.rendering.gaps import ChunkGapStats
from nightingale.engine.requests.segment_queue import SegmentQueue as SegmentQueue
from nightingale.engine.requests.segments import TextSegment
from nightingale.errors import NightingaleError
from nightingale.types import AudioChunk, SegmentStart, Metrics, Samples, Sampling
from nightingale.voices.voice import Voice


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for, settled: defaults filled in, the voice resolved, the seed drawn."""

    voice: Voice
    sampling: Sampling
    exaggeration: float
    seed: int
    speed: float = 1.0
    """Of the finished speech; its pitch stays."""


class Session:
    """One request. `segments` may still be arriving while the first of them is heard."""

    def __init__(self, request: Request, *, ahead_seconds: float, on_change: Callable[[], None]) -> None:
        """on_change: called when the listener has read or left, so that the worker may go on."""
        self.request = request
        self._on_change = on_change
        self.timing = Timing()
        self._ahead_seconds = ahead_seconds
        self._changed = threading.Condition()
        self._chunks: deque[AudioChunk] = deque()
        self._unread_samples = 0
        self._error: NightingaleError | None = None
        self._ended = False
        self._cancelled = False
        self._notify: Callable[[], None] | None = None
        self._begins: SegmentStart | None = None
        """What the next samples begin."""

    def reached(self, segment: TextSegment) -> None:
        """All before this segment was rendered, and it comes next."""
        self._begins = SegmentStart(text=segment.text if segment.text_ids else "", pause_samples=segment.pause_samples)

    def put(self, samples: Samples) -> None:
        """The worker has rendered something."""
        with self._changed:
            self.timing.heard(len(samples))
            if len(samples) and not self._cancelled:
                rate_hz, begins, self._begins = CLOCKS.sample_rate_hz, self._begins, None
                self._chunks.append(AudioChunk(samples=samples, sample_rate_hz=rate_hz, begins=begins))
                self._unread_samples += len(samples)
            self._tell()

    def end(self, error: NightingaleError | None = None) -> None:
        """Nothing more will come, for this reason if there is one."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
                self.timing.end()
            self._tell()

    def cancel(self) -> None:
        """The listener has left; the worker frees the slot at its next step."""
        with self._changed:
            self._cancelled = True
            self._chunks.clear()
            self._unread_samples = 0
            self._tell()
        self._on_change()

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    @property
    def is_ahead(self) -> bool:
        """The listener has enough to listen to for a while."""
        return self._unread_samples >= self._ahead_seconds * CLOCKS.sample_rate_hz

    def chunks(self) -> Iterator[AudioChunk]:
        """What was rendered, as it comes, until the end."""
        while True:
            with self._changed:
                while not self._chunks and not self._ended and not self._cancelled:
                    self._changed.wait()
            try:
                chunk = self.take()
            except EOFError:
                return
            if chunk is not None:
                yield chunk

    def listen(self, notify: Callable[[], None]) -> None:
        """Call `notify`, in the worker's thread, whenever there is something to take. It must not block."""
        with self._changed:
            self._notify = notify
            self._tell()

    def take(self) -> AudioChunk | None:
        """The next chunk without waiting: None if there is none yet. EOFError, or what failed, at the end."""
        with self._changed:
            if not self._chunks:
                if self._error is not None:
                    raise self._error
                if self._ended or self._cancelled:
                    raise EOFError
                return None
            chunk = self._chunks.popleft()
            self._unread_samples -= len(chunk.samples)
        self._on_change()
        return chunk

    def _tell(self) -> None:
        """Something changed for the listener. Called under the lock."""
        self._changed.notify_all()
        if self._notify is not None:
            self._notify()


@dataclass(slots=True)
class Timing:
    """When things happened, measured from the opening of the request."""

    opened_s: float = field(default_factory=time.perf_counter)
    admitted_s: float | None = None
    first_audio_s: float | None = None
    ended_s: float | None = None
    samples: int = 0
    tokens: int = 0
    retries: int = 0
    """Segments that went wrong and were drawn again."""
    stage_ms: dict[str, float] = field(default_factory=dict)
    tally: DraftStats = field(default_factory=DraftStats)
    """Of guesses at tokens to come."""
    memory_bytes: int = 0
    """Of T3's memory, for the longest of its segments."""
    gaps: ChunkGapStats = field(default_factory=ChunkGapStats)
    """Between one chunk and the next."""
    _last_chunk_s: float | None = None
    _booking: threading.Lock = field(default_factory=threading.Lock)

    def heard(self, samples: int) -> None:
        now = time.perf_counter()
        if samples:
            self.first_audio_s = self.first_audio_s or now
            if self._last_chunk_s is not None:
                self.gaps.add(1000 * (now - self._last_chunk_s))
            self._last_chunk_s = now
        self.samples += samples

    def remembered(self, count: int) -> None:
        """A segment had filled so many bytes of T3's memory when it was spoken."""
        self.memory_bytes = max(self.memory_bytes, count)

    def end(self) -> None:
        self.ended_s = time.perf_counter()

    def lap(self, stage: str, since_s: float) -> float:
        """Book the time since `since_s` on a stage, which several threads may work at; gives the time now."""
        now = time.perf_counter()
        with self._booking:
            self.stage_ms[stage] = self.stage_ms.get(stage, 0.0) + 1000 * (now - since_s)
        return now

    def metrics(self) -> Metrics:
        end = self.ended_s or time.perf_counter()
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
            drafted=self.tally.drafted,
            accepted=self.tally.accepted,
            memory_bytes=self.memory_bytes,
            chunk_gap_mean_ms=self.gaps.sum_ms / max(1, self.gaps.count),
            chunk_gap_longest_ms=self.gaps.longest_ms,
        )
