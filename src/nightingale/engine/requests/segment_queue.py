"""Queue of a request's text segments, between the thread that adds text and the worker thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from nightingale.engine.requests.segments import TextSegment as TextSegment


class SegmentQueue:
    """Text segments in order: either an iterator of all of them, or a queue that is filled until closed.

    It needs no lock: a deque's own operations are atomic, and only the worker thread takes segments.
    """

    def __init__(
        self, known: Iterator[TextSegment] | None = None, *, reached: Callable[[TextSegment], None]
    ) -> None:
        """Take segments from `known`, or else from `add`. Call `reached` when all before one are rendered."""
        self._known, self._reached = known or iter(()), reached
        self._added: deque[TextSegment] = deque()
        self.closed = known is not None
        """Whether no more segments will be added."""

    def add(self, segment: TextSegment) -> None:
        self._added.append(segment)

    def close(self) -> None:
        self.closed = True

    @property
    def waiting(self) -> bool:
        """Whether `next` can return a segment, or the final None."""
        return bool(self._added) or self.closed

    def next(self) -> TextSegment | None:
        """Return the next segment; None if there is none yet or, once closed, none left."""
        segment = next(self._known, None)
        if segment is None and self._added:
            segment = self._added.popleft()
        if segment is not None:
            self._reached(segment)
        return segment
