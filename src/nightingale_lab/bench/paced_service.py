"""A service without a model whose timing is given by numbers, to measure a cluster on a small machine.

It takes no processor time, so eight replicas run on two cores as they would on eight GPUs. Its options are model
options of the server's settings (-O KEY=VALUE): `capacity`, listeners that are served at once; `ttfa`, seconds to
first audio; `seconds`, length of each answer; `block`, seconds of each chunk; `load`, seconds to start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np

from nightingale.clocks import CLOCKS
from nightingale.engine.stream_capacity import Occupancy
from nightingale.errors import QueueFull
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.settings import ServerSettings
from nightingale.types import AudioChunk, Metrics

DEFAULTS = {"capacity": 8.0, "ttfa": 0.1, "seconds": 4.0, "block": 0.5, "load": 0.0}


class PacedStream:
    """Chunks in real time, as a listener plays them."""

    seed, voice_name = 0, "paced"
    warnings = ()
    queue_position, place = 0, None
    """Those of a request that starts at once, because nothing estimates the wait."""

    def __init__(self, service: PacedService) -> None:
        self._service = service
        self._opened_s, self._queue_s, self._first_s, self._made_s = time.perf_counter(), 0.0, 0.0, 0.0

    @property
    def metrics(self) -> Metrics:
        total_s = time.perf_counter() - self._opened_s
        return Metrics(
            ttfa_ms=1000 * self._first_s,
            total_ms=1000 * total_s,
            audio_seconds=self._made_s,
            tokens=round(self._made_s * CLOCKS.token_rate_hz),
            queue_ms=1000 * self._queue_s,
        )

    async def __aenter__(self) -> PacedStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._service.closed(self)

    async def __aiter__(self) -> AsyncGenerator[AudioChunk, None]:
        pace = self._service.pace
        async with self._service.places:
            self._queue_s = time.perf_counter() - self._opened_s
            due_s = time.perf_counter() + pace["ttfa"]
            while self._made_s < pace["seconds"]:
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                self._first_s = self._first_s or time.perf_counter() - self._opened_s
                samples = np.zeros(round(pace["block"] * CLOCKS.sample_rate_hz), np.float32)
                yield AudioChunk(samples=samples, sample_rate_hz=CLOCKS.sample_rate_hz)
                self._made_s += pace["block"]
                due_s += pace["block"]
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))  # until the last chunk has played


class PacedService(SpeechService):
    """Serves paced streams, and refuses those for which its queue has no place."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings)
        self.pace = {name: float(settings.option.get(name, value)) for name, value in DEFAULTS.items()}
        self.places = asyncio.Semaphore(self._capacity)

    @property
    def _capacity(self) -> int:
        return int(self.pace["capacity"])

    @property
    def occupancy(self) -> Occupancy:
        speaking = min(self.metrics.active, self._capacity)
        waiting = self.metrics.active - speaking
        return Occupancy(waiting=waiting, speaking=speaking, slots=self._capacity, capacity=self._capacity)

    async def start(self) -> None:
        if self.state != "ready":
            await asyncio.sleep(self.pace["load"])
        self.state = "ready"

    async def open(self, text: str, **request: Any) -> Any:  # noqa: ARG002, the service's signature
        if self.metrics.active >= self._capacity + self.settings.max_queue:
            error = QueueFull("too many requests are waiting", allowed=f"at most {self.settings.max_queue}")
            error.retry_after_s = self.pace["seconds"]
            raise error
        self.metrics.active += 1
        return PacedStream(self)

    def closed(self, stream: PacedStream) -> None:
        """Count a stream that has ended."""
        self.metrics.active -= 1
        self.metrics.count_request(stream.metrics, cancelled=False, failed=False)
