"""A request inside the worker: its session, its text, and the segment that is being synthesized."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

from nightingale.backends.base import Block
from nightingale.clocks import CLOCKS
from nightingale.engine.rendering.utterance import Utterance
from nightingale.engine.requests.segments import SegmentQueue, TextSegment
from nightingale.engine.session import Session
from nightingale.types import Samples


class BlockRow(NamedTuple):
    """A block, and the request and utterance that it belongs to."""

    request: int
    utterance: Utterance
    block: Block


@dataclass(slots=True)
class Job:
    """A request inside the worker."""

    session: Session
    segments: SegmentQueue
    chars: int | None = None
    """Characters of its text; None while the text still arrives."""
    started: int = 0
    """Segments that were started."""
    segment: TextSegment | None = None
    """The next segment."""
    utterance: Utterance | None = None
    """The segment that is being synthesized."""
    in_flight_s: float = 0.0
    """Audio that is being rendered."""
    held: list[Samples] = field(default_factory=list)
    """First audio that is kept until the next block can follow it in time."""
    held_until_s: float = 0.0
    parked: bool = False
    """Neither queued nor in a slot: it waits for more text, or for its listener."""

    @property
    def held_s(self) -> float:
        """Seconds of the audio that is kept."""
        return sum(map(len, self.held)) / CLOCKS.sample_rate_hz

    @property
    def is_silent(self) -> bool:
        """True until the first audio was rendered."""
        return self.session.timing.first_audio_s is None and not self.held

    def hold(self, audio: Samples, seconds: float) -> None:
        """Keep the first audio for a while."""
        self.held.append(audio)
        self.held_until_s = time.perf_counter() + seconds
        if seconds <= 0:
            self.flush()

    def flush(self) -> None:
        """Hand out the audio that was kept."""
        held, self.held = self.held, []
        for audio in held:
            self.session.put(audio)

    @property
    def is_new(self) -> bool:
        """True until its first block was given to the renderer."""
        return self.session.timing.tokens == 0

    @property
    def may_resume(self) -> bool:
        """True if a parked job can continue: its listener caught up, or its text changed."""
        can_continue = self.segments.waiting if self.segment is None else not self.session.is_ahead
        return self.parked and can_continue
