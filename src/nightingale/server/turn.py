"""One answer that is still being written, on its way to one listener: what every socket protocol is made of.

Text goes in with `push`; a task of the turn's own hands each chunk of sound to `heard` and, at the very end,
the turn itself to `over`. Nothing is kept here: while the listener is slow, the engine's own buffer fills,
and the engine waits. The engine is asked for a session only when there is something to say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

from nightingale.audio.encoders.streaming import FORMATS, open_encoder
from nightingale.engine.aio import AsyncLiveSession
from nightingale.errors import NightingaleError, TextTooLong
from nightingale.server.speaker import Speaker
from nightingale.types import AudioChunk, Metrics

log = logging.getLogger("nightingale.server")

IDLE_FLUSH_S: Final = 5.0
"""Whoever stops writing for so long in mid-sentence is spoken as far as the text goes."""
ABANDONED_S: Final = 120.0
"""Whoever stops writing for so long has ended, and no longer holds a place in the engine."""
LONG_TEXT_CHARS: Final = 1000
"""Cutting and normalizing more than this at a time is left to a thread, so that other sockets go on."""

_NOTHING: Final = Metrics(ttfa_ms=0.0, total_ms=0.0, audio_seconds=0.0, tokens=0)


class ListenerGone(Exception):
    """The other side hung up, or has taken nothing for too long."""


class Recording:
    """The encoder of one turn; work that takes time is done in a thread."""

    def __init__(self, form: str, sample_rate_hz: int, bit_rate: int | None = None) -> None:
        self._encoder = open_encoder(form, sample_rate_hz=sample_rate_hz, bit_rate=bit_rate)
        self._cheap = FORMATS[form].cheap

    async def feed(self, chunk: AudioChunk) -> bytes:
        if self._cheap:
            return self._encoder.feed(chunk.samples)
        return await asyncio.to_thread(self._encoder.feed, chunk.samples)

    async def finish(self) -> bytes:
        return await asyncio.to_thread(self._encoder.finish)


class Turn:
    """From the first word to the last sample."""

    def __init__(
        self,
        speaker: Speaker,
        request: dict[str, Any],
        *,
        heard: Callable[[AudioChunk], Awaitable[None]],
        over: Callable[[Turn], Awaitable[None]],
        max_chars: int,
        after: Turn | None = None,
        abandoned_s: float = ABANDONED_S,
    ) -> None:
        """request: the voice and controls of `Speaker.session`. after: the turn that is heard before this."""
        self.error: NightingaleError | None = None
        """Why it ended before its end. What is still written to it is ignored."""
        self.cancelled = False
        self.writing = True
        """Whether more text may come."""
        self.flushed = True
        """Whether all text so far was flushed."""
        self._speaker, self._request = speaker, request
        self._heard, self._over, self._after = heard, over, after
        self._chars_left, self._abandoned_s = max_chars, abandoned_s
        self._session: AsyncLiveSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def metrics(self) -> Metrics:
        return _NOTHING if self._session is None else self._session.metrics

    @property
    def finished(self) -> bool:
        return self._task is not None and self._task.done()

    async def push(self, text: str) -> None:
        """More text. If something is wrong with it, or with the request, the turn is over, and says why."""
        if not self.writing or self.error is not None or (self._session is None and not text.strip()):
            return
        try:
            await self._push(text)
        except NightingaleError as error:
            self.fail(error)

    def touch(self) -> None:
        """The writer is still there, though it has nothing to say."""
        if self._timers:
            self._watch()

    def flush(self) -> None:
        """Say what has come so far."""
        self.flushed = True
        if self._session is not None and self.writing and self.error is None:
            self._try(self._session.flush)

    def end(self) -> None:
        """That was all of it; `over` follows when it has been heard."""
        if not self.writing:
            return
        self.writing, self.flushed = False, True
        self._unwatch()
        if self._session is not None and self.error is None:
            self._try(self._session.end)
        else:
            self._stop()

    def cancel(self) -> None:
        """Not a step more; `over` follows at once."""
        self.writing = False
        if not (self.cancelled or self.finished):
            self.cancelled = True
            self._stop()

    def fail(self, error: NightingaleError) -> None:
        """It cannot go on; `over` follows at once."""
        if not self.finished:
            self.error = error
            self._stop()

    async def drop(self) -> None:
        """The listener is gone: stop, and tell nobody."""
        self.writing = False
        self._unwatch()
        if self._session is not None:
            self._session.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def wait(self) -> None:
        """Until it is over, if it has begun."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _push(self, text: str) -> None:
        # JavaScript may tear an emoji in two; its halves alone are no characters.
        text = text.encode("utf-8", "ignore").decode()
        self._chars_left -= len(text)
        if self._chars_left < 0:
            raise TextTooLong(
                "this answer is too long",
                got=f"{-self._chars_left} characters too many",
                allowed="as many as --max-text-chars says",
                fix="End this answer and begin another.",
            )
        session = self._session
        if session is None:
            session = self._session = await self._speaker.session(**self._request)
            self._task = asyncio.create_task(self._speak(session))
        self.flushed = False
        self._unwatch()
        if len(text) > LONG_TEXT_CHARS:
            await asyncio.to_thread(session.push, text)
        else:
            session.push(text)
        self._watch()

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except NightingaleError as error:
            self.fail(error)

    def _stop(self) -> None:
        self._unwatch()
        if self._session is not None:
            self._session.cancel()
        elif self._task is None:
            self._task = asyncio.create_task(self._finish())

    async def _speak(self, session: AsyncLiveSession) -> None:
        with self._speaker.telling():
            try:
                if self._after is not None:
                    await self._after.wait()
                async with aclosing(aiter(session)) as chunks:
                    async for chunk in chunks:
                        if not (self.cancelled or self.error is not None):
                            await self._heard(chunk)
            except NightingaleError as error:
                self.error = error
            except ListenerGone:
                return
            finally:
                self._unwatch()
                session.cancel()
            await self._finish()

    async def _finish(self) -> None:
        if self._after is not None:
            await self._after.wait()
        self._after = None  # or a long conversation would be one long chain
        outcome = type(self.error).__name__ if self.error else "cancelled" if self.cancelled else "done"
        cost = self.metrics
        spoken = {"ttfa_ms": round(cost.ttfa_ms, 1), "audio_seconds": round(cost.audio_seconds, 3)}
        log.info("turn", extra={"outcome": outcome, **spoken})
        try:
            await self._over(self)
        except ListenerGone:
            return

    def _watch(self) -> None:
        self._unwatch()
        loop = asyncio.get_running_loop()
        if not self.flushed:
            self._timers.append(loop.call_later(IDLE_FLUSH_S, self.flush))
        self._timers.append(loop.call_later(self._abandoned_s, self.end))

    def _unwatch(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
