"""The engine for programs that await.

The work happens in the engine's own thread, as ever; each listener is woken in its event loop when there is
something to hear. Nobody waits in a thread, so a thousand listeners need none. Leaving an `async for` early
stops the work.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from nightingale.engine.live import LiveSession
from nightingale.engine.session import Session
from nightingale.engine.tts import TTS
from nightingale.values import Audio, AudioChunk, Metrics
from nightingale.voices.voice import Voice


class AsyncTTS:
    """A `TTS` behind `await`. The arguments of each method are those of its namesake."""

    def __init__(self, tts: TTS) -> None:
        self._tts = tts

    @classmethod
    async def load(cls, model: str | Path | None = None, **options: Any) -> AsyncTTS:
        """Load a model without holding up the event loop."""
        return cls(await asyncio.to_thread(TTS, model, **options))

    async def say(self, text: str, **request: Any) -> Audio:
        return await asyncio.to_thread(self._tts.say, text, **request)

    async def say_many(self, texts: Iterable[str], **request: Any) -> list[Audio]:
        return await asyncio.to_thread(self._tts.say_many, list(texts), **request)

    async def stream(self, text: str, **request: Any) -> AsyncIterator[AudioChunk]:
        session = await asyncio.to_thread(self._tts.open, text, **request)
        async for chunk in heard(session):
            yield chunk

    async def session(self, **request: Any) -> AsyncLiveSession:
        """Text in, audio out: pushing never blocks, listening is `async for`."""
        return AsyncLiveSession(await asyncio.to_thread(self._tts.session, **request))

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
        return heard(self._session.audio)

    async def __aenter__(self) -> AsyncLiveSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()


async def heard(session: Session) -> AsyncGenerator[AudioChunk, None]:
    """Each chunk of a session as it comes. Whoever stops listening, or is cancelled, cancels the work."""
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
