"""A request inside the worker: its session, its text, and the segment that is being synthesized."""

from __future__ import annotations

from dataclasses import dataclass

from nightingale.engine.rendering.utterance import Utterance
from nightingale.engine.requests.segments import SegmentQueue, TextSegment
from nightingale.engine.session import Session


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
    parked: bool = False
    """Neither queued nor in a slot: it waits for more text, or for its listener."""

    @property
    def is_new(self) -> bool:
        """True until its first block was given to the renderer."""
        return self.session.timing.tokens == 0

    @property
    def may_resume(self) -> bool:
        """True if a parked job can continue: its listener caught up, or its text changed."""
        can_continue = self.segments.waiting if self.segment is None else not self.session.is_ahead
        return self.parked and can_continue
