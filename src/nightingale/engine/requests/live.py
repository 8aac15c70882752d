"""The objects through which a caller reads a request: `TTS.stream` and `TTS.session` return them.

A session takes text while it yields audio:

    with tts.session(voice="heart") as session:
        for token in language_model:
            session.push(token)
        session.end()
        for chunk in session:
            play(chunk)

Text may be pushed in one thread and audio read in another. `cancel` interrupts the speech (barge-in):
decoding stops within a step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Self

from nightingale.engine.faults import check_text
from nightingale.engine.requests.incremental_text import IncrementalSegmenter
from nightingale.engine.requests.request_segmenter import RequestSegmenter
from nightingale.engine.requests.segments import SegmentQueue, check_length
from nightingale.engine.session import Session
from nightingale.types import AudioChunk, Metrics, TextWarning


class RequestHandle:
    """A request in the hands of its caller. Dropping the last reference to it cancels the request."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # A generator that was never started does not run its `finally`.
        weakref.finalize(self, session.cancel).atexit = False

    @property
    def metrics(self) -> Metrics:
        """Timings and counts so far."""
        return self._session.timing.metrics()

    @property
    def warnings(self) -> tuple[TextWarning, ...]:
        """Parts of the text so far that are not spoken."""
        return tuple(self._session.warnings)


class Stream(RequestHandle, Iterator[AudioChunk]):
    """Iterate over audio chunks while they are generated.

    Closing the stream, or dropping the last reference to it, cancels the request.
    """

    def __init__(self, session: Session, owner: object) -> None:
        """Read from `session`, and keep its `owner`, the engine, alive meanwhile."""
        super().__init__(session)
        self._chunks = _read(session, owner)

    def __next__(self) -> AudioChunk:
        return next(self._chunks)

    def close(self) -> None:
        """Cancel the request. It may be called twice, at the end, and while another thread reads."""
        self._session.cancel()
        with suppress(ValueError):  # another thread waits inside the generator; `cancel` has woken it
            self._chunks.close()

    @property
    def wait_s(self) -> float | None:
        """Estimated seconds until synthesis starts: 0 once it has, None if that is not known."""
        return self._session.wait_s

    @property
    def seed(self) -> int:
        """The seed that generates this audio again, bit for bit if the engine runs no other request."""
        return self._session.request.seed


def _read(session: Session, owner: object) -> Generator[AudioChunk, None, None]:
    try:
        yield from session.chunks()
    finally:
        session.cancel()
        del owner


class LiveRequest(RequestHandle):
    """A request whose input still arrives. Iterating over it yields audio until all input is spoken."""

    def __init__(
        self, session: Session, segments: SegmentQueue, *, wake: Callable[[], None], owner: object
    ) -> None:
        """Call `wake` when there is new input, and keep `owner`, the engine, alive."""
        super().__init__(session)
        self._segments = segments
        self._wake = wake
        self._owner = owner

    def __iter__(self) -> Iterator[AudioChunk]:
        yield from self._session.chunks()  # a generator, which keeps the request alive while it is read

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.cancel()


class LiveSession(LiveRequest):
    """A request whose text still arrives. Iterating over it yields audio until the pushed text is spoken.

    Dropping the last reference to it cancels the request.
    """

    def __init__(
        self,
        session: Session,
        segments: SegmentQueue,
        *,
        text: IncrementalSegmenter,
        segmenter: RequestSegmenter,
        split_chars: int,
        max_chars: int,
        wake: Callable[[], None],
        owner: object,
    ) -> None:
        """Take up to `max_chars` per push, and split what `text` returns at `split_chars`."""
        super().__init__(session, segments, wake=wake, owner=owner)
        self.audio = session
        """The request behind it, whose chunks can be read without blocking."""
        self._text = text
        self._segmenter = segmenter
        self._split_chars = split_chars
        self._max_chars = max_chars

    def push(self, text: str) -> None:
        """Add text, in parts of any size. Raise TextError if it cannot be spoken, ConfigError after `end`."""
        check_text(text)
        check_length(len(text), self._max_chars)
        self._enqueue(self._text.push(text))

    def flush(self) -> None:
        """Speak all text pushed so far, without waiting for the end of its last sentence."""
        self._enqueue(self._text.flush())

    def end(self) -> None:
        """Declare the text complete. Calling it again has no effect."""
        try:
            self._enqueue(self._text.end())
        finally:  # the text is complete, even if the last of it is refused
            self._segments.closed = True
            self._wake()

    def cancel(self) -> None:
        """Stop speaking and drop audio that was not read yet."""
        self._session.cancel()

    def _enqueue(self, texts: list[str]) -> None:
        for text in texts:
            for segment in self._segmenter.segment(
                text, split_chars=self._split_chars, fill=True, continues=True, max_chars=self._max_chars
            ):
                self._segments.add(segment)
        if texts:
            self._wake()
