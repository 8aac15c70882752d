"""T3, the flow and the two halves of the vocoder in one thread each, so that two cores render one sentence.

The products of a small model are too small to be shared by two threads: they cost more than in one thread and
end no sooner. But the next tokens, the mel of the last block and the samples of the one before are
independent of each other. So all of them run at the same time, each on its own share of the cores.

The last bit of a product depends on the number of threads, and the audio must not depend on timing. So the
shares are fixed when the engine starts. Only the last block of a request that runs alone is vocoded by all
cores: T3 and the flow never have anything left to do then.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from nightingale.backends.base import Block
from nightingale.backends.shared.capability_checks import SMALL_MODEL_WEIGHTS, available_cores
from nightingale.backends.torch.devices import use_threads
from nightingale.backends.torch.renderer import TorchRenderer, TorchRenderStream
from nightingale.backends.torch.sample_stream import Excitation
from nightingale.types import Samples
from nightingale.voices.voice import Voice


class CoreShares(NamedTuple):
    """Threads for each stage."""

    decoder: int
    flow: int
    vocoder: int
    last_block: int
    """Threads for the vocoder's last block, when the other stages have nothing to do."""


def share_cores(weights: int) -> CoreShares | None:
    """Divide this process's cores among the stages; None where each stage is better off with all of them.

    weights: of T3. An application that gave PyTorch fewer threads than cores wants no product to use more.
    """
    cores = available_cores()
    limit = torch.get_num_threads()
    if cores < 2 or (weights > SMALL_MODEL_WEIGHTS and limit >= cores):
        return None
    few = min(limit, max(1, cores // 4))
    return CoreShares(decoder=few, flow=few, vocoder=min(limit, cores // 2), last_block=limit)


class PipelinedRenderer:
    """The reference renderer in three threads. Blocks are cut alike, so the audio is the same."""

    max_batch = 1
    max_in_flight = 3  # one block in each stage

    def __init__(self, renderer: TorchRenderer, shares: CoreShares) -> None:
        self._renderer, self.shares = renderer, shares
        self.decoder_threads: int | None = shares.decoder
        self._two_cores = shares.vocoder == 1
        self._previous: Future[list[Samples]] | None = None
        self._turn, self._decoder_idle = threading.Condition(), True
        self._flow = _one_thread("flow", shares.flow)
        self._excitation = _one_thread("excitation", shares.vocoder)
        self._vocoder = _one_thread("vocoder", shares.vocoder)

    def open(self, voice: Voice, *, seed: int) -> TorchRenderStream:
        return self._renderer.open(voice, seed=seed)

    def decoder_busy(self, busy: bool) -> None:
        if busy == self._decoder_idle:
            with self._turn:
                self._decoder_idle = not busy
                self._turn.notify_all()

    def render(self, blocks: Sequence[Block]) -> Future[list[Samples]]:
        (block,) = blocks
        self._renderer.mark_started(block)
        mel = self._flow.submit(self._mel, block, self._previous)
        excitation = self._excitation.submit(lambda: self._renderer.excite(block, mel.result()))
        samples = self._previous = self._vocoder.submit(self._samples, block, excitation)
        samples.add_done_callback(self._notify)
        if block.first:
            # The first audio is awaited: T3 beside the flow, whose calls are small too, would delay it.
            with suppress(Exception):  # the caller gets it from the future
                mel.result()
        return samples

    def _mel(self, block: Block, previous: Future[list[Samples]] | None) -> Tensor:
        # The stages of a block run one after the other: on two cores, T3 and another block would delay it.
        if self._two_cores and previous is not None:
            with self._turn:
                self._turn.wait_for(lambda: self._decoder_idle or previous.done())
        return self._renderer.mel(block)

    def _notify(self, _: Future[list[Samples]]) -> None:
        with self._turn:
            self._turn.notify_all()

    def _samples(self, block: Block, excitation: Future[Excitation]) -> list[Samples]:
        if not (block.final and block.alone):
            return [self._renderer.samples(block, excitation.result())]
        use_threads(self.shares.last_block)
        try:
            return [self._renderer.samples(block, excitation.result())]
        finally:
            use_threads(self.shares.vocoder)

    def close(self) -> None:
        for pool in (self._flow, self._excitation, self._vocoder):
            pool.shutdown(wait=True, cancel_futures=True)


def _one_thread(stage: str, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(
        max_workers=1, thread_name_prefix=f"nightingale-{stage}", initializer=use_threads, initargs=(threads,)
    )
