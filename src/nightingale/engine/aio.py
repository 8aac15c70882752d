"""The engine for asyncio programs.

Synthesis runs in the engine's own thread. A reader waits in its event loop and is woken when there is audio,
so a thousand readers need no threads. Leaving an `async for` early cancels the request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

from nightingale.engine.conversion import AnyVoice
from nightingale.engine.faults import check_texts
from nightingale.engine.requests.controls import RequestOptions, show_options
from nightingale.engine.requests.live import LiveSession
from nightingale.engine.requests.recordings import Recording
from nightingale.engine.requests.whole import OnProgress, ProgressMeter, audio_of, progress_of
from nightingale.engine.session import Session
from nightingale.engine.tts import TTS
from nightingale.engine.voice_lookup import VoiceReference
from nightingale.errors import raising_memory_full
from nightingale.types import Audio, AudioChunk, Metrics
from nightingale.voices.voice import Voice

AnySession = TypeVar("AnySession", Session, LiveSession)


class AsyncTTS:
    """A `TTS` whose methods are awaited. They take the same arguments."""

    def __init__(self, tts: TTS) -> None:
        self._tts = tts

    def __repr__(self) -> str:
        return f"<AsyncTTS {self._tts.plan.summary}>"

    @classmethod
    async def load(cls, model: str | Path | None = None, **options: Any) -> AsyncTTS:
        """Load a model without blocking the event loop."""
        return cls(await asyncio.to_thread(TTS, model, **options))

    @property
    def voices(self) -> tuple[str, ...]:
        """Names of the voices it can use."""
        return self._tts.voices

    @show_options
    async def say(
        self, text: str, *, on_progress: OnProgress | None = None, **request: Unpack[RequestOptions]
    ) -> Audio:
        """Return the whole audio. `on_progress` is called in the event loop, as by `TTS.say`."""
        session = await _in_thread(self._tts.open, text, **request)
        session.plays = False
        chunks, meter, report = [], ProgressMeter(len(text)), on_progress or (lambda _: None)
        async with contextlib.aclosing(iter_chunks(session)) as arriving:
            async for chunk in arriving:
                chunks.append(chunk)
                report(meter.add(chunk))
        report(meter.finish())
        with raising_memory_full():
            return audio_of(session, chunks)

    @show_options
    async def say_each(
        self, texts: Iterable[str], **request: Unpack[RequestOptions]
    ) -> AsyncGenerator[Audio, None]:
        """Yield the audio of each text in order when it is complete. Leaving the loop cancels those in work."""
        if (voice := request.get("voice")) is not None and not isinstance(voice, Voice):
            request["voice"] = await self.voice(voice)  # a clip is read once
        opened: deque[asyncio.Task[Audio]] = deque()
        try:
            for text in check_texts(texts):
                if len(opened) == self._tts.at_once:
                    yield await opened.popleft()
                opened.append(asyncio.create_task(self.say(text, **request)))
            while opened:
                yield await opened.popleft()
        finally:
            for task in opened:
                task.cancel()
            await asyncio.gather(*opened, return_exceptions=True)

    @show_options
    async def say_many(
        self,
        texts: Iterable[str],
        *,
        on_progress: OnProgress | None = None,
        **request: Unpack[RequestOptions],
    ) -> list[Audio]:
        """Return the audio of several texts, decoded in batches. `on_progress` is called after each text."""
        texts = list(check_texts(texts))
        spoken: list[Audio] = []
        async with contextlib.aclosing(self.say_each(texts, **request)) as each:
            async for audio in each:
                spoken.append(audio)
                if on_progress is not None:
                    on_progress(progress_of(spoken, len(texts)))
        return spoken

    @show_options
    async def stream(self, text: str, **request: Unpack[RequestOptions]) -> AsyncIterator[AudioChunk]:
        """Yield audio as it is rendered; leaving the loop cancels the request."""
        session = await _in_thread(self._tts.open, text, **request)
        async with contextlib.aclosing(iter_chunks(session, owner=self)) as chunks:
            async for chunk in chunks:
                yield chunk

    @show_options
    async def session(self, **request: Unpack[RequestOptions]) -> AsyncLiveSession:
        """Open a session for text that still arrives. Its `push` never blocks."""
        return AsyncLiveSession(await _in_thread(self._tts.session, **request))

    async def voice(self, reference: VoiceReference) -> Voice:
        """Return a voice by name, from a voice file, or from a clip, as `TTS.voice` does."""
        return await asyncio.to_thread(self._tts.voice, reference)

    async def convert(self, audio: Recording, *, voice: AnyVoice = None, seed: int | None = None) -> Audio:
        """Return a recording in another voice, as `TTS.convert` does."""
        return await asyncio.to_thread(self._tts.convert, audio, voice=voice, seed=seed)

    async def close(self) -> None:
        """End all requests and the engine's thread."""
        await asyncio.to_thread(self._tts.close)

    async def __aenter__(self) -> AsyncTTS:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncLiveSession:
    """A `LiveSession` whose audio is read with `async for`."""

    def __init__(self, session: LiveSession) -> None:
        self._session = session
        self.push = session.push
        self.flush = session.flush
        self.end = session.end
        self.cancel = session.cancel

    @property
    def metrics(self) -> Metrics:
        return self._session.metrics

    def __aiter__(self) -> AsyncGenerator[AudioChunk, None]:
        return iter_chunks(self._session.audio, owner=self)

    async def __aenter__(self) -> AsyncLiveSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()


async def _in_thread(function: Callable[..., AnySession], *args: Any, **options: Any) -> AnySession:
    # Not `to_thread`: the end of the loop cancels its task, and the session that is opened would be lost.
    call = partial(function, *args, **options)
    return await open_session(asyncio.get_running_loop().run_in_executor(None, call))


async def open_session(opening: Awaitable[AnySession]) -> AnySession:
    """Await a session that a thread opens. If the caller is cancelled meanwhile, so is the session."""
    future = asyncio.ensure_future(opening)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(_cancel_session)  # the thread cannot be interrupted and still opens it
        raise


def _cancel_session(opening: asyncio.Future[AnySession]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().cancel()


async def iter_chunks(session: Session, owner: object = None) -> AsyncGenerator[AudioChunk, None]:  # noqa: ARG001
    """Yield the chunks of a session as they arrive, and cancel the session if the reader stops early.

    `owner` stays alive as long as the chunks are read.
    """
    loop, has_news = asyncio.get_running_loop(), asyncio.Event()

    def notify() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its readers are gone with it
            loop.call_soon_threadsafe(has_news.set)

    session.listen(notify)
    try:
        while True:
            # Cleared before `take`: a chunk that arrives between `take` and `wait` sets it again.
            has_news.clear()
            try:
                chunk = session.take()
            except EOFError:
                return
            if chunk is None:
                await has_news.wait()
            else:
                yield chunk
    except (GeneratorExit, asyncio.CancelledError):
        session.cancel()
        raise
