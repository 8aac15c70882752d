"""A real server on a free port, for tests that need a socket, and a service whose streams never end."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import uvicorn

from nightingale import TTS
from nightingale.server.app import create_app
from nightingale.server.listen_socket import open_listen_socket
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.settings import ServerSettings
from nightingale.server.websocket_protocol import LimitedWebSocketProtocol
from nightingale.types import AudioChunk, Metrics


class EndlessStream:
    """A live stream that never ends and counts the chunks that were read from it."""

    def __init__(self) -> None:
        self.chunks_read, self.cancelled = 0, False
        self.metrics = Metrics(ttfa_ms=1, total_ms=1, audio_seconds=1, tokens=1)
        self.warnings = ()

    def push(self, text: str) -> None:
        """Ignore the text."""

    flush = end = lambda self: None

    def cancel(self) -> None:
        self.cancelled = True

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        while not self.cancelled:
            self.chunks_read += 1
            yield AudioChunk(samples=np.zeros(24000, np.float32), sample_rate_hz=24000)
            await asyncio.sleep(0)


class EndlessService(SpeechService):
    """Gives endless streams to the first sessions and real ones to the others."""

    def __init__(self, tts: TTS, endless: int) -> None:
        super().__init__(ServerSettings(), tts)
        self.endless, self.streams = endless, list[EndlessStream]()

    async def session(self, **request: Any) -> Any:
        if len(self.streams) < self.endless:
            self.streams.append(EndlessStream())
            return self.streams[-1]
        return await super().session(**request)


@dataclass(frozen=True)
class LiveServer:
    service: SpeechService
    port: int

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def wait_until_idle(self, seconds: float = 10.0) -> float:
        """Wait until the engine has no request left; return how long that took.

        An empty queue and free slots are not enough: the last block of a cancelled request may still be
        rendered, and the engine forgets the request only afterwards.
        """
        started = time.monotonic()
        while self.service.metrics.active or engine_jobs(self.service):
            assert time.monotonic() - started < seconds, "the engine is still busy"
            time.sleep(0.005)
        return time.monotonic() - started

    def cancelled(self) -> float:
        """Return the counter of cancelled requests."""
        return float(self.service.metrics.cancelled._value.get())


def engine_jobs(service: SpeechService) -> int:
    """Return how many requests the engine holds, in whatever state."""
    return 0 if service._tts is None else len(service._tts._worker._jobs)


def free_port() -> int:
    """Return a port that is free at the moment."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def live_server(
    tts: TTS,
    service: SpeechService | None = None,
    *,
    ping_s: float = 20.0,
    websockets: type[LimitedWebSocketProtocol] = LimitedWebSocketProtocol,
    **settings: Any,
) -> Iterator[LiveServer]:
    """Run a server while the context is open. The engine belongs to the caller and stays open."""
    given = ServerSettings(**settings)
    service = SpeechService(given, tts) if service is None else service
    config = uvicorn.Config(
        create_app(given, service),
        log_config=None,
        ws=partial(websockets, send_timeout_s=given.send_timeout),  # type: ignore[arg-type]
        ws_per_message_deflate=False,
        ws_max_size=given.max_body_bytes,
        ws_ping_interval=ping_s,
        ws_ping_timeout=ping_s,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    listener = open_listen_socket("127.0.0.1", 0, send_timeout_s=given.send_timeout)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not (server.started and service.ready):
            assert thread.is_alive(), "the server did not start"
            assert service.failure is None, f"the model could not be loaded: {service.failure!r}"
            assert time.monotonic() < deadline, "the server did not get ready"
            time.sleep(0.01)
        yield LiveServer(service, listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(15)
        listener.close()
