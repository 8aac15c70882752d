"""A stream in its listener's hands."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator
from contextlib import suppress

from nightingale.engine.session import Session
from nightingale.types import AudioChunk, Metrics


class Stream(Iterator[AudioChunk]):
    """Audio as it comes, and what it has cost. Closing it, or letting go of it, stops the work."""

    def __init__(self, session: Session, keep: object) -> None:
        """keep: what must live as long as somebody listens."""
        self._session = session
        self._chunks = _chunks(session, keep)
        # A generator that was never asked for anything does not hear of its end.
        weakref.finalize(self, session.cancel).atexit = False

    def __next__(self) -> AudioChunk:
        return next(self._chunks)

    def close(self) -> None:
        """Say no more. Harmless at the end, twice, and while another thread listens."""
        self._session.cancel()
        with suppress(ValueError):  # somebody is waiting inside, and was told just now
            self._chunks.close()

    @property
    def metrics(self) -> Metrics:
        """What it has cost so far."""
        return self._session.timing.metrics()

    @property
    def seed(self) -> int:
        """With which it can be said again: bit for bit, if nobody else is speaking then or was now."""
        return self._session.request.seed


def _chunks(session: Session, keep: object) -> Generator[AudioChunk, None, None]:
    """A generator, because it hears of its own end: by `close`, or when nobody holds it any more."""
    try:
        yield from session.chunks()
    finally:
        session.cancel()
        del keep
