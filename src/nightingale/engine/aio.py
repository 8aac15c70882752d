"""The engine for programs that await.

The work happens in the engine's own thread, as ever; waiting for it happens in threads of asyncio's pool, so
the event loop is never held up. Leaving an `async for` early stops the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from nightingale.engine.live import LiveSession
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
        async for chunk in _awaited(session.chunks(), session.cancel):
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
        self.cancel = session.cancel

    @property
    def metrics(self) -> Metrics:
        return self._session.metrics

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        return _awaited(iter(self._session), self._session.cancel)

    async def __aenter__(self) -> AsyncLiveSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()


async def _awaited(chunks: Iterator[AudioChunk], cancel: Callable[[], None]) -> AsyncIterator[AudioChunk]:
    """Each chunk, waited for in a thread. Whoever stops listening, or is cancelled, cancels the work."""
    try:
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk
    except (GeneratorExit, asyncio.CancelledError):
        cancel()
        raise
