"""The iterator over a request's audio that `TTS.stream` returns."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator
from contextlib import suppress

from nightingale.engine.session import Session
from nightingale.types import AudioChunk, Metrics


class Stream(Iterator[AudioChunk]):
    """Iterate over audio chunks while they are generated.

    Closing the stream, or dropping the last reference to it, cancels the request.
    """

    def __init__(self, session: Session, owner: object) -> None:
        """Read from `session`, and keep its `owner`, the engine, alive meanwhile."""
        self._session = session
        self._chunks = _chunks(session, owner)
        # A generator that was never started does not run its `finally`.
        weakref.finalize(self, session.cancel).atexit = False

    def __next__(self) -> AudioChunk:
        return next(self._chunks)

    def close(self) -> None:
        """Cancel the request. It may be called twice, at the end, and while another thread reads."""
        self._session.cancel()
        with suppress(ValueError):  # another thread waits inside the generator; `cancel` has woken it
            self._chunks.close()

    @property
    def metrics(self) -> Metrics:
        """Timings and counts so far."""
        return self._session.timing.metrics()

    @property
    def seed(self) -> int:
        """The seed that generates this audio again, bit for bit if the engine runs no other request."""
        return self._session.request.seed


def _chunks(session: Session, owner: object) -> Generator[AudioChunk, None, None]:
    try:
        yield from session.chunks()
    finally:
        session.cancel()
        del owner
