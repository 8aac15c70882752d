"""A request being spoken, as routes hold it: awaited, counted, and stopped when it is left."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol, Self
from uuid import uuid4

from nightingale.engine.aio import AsyncLiveSession, iter_chunks
from nightingale.engine.requests.live import LiveSession
from nightingale.engine.session import Session
from nightingale.errors import NightingaleError
from nightingale.server.metrics import Account, Meter
from nightingale.types import AudioChunk, Metrics


class House(Protocol):
    """Who is told of comings and goings."""

    meter: Meter

    def entered(self, speech: Speech | Conversation) -> None: ...

    def left(self, speech: Speech | Conversation, cost: Metrics, finished: bool) -> None: ...


class Speech:
    """One request being spoken: an async context manager and an async iterator of chunks."""

    def __init__(self, house: House, session: Session, account: Account, request_id: str) -> None:
        self.request_id = request_id
        self.seed = session.request.seed
        self.voice_name = session.request.voice.name
        self._house, self._session, self._account = house, session, account
        self._chunks = iter_chunks(session)
        self._pace = Pace(house.meter)
        house.entered(self)

    @property
    def metrics(self) -> Metrics:
        return self._session.timing.metrics()

    def cancel(self) -> None:
        """Say no more."""
        self._session.cancel()
        self._close(cancelled=True)

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        return self

    async def __anext__(self) -> AudioChunk:
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self._close()
            raise
        except NightingaleError:
            self._close(failed=True)
            raise
        self._pace.heard(chunk)
        return chunk

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()  # after the end, this changes nothing
        with contextlib.suppress(RuntimeError):  # somebody is still waiting in it, and is told by the cancel
            await self._chunks.aclose()

    def _close(self, *, cancelled: bool = False, failed: bool = False) -> None:
        cost = self.metrics
        self._account.close(cost, cancelled=cancelled, failed=failed)
        self._house.left(self, cost, not (cancelled or failed))


class Conversation(AsyncLiveSession):
    """An answer that is still being written, counted like any other request."""

    def __init__(self, house: House, session: LiveSession, account: Account, request_id: str) -> None:
        super().__init__(session)
        self.request_id = request_id
        self.seed = session.audio.request.seed
        self._house, self._account = house, account
        self._pace = Pace(house.meter)
        self._push = self.push
        self.push = self._count
        house.entered(self)

    def cancel(self) -> None:
        super().cancel()
        self._close(cancelled=True)

    async def __aiter__(self) -> AsyncGenerator[AudioChunk, None]:
        try:
            async for chunk in iter_chunks(self._session.audio):
                self._pace.heard(chunk)
                yield chunk
        except NightingaleError:
            self._close(failed=True)
            raise
        except (GeneratorExit, asyncio.CancelledError):
            self.cancel()
            raise
        self._close()

    def _count(self, text: str) -> None:
        self._account.characters(len(text))
        self._push(text)

    def _close(self, *, cancelled: bool = False, failed: bool = False) -> None:
        cost = self.metrics
        self._account.close(cost, cancelled=cancelled, failed=failed)
        self._house.left(self, cost, not (cancelled or failed))


class Pace:
    """Whether a player that began with the first chunk would have run out of sound."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._runs_out_s: float | None = None

    def heard(self, chunk: AudioChunk) -> None:
        now = time.monotonic()
        if self._runs_out_s is not None and now > self._runs_out_s:
            self._meter.underruns.inc()
        self._runs_out_s = max(now, self._runs_out_s or now) + chunk.seconds


def new_id() -> str:
    return f"req_{uuid4().hex}"
