"""Turns of a socket: text that is still being written on one side, audio for one client on the other.

All socket protocols subclass `SpeechTurn`. Text goes in with `push`; a task of the turn calls `send_audio` and,
at the end, `send_end`. Nothing is buffered here: while the client is slow, the engine waits.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, Final

from nightingale.engine.stream_capacity import QueuePlace
from nightingale.errors import ConfigError, NightingaleError
from nightingale.server.service.queue_reports import with_queue_reports
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.service.speech_streams import LiveSpeechStream, OutputFormat, Timings
from nightingale.types import Metrics

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


class SpeechTurn(ABC):
    """One answer, from its first text to its last sample. A protocol implements the methods that send."""

    def __init__(self, service: SpeechService, request: dict[str, Any], output: OutputFormat) -> None:
        """request: arguments of `SpeechService.session`."""
        self.error: NightingaleError | None = None
        """The error that ended the turn. Text that still follows is ignored."""
        self.cancelled = False
        self.accepts_text = True
        self.has_started = False
        self.finished = asyncio.Event()
        """Set when `send_end` has returned or the client is gone."""
        self.previous: SpeechTurn | None = None
        self._service, self._request, self._output = service, request, output
        self.text = ""
        """All text that was pushed, to which the positions of words refer."""
        self._abandoned_s = ABANDONED_S
        self._stream: LiveSpeechStream | None = None
        self._task: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []

    async def send_start(self) -> None:  # noqa: B027, optional
        """Announce that audio follows."""

    async def send_queued(self, place: QueuePlace) -> None:  # noqa: B027, optional
        """Tell the client its place in the queue, while it waits for the first audio."""

    @abstractmethod
    async def send_audio(self, timings: Timings, data: bytes) -> None:
        """Send segments and words that have ended, then audio. Each may be empty."""

    @abstractmethod
    async def send_end(self) -> None:
        """Send how the turn ended: see `error` and `cancelled`."""

    @property
    def metrics(self) -> Metrics:
        return _NO_METRICS if self._stream is None else self._stream.metrics

    @property
    def warnings(self) -> list[str]:
        """Sentences about the parts of the text that are not spoken."""
        return [] if self._stream is None else [str(warning) for warning in self._stream.warnings]

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
        if self._stream is not None and self.accepts_text and self.error is None:
            self._try(self._stream.flush)

    def end(self) -> None:
        """End the text; `send_end` is called when all audio was sent."""
        if not self.accepts_text:
            return
        self.accepts_text = False
        self._stop_timers()
        if self._stream is not None and self.error is None:
            self._try(self._stream.end)
        else:
            self._stop()

    def cancel(self) -> None:
        """Stop at once; `send_end` follows."""
        self.accepts_text = False
        if not (self.cancelled or self.finished.is_set()):
            self.cancelled = True
            self._stop()

    def fail(self, error: NightingaleError) -> None:
        """Stop at once because of an error; `send_end` follows."""
        if not self.finished.is_set():
            self.error = error
            self._stop()

    async def drop(self) -> None:
        """Stop because the client is gone; `send_end` is not called."""
        self.accepts_text = False
        self._stop_timers()
        if self._stream is not None:
            self._stream.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _push(self, text: str) -> None:
        # JavaScript may split a surrogate pair; its halves are not valid characters.
        text = text.encode("utf-8", "ignore").decode()
        self.text += text
        self._service.check_length(len(self.text))
        stream = self._stream
        if stream is None:
            stream = self._stream = await self._service.session(**self._request)
            self._start_task(self._send_speech(stream))
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
            self._start_task(self._finish())

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._service.open_turns.add(self)
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(self._task_done)

    def _task_done(self, _task: asyncio.Task[None]) -> None:
        self._service.open_turns.discard(self)
        self.finished.set()

    async def _send_speech(self, stream: LiveSpeechStream) -> None:
        try:
            if self.previous is not None:
                await self.previous.finished.wait()
            encoder = self._service.open_encoder(self._output)
            async with (
                aclosing(aiter(stream)) as chunks,
                aclosing(with_queue_reports(encoder.encode(chunks), stream, self.send_queued)) as parts,
            ):
                async for timings, data in parts:
                    if self.cancelled or self.error is not None:
                        continue
                    if not self.has_started:
                        self.has_started = True
                        await self.send_start()
                    await self.send_audio(timings, data)
        except NightingaleError as error:
            self.error = error
        except ClientGone:
            return
        finally:
            self._stop_timers()
            stream.cancel()
        await self._finish()

    async def _finish(self) -> None:
        if self.previous is not None:
            await self.previous.finished.wait()
        self.previous = None  # otherwise the turns of a long connection would form one long chain
        outcome = type(self.error).__name__ if self.error else "cancelled" if self.cancelled else "done"
        ttfa_ms, seconds = round(self.metrics.ttfa_ms, 1), round(self.metrics.audio_seconds, 3)
        fields = {"outcome": outcome, "ttfa_ms": ttfa_ms, "audio_seconds": seconds}
        # Their number: text does not belong into logs. Wyoming and ElevenLabs' sockets have no place for them.
        log.info(
            "turn", extra={**fields, "warnings": len(self.warnings), **self._service.tenants.log_fields()}
        )
        with suppress(ClientGone):
            await self.send_end()

    def _start_timers(self) -> None:
        self._stop_timers()
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(IDLE_FLUSH_S, self.flush))
        self._timers.append(loop.call_later(self._abandoned_s, self.end))

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


class TurnQueue(list[SpeechTurn]):
    """The unfinished turns of one connection, whose audio is sent one after the other."""

    @property
    def writing(self) -> SpeechTurn | None:
        """Return the turn that still accepts text."""
        return self[-1] if self and self[-1].accepts_text else None

    def add(self, turn: SpeechTurn) -> SpeechTurn:
        """Send the audio of a new turn after that of the others."""
        self[:] = [other for other in self if not other.finished.is_set()]
        if len(self) >= MAX_PENDING_TURNS:
            raise ConfigError(
                "too many turns at once",
                got=f"{len(self)} unfinished turns",
                allowed=f"at most {MAX_PENDING_TURNS}",
                fix="Wait for the end of one, or cancel.",
            )
        turn.previous = self[-1] if self else None
        self.append(turn)
        return turn

    async def drop(self) -> None:
        for turn in self:
            await turn.drop()
