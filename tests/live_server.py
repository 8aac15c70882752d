"""A real server on a free port, for tests in which the socket matters; and a speaker that never tires."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import uvicorn

from nightingale import TTS
from nightingale.server.app import create_app
from nightingale.server.listening import listening
from nightingale.server.settings import Settings
from nightingale.server.speaker import Speaker
from nightingale.types import AudioChunk, Metrics


class Endless:
    """A session that never stops speaking, and counts what was taken from it."""

    def __init__(self) -> None:
        self.taken, self.cancelled = 0, False
        self.metrics = Metrics(ttfa_ms=1, total_ms=1, audio_seconds=1, tokens=1)

    def push(self, text: str) -> None:
        """It says what it likes."""

    flush = end = lambda self: None

    def cancel(self) -> None:
        self.cancelled = True

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        while not self.cancelled:
            self.taken += 1
            yield AudioChunk(samples=np.zeros(24000, np.float32), sample_rate_hz=24000)
            await asyncio.sleep(0)


class Talker(Speaker):
    """Speaks without end to the first who ask, and then as it should."""

    def __init__(self, tts: TTS, endless: int) -> None:
        super().__init__(Settings(), tts)
        self.endless, self.given = endless, list[Endless]()

    async def session(self, **request: Any) -> Any:
        if len(self.given) < self.endless:
            self.given.append(Endless())
            return self.given[-1]
        return await super().session(**request)


@dataclass(frozen=True)
class LiveServer:
    speaker: Speaker
    port: int

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def wait_until_idle(self, seconds: float = 10.0) -> float:
        """Until the engine has nothing in hand; gives how long that took.

        Neither in line nor in a slot is not enough: the last block of one who left may still be rendered, and
        the engine lets go of him after it.
        """
        began = time.monotonic()
        while self.speaker.meter.active or in_hand(self.speaker):
            assert time.monotonic() - began < seconds, "the engine is still busy"
            time.sleep(0.005)
        return time.monotonic() - began


def in_hand(speaker: Speaker) -> int:
    """Requests that the engine has not let go of yet, wherever they are."""
    return 0 if speaker._tts is None else len(speaker._tts._worker._jobs)


def free_port() -> int:
    """A port that nobody has just now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def live_server(
    tts: TTS, speaker: Speaker | None = None, *, ping_s: float = 20.0, **settings: Any
) -> Iterator[LiveServer]:
    """Until the block is left. The engine is the caller's, and stays open."""
    asked = Settings(**settings)
    speaker = Speaker(asked, tts) if speaker is None else speaker
    config = uvicorn.Config(
        create_app(asked, speaker),
        log_config=None,
        ws_per_message_deflate=False,
        ws_max_size=asked.max_body_bytes,
        ws_ping_interval=ping_s,
        ws_ping_timeout=ping_s,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    door = listening("127.0.0.1", 0, patience_s=asked.send_timeout)
    thread = threading.Thread(target=server.run, args=([door],), daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not (server.started and speaker.ready):
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline, "the server did not get ready"
            time.sleep(0.01)
        yield LiveServer(speaker, door.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(15)
        door.close()
