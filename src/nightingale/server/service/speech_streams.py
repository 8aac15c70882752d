"""Streams of speech that the protocols read: asynchronous, counted, and cancelled when they are abandoned."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Self

from nightingale.engine.aio import iter_chunks
from nightingale.engine.requests.live import LiveSession
from nightingale.engine.session import Session
from nightingale.errors import NightingaleError
from nightingale.server.metrics import ServerMetrics
from nightingale.types import AudioChunk, Metrics


class SpeechStream:
    """The audio of one request: an async context manager, and an async iterable of chunks to be read once."""

    def __init__(
        self, session: Session, counters: ServerMetrics, on_close: Callable[[SpeechStream, bool], None]
    ) -> None:
        """on_close: called once, with the stream and whether it was read to its end."""
        self.seed = session.request.seed
        self.voice_name = session.request.voice.name
        self._session, self._counters, self._on_close = session, counters, on_close
        self._open = True
        self._chunks = self._read()

    @property
    def metrics(self) -> Metrics:
        return self._session.timing.metrics()

    def cancel(self) -> None:
        """Stop the engine's work on the request; after the end this does nothing."""
        self._session.cancel()
        self._close(cancelled=True)

    def __aiter__(self) -> AsyncGenerator[AudioChunk, None]:
        return self._chunks

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
        with contextlib.suppress(RuntimeError):  # another task is reading; the cancellation wakes it
            await self._chunks.aclose()

    async def _read(self) -> AsyncGenerator[AudioChunk, None]:
        buffered_until_s: float | None = None
        try:
            async with contextlib.aclosing(iter_chunks(self._session)) as chunks:
                async for chunk in chunks:
                    now_s = time.monotonic()
                    # An underrun: a player that started with the first chunk has run out of audio.
                    if buffered_until_s is not None and now_s > buffered_until_s:
                        self._counters.underruns.inc()
                    buffered_until_s = max(now_s, buffered_until_s or now_s) + chunk.seconds
                    yield chunk
        except NightingaleError:
            self._close(failed=True)
            raise
        except (GeneratorExit, asyncio.CancelledError):
            self.cancel()
            raise
        self._close()

    def _close(self, *, cancelled: bool = False, failed: bool = False) -> None:
        if self._open:
            self._open = False
            self._counters.count_request(self.metrics, cancelled=cancelled, failed=failed)
            self._on_close(self, not (cancelled or failed))


class LiveSpeechStream(SpeechStream):
    """A stream whose text is still being written. The methods are those of the engine's `LiveSession`."""

    def __init__(
        self, session: LiveSession, counters: ServerMetrics, on_close: Callable[[SpeechStream, bool], None]
    ) -> None:
        super().__init__(session.audio, counters, on_close)
        self._live = session
        self.flush, self.end = session.flush, session.end

    def push(self, text: str) -> None:
        self._counters.characters.inc(len(text))
        self._live.push(text)
