"""The engine for programs that await.

The work happens in the engine's own thread, as ever; each listener is woken in its event loop when there is
something to hear. Nobody waits in a thread, so a thousand listeners need none. Leaving an `async for` early
stops the work.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from nightingale.engine.requests.live import LiveSession
from nightingale.engine.session import Session
from nightingale.engine.tts import TTS, audio_of
from nightingale.types import Audio, AudioChunk, Metrics
from nightingale.voices.voice import Voice

Opened = TypeVar("Opened", Session, LiveSession)


class AsyncTTS:
    """A `TTS` behind `await`. The arguments of each method are those of its namesake."""

    def __init__(self, tts: TTS) -> None:
        self._tts = tts

    @classmethod
    async def load(cls, model: str | Path | None = None, **options: Any) -> AsyncTTS:
        """Load a model without holding up the event loop."""
        return cls(await asyncio.to_thread(TTS, model, **options))

    async def say(self, text: str, **request: Any) -> Audio:
        session = await self._open(text, request)
        return audio_of(session, [chunk async for chunk in heard(session)])

    async def say_many(self, texts: Iterable[str], **request: Any) -> list[Audio]:
        turns = asyncio.Semaphore(self._tts.at_once)

        async def say(text: str) -> Audio:
            async with turns:
                return await self.say(text, **request)

        spoken = [asyncio.create_task(say(text)) for text in texts]
        try:
            return list(await asyncio.gather(*spoken))
        finally:
            for task in spoken:
                task.cancel()

    async def stream(self, text: str, **request: Any) -> AsyncIterator[AudioChunk]:
        async with contextlib.aclosing(heard(await self._open(text, request), keep=self)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def session(self, **request: Any) -> AsyncLiveSession:
        """Text in, audio out: pushing never blocks, listening is `async for`."""
        return AsyncLiveSession(await opened(asyncio.to_thread(self._tts.session, **request)))

    async def _open(self, text: str, request: dict[str, Any]) -> Session:
        return await opened(asyncio.to_thread(self._tts.open, text, **request))

    async def voice(self, reference: str | Path) -> Voice:
        return await asyncio.to_thread(self._tts.voice, reference)

    async def close(self) -> None:
        await asyncio.to_thread(self._tts.close)

    async def __aenter__(self) -> AsyncTTS:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncLiveSession:
    """A `LiveSession` whose audio is awaited."""

    def __init__(self, session: LiveSession) -> None:
        self._session = session
        self.push, self.flush, self.end = session.push, session.flush, session.end

    @property
    def metrics(self) -> Metrics:
        return self._session.metrics

    def cancel(self) -> None:
        self._session.cancel()

    def __aiter__(self) -> AsyncGenerator[AudioChunk, None]:
        return heard(self._session.audio, keep=self)

    async def __aenter__(self) -> AsyncLiveSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()


async def opened(opening: Coroutine[Any, Any, Opened]) -> Opened:
    """A session that a thread opens. Whoever is cancelled meanwhile leaves none behind."""
    task = asyncio.ensure_future(opening)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # The thread goes on, and nobody would be there to end its session.
        task.add_done_callback(_let_go)
        raise


def _let_go(opening: asyncio.Future[Opened]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().cancel()


async def heard(session: Session, keep: object = None) -> AsyncGenerator[AudioChunk, None]:  # noqa: ARG001
    """Each chunk of a session as it comes. Whoever stops listening, or is cancelled, cancels the work.

    keep: what must live as long as somebody listens.
    """
    loop, news = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # a listener that died with its loop is nobody to tell
            loop.call_soon_threadsafe(news.set)

    session.listen(tell)
    try:
        while True:
            # Cleared before looking: what comes between the look and the wait sets it again.
            news.clear()
            try:
                chunk = session.take()
            except EOFError:
                return
            if chunk is None:
                await news.wait()
            else:
                yield chunk
    except (GeneratorExit, asyncio.CancelledError):
        session.cancel()
        raise
