"""Text in as it is written, audio out while it still arrives: what a voice agent holds on to.

    with tts.session(voice="heart") as session:
        for token in language_model:
            session.push(token)
        session.end()
        for chunk in session:
            play(chunk)

Pushing and listening may happen in different threads. `cancel` is barge-in: decoding stops within a step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

from nightingale.models.defaults import ModelDefaults
from nightingale.engine.requests.incremental_text import IncomingText
from nightingale.engine.requests.segments import check_length, pieces_of
from nightingale.engine.session import Pieces, Session
from nightingale.text.frontend import Frontend
from nightingale.text.sentences import BREATH_CHARS
from nightingale.types import AudioChunk, Metrics


class LiveSession:
    """One answer that is still being written. Iterating over it gives audio until `end` and silence. Letting
    go of it stops the work."""

    def __init__(
        self,
        session: Session,
        pieces: Pieces,
        *,
        frontend: Frontend,
        defaults: ModelDefaults,
        language: str | None,
        max_chars: int,
        wake: Callable[[], None],
        keep: object,
    ) -> None:
        """max_chars: how much may be pushed at a time; in all there is no limit. keep: what must live as long
        as somebody writes or listens."""
        self._session, self._pieces, self._keep = session, pieces, keep
        weakref.finalize(self, session.cancel).atexit = False
        self._frontend, self._language, self._wake = frontend, language, wake
        self._breath_chars, self._max_ids = defaults.split_chars or BREATH_CHARS, defaults.max_text_ids
        self._max_chars = max_chars
        self._incoming = IncomingText(max_chars=self._breath_chars, language=language)

    def push(self, text: str) -> None:
        """More of the text, in pieces of any size."""
        check_length(text, self._max_chars)
        self._speak(self._incoming.push(text))

    def flush(self) -> None:
        """Say what has come so far, without waiting for the end of its sentence."""
        self._speak(self._incoming.flush())

    def end(self) -> None:
        """That was all of it. Asking twice is harmless."""
        try:
            self._speak(self._incoming.end())
        finally:  # nothing more comes, also if the last of it could not be said
            self._pieces.close()
            self._wake()

    def cancel(self) -> None:
        """Say no more: what was not heard yet is forgotten."""
        self._pieces.close()
        self._session.cancel()

    @property
    def metrics(self) -> Metrics:
        """What it has cost so far."""
        return self._session.timing.metrics()

    @property
    def audio(self) -> Session:
        """Where its audio comes out, for those who read without waiting."""
        return self._session

    def __iter__(self) -> Iterator[AudioChunk]:
        yield from self._session.chunks()  # and so holds on to itself

    def __enter__(self) -> LiveSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def _speak(self, segments: list[str]) -> None:
        for segment in segments:
            for piece in pieces_of(
                self._frontend,
                segment,
                self._language,
                split_chars=self._breath_chars,
                fill=True,
                more=True,
                max_ids=self._max_ids,
                speed=self._session.request.speed,
            ):
                self._pieces.add(piece)
        if segments:
            self._wake()
