"""Turns of a socket: text that is still being written on one side, audio for one client on the other.

All socket protocols use these. Text goes in with `push`; a task of the turn passes each chunk of audio to
`on_audio` and, at the end, the turn itself to `on_end`. Nothing is buffered here: while the client is slow,
the engine's own buffer fills up, and the engine waits. A session of the engine is opened with the first text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

from nightingale.errors import ConfigError, NightingaleError
from nightingale.server.service.speech_service import SpeechService, text_too_long
from nightingale.server.service.speech_streams import LiveSpeechStream
from nightingale.types import AudioChunk, Metrics

log = logging.getLogger("nightingale.server")

IDLE_FLUSH_S: Final = 5.0
"""Text in mid-sentence is spoken if no more follows for this long."""
ABANDONED_S: Final = 120.0
"""A turn ends if no text follows for this long."""
LONG_TEXT_CHARS: Final = 1000
"""Longer text is segmented and normalized in a thread, so that the event loop is not blocked."""
MAX_PENDING_TURNS: Final = 4
"""Turns of one connection that may wait for each other."""

_NO_METRICS: Final = Metrics(ttfa_ms=0.0, total_ms=0.0, audio_seconds=0.0, tokens=0)


class ClientGone(Exception):
    """The client has disconnected, or has stalled for too long."""


def check_text(value: object) -> str:
    """Return a message's text, which must be a string."""
    if not isinstance(value, str):
        raise ConfigError("the text is not a string", got=repr(value)[:80], fix="Send `text`.")
    return value


class SpeechTurn:
    """One answer, from its first text to its last sample."""

    def __init__(
        self,
        service: SpeechService,
        request: dict[str, Any],
        *,
        on_audio: Callable[[AudioChunk], Awaitable[None]],
        on_end: Callable[[SpeechTurn], Awaitable[None]],
        max_chars: int,
        previous: SpeechTurn | None = None,
        abandoned_s: float | None = None,
    ) -> None:
        """request: arguments of `SpeechService.session`. previous: a turn whose audio is sent first.
        abandoned_s: end the turn if no text follows for this long; default ABANDONED_S."""
        self.error: NightingaleError | None = None
        """The error that ended the turn. Text that still follows is ignored."""
        self.cancelled = False
        self.accepts_text = True
        self.flushed = True
        """True if all text so far was flushed."""
        self._service, self._request = service, request
        self._on_audio, self._on_end, self._previous = on_audio, on_end, previous
        self._chars, self._max_chars = 0, max_chars
        self._abandoned_s = ABANDONED_S if abandoned_s is None else abandoned_s
        self._stream: LiveSpeechStream | None = None
        self._task: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def metrics(self) -> Metrics:
        return _NO_METRICS if self._stream is None else self._stream.metrics

    @property
    def finished(self) -> bool:
        return self._task is not None and self._task.done()

    async def push(self, text: str) -> None:
        """Add text. If it, or the request, is invalid, the turn fails."""
        if not self.accepts_text or self.error is not None or (self._stream is None and not text.strip()):
            return
        try:
            await self._push(text)
        except NightingaleError as error:
            self.fail(error)

    def touch(self) -> None:
        """Restart the timers: the client is still there, although it sends no text."""
        if self._timers:
            self._start_timers()

    def flush(self) -> None:
        """Speak the text so far without waiting for the end of its sentence."""
        self.flushed = True
        if self._stream is not None and self.accepts_text and self.error is None:
            self._try(self._stream.flush)

    def end(self) -> None:
        """End the text; `on_end` is called when all audio was sent."""
        if not self.accepts_text:
            return
        self.accepts_text, self.flushed = False, True
        self._stop_timers()
        if self._stream is not None and self.error is None:
            self._try(self._stream.end)
        else:
            self._stop()

    def cancel(self) -> None:
        """Stop at once; `on_end` follows."""
        self.accepts_text = False
        if not (self.cancelled or self.finished):
            self.cancelled = True
            self._stop()

    def fail(self, error: NightingaleError) -> None:
        """Stop at once because of an error; `on_end` follows."""
        if not self.finished:
            self.error = error
            self._stop()

    async def drop(self) -> None:
        """Stop because the client is gone; `on_end` is not called."""
        self.accepts_text = False
        self._stop_timers()
        if self._stream is not None:
            self._stream.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def wait(self) -> None:
        """Wait for the end of the turn, if it has started."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _push(self, text: str) -> None:
        # JavaScript may split a surrogate pair; its halves are not valid characters.
        text = text.encode("utf-8", "ignore").decode()
        self._chars += len(text)
        if self._chars > self._max_chars:
            raise text_too_long(self._chars, self._max_chars)
        stream = self._stream
        if stream is None:
            stream = self._stream = await self._service.session(**self._request)
            self._task = asyncio.create_task(self._send_audio(stream))
        self.flushed = False
        self._stop_timers()
        if len(text) > LONG_TEXT_CHARS:
            await asyncio.to_thread(stream.push, text)
        else:
            stream.push(text)
        self._start_timers()

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except NightingaleError as error:
            self.fail(error)

    def _stop(self) -> None:
        self._stop_timers()
        if self._stream is not None:
            self._stream.cancel()
        elif self._task is None:
            self._task = asyncio.create_task(self._finish())

    async def _send_audio(self, stream: LiveSpeechStream) -> None:
        with self._service.open_turn():
            try:
                if self._previous is not None:
                    await self._previous.wait()
                async with aclosing(aiter(stream)) as chunks:
                    async for chunk in chunks:
                        if not (self.cancelled or self.error is not None):
                            await self._on_audio(chunk)
            except NightingaleError as error:
                self.error = error
            except ClientGone:
                return
            finally:
                self._stop_timers()
                stream.cancel()
            await self._finish()

    async def _finish(self) -> None:
        if self._previous is not None:
            await self._previous.wait()
        self._previous = None  # otherwise the turns of a long connection would form one long chain
        outcome = type(self.error).__name__ if self.error else "cancelled" if self.cancelled else "done"
        ttfa_ms, seconds = round(self.metrics.ttfa_ms, 1), round(self.metrics.audio_seconds, 3)
        log.info("turn", extra={"outcome": outcome, "ttfa_ms": ttfa_ms, "audio_seconds": seconds})
        try:
            await self._on_end(self)
        except ClientGone:
            return

    def _start_timers(self) -> None:
        self._stop_timers()
        loop = asyncio.get_running_loop()
        if not self.flushed:
            self._timers.append(loop.call_later(IDLE_FLUSH_S, self.flush))
        self._timers.append(loop.call_later(self._abandoned_s, self.end))

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


class TurnQueue:
    """The unfinished turns of one connection, whose audio is sent one after the other."""

    def __init__(self, service: SpeechService, max_chars: int) -> None:
        self._service, self._max_chars = service, max_chars
        self.turns: list[SpeechTurn] = []

    @property
    def writing(self) -> SpeechTurn | None:
        """Return the turn that still accepts text."""
        return self.turns[-1] if self.turns and self.turns[-1].accepts_text else None

    def open(
        self,
        request: dict[str, Any],
        on_audio: Callable[[AudioChunk], Awaitable[None]],
        on_end: Callable[[SpeechTurn], Awaitable[None]],
    ) -> SpeechTurn:
        self.turns = [turn for turn in self.turns if not turn.finished]
        if len(self.turns) >= MAX_PENDING_TURNS:
            raise ConfigError(
                "too many turns at once",
                got=f"{len(self.turns)} unfinished turns",
                allowed=f"at most {MAX_PENDING_TURNS}",
                fix="Wait for the end of one, or cancel.",
            )
        turn = SpeechTurn(
            self._service,
            request,
            on_audio=on_audio,
            on_end=on_end,
            max_chars=self._max_chars,
            previous=self.turns[-1] if self.turns else None,
        )
        self.turns.append(turn)
        return turn

    async def drop(self) -> None:
        for turn in self.turns:
            await turn.drop()
