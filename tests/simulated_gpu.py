"""A GPU in simulated time: a decoder of several steps per call and a renderer of large batches."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from simulated_engine import Cores, SimulatedEngine, SimulatedFuture, SimulatedStream

from nightingale.backends.base import Block, BlockCut
from nightingale.clocks import CLOCKS
from nightingale.decoding.decoding import Decoding
from nightingale.decoding.host_decoder import DecodeRow
from nightingale.decoding.kv_cache_size import KVCacheSize
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.t3.config import STOP_SPEECH


@dataclass(frozen=True)
class GpuCosts:
    """Seconds, for the multilingual model on an H200, measured."""

    prefill_s: float = 0.0013
    step_s: float = 0.00125
    slot_s: float = 0.000015
    batch_s: float = 0.027
    block_s: float = 0.0079
    token_s: float = 0.00003
    launch_s: float = 0.0065
    """The worker's time for a batch of 16 blocks, before the GPU begins."""
    steps: int = 4
    max_batch: int = 16
    context: int = 25


TURBO = GpuCosts(
    prefill_s=0.002, step_s=0.0011, slot_s=0.000007, batch_s=0.012, block_s=0.0016, token_s=0.00001
)


HELD_SAMPLES = 1920
"""Samples at the end of a block that are given out with the next one, which they are cross-faded with."""


class GpuStream(SimulatedStream):
    prefers_large_batches, first_block_tokens = True, 5
    held = 0

    def batch_key(self, cut: BlockCut) -> Hashable:
        return None


class GpuDecoder:
    max_prefills = 16

    def __init__(self, cores: Cores, costs: GpuCosts, kv_cache_size: KVCacheSize) -> None:
        self.cores, self.costs, self.kv_cache_size = cores, costs, kv_cache_size

    def start(self) -> None: ...

    def prefill(self, slot: int, decoding: Decoding) -> list[int]:
        self.cores.run(self.costs.prefill_s)
        return []

    def decode(self, rows: Sequence[DecodeRow]) -> list[list[int] | Exception]:
        self.cores.run(self.costs.steps * (self.costs.step_s + len(rows) * self.costs.slot_s))
        drawn = []
        for row in rows:
            left = row.decoding.prompt.text_ids[0] - row.decoding.appended
            drawn.append([1] * min(left, self.costs.steps) + [STOP_SPEECH] * (left < self.costs.steps))
        return list(drawn)

    def release(self, slot: int) -> None: ...

    def move(self, source: int, target: int) -> None: ...

    def reset(self, slot: int) -> None: ...


class GpuRenderer:
    max_in_flight = 2
    decoder_threads: int | None = None

    def __init__(self, cores: Cores, costs: GpuCosts) -> None:
        self.cores, self.costs, self.max_batch = cores, costs, costs.max_batch
        self.batches: list[list[int]] = []
        """The tokens of each block of each batch."""
        self._queue: list[Any] = []

    def open(self, voice: Any, *, seed: int) -> GpuStream:
        return GpuStream()

    def render(self, blocks: Sequence[Block]) -> SimulatedFuture:
        costs, samples, work_s = self.costs, [], self.costs.batch_s
        self.batches.append([len(block.tokens) for block in blocks])
        for block in blocks:
            stream: GpuStream = block.stream
            before = max(0, stream.tokens - LOOKAHEAD_TOKENS)
            stream.tokens += len(block.tokens)
            stream.started = True
            tokens = stream.tokens - (0 if block.final else LOOKAHEAD_TOKENS) - before
            held, stream.held = stream.held, 0 if block.final else HELD_SAMPLES
            given = tokens * CLOCKS.samples_per_token + held - stream.held
            samples.append(np.zeros(max(0, given), np.float32))
            work_s += costs.block_s + costs.token_s * (tokens + min(before, costs.context))
        future = SimulatedFuture(self.cores)
        self.cores.run(costs.launch_s * len(blocks) / costs.max_batch)
        self._queue.append((work_s, future, samples))
        if len(self._queue) == 1:
            self._start()
        if len(blocks) == 1 and blocks[0].first and blocks[0].alone:
            self.cores.wait_for(future.done)
        return future

    def _start(self) -> None:
        work_s, future, samples = self._queue[0]

        def ended() -> None:
            self._queue.pop(0)
            future.set_result(samples)
            if self._queue:
                self._start()

        self.cores.start(work_s, ended)

    def decoder_busy(self, busy: bool) -> None: ...

    def prepare(self) -> bool:
        return False

    def close(self) -> None: ...


def gpu_parts(costs: GpuCosts) -> dict[str, Any]:
    """Return the options of a `SimulatedEngine` with a GPU."""
    return {
        "decoder": lambda engine, kv_cache_size: GpuDecoder(engine.cores, costs, kv_cache_size),
        "renderer": lambda engine: GpuRenderer(engine.cores, costs),
    }


def summary(engine: SimulatedEngine) -> dict[str, float]:
    """Return what the listeners of an engine had, over all of them."""
    listeners = engine.listeners
    waits = sorted(one.first_audio_s for one in listeners)
    ended_s = max(one.arrivals[-1][0] for one in listeners)
    audio_s = sum(length_s for one in listeners for _, length_s in one.arrivals)
    return {
        "p50": waits[len(waits) // 2],
        "p95": waits[int(0.95 * (len(waits) - 1))],
        "rate": audio_s / (ended_s - min(one.opened_s for one in listeners)),
        "with_underruns": sum(bool(one.underruns) for one in listeners),
    }
