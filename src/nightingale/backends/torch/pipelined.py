"""The PyTorch renderer in a pipeline of two threads (backends/shared/pipeline.py), for small models on a CPU.

The products of a small model are too small to be shared by two threads: they cost more than in one thread and
end no sooner. Only the last block of a request that runs alone is vocoded by all cores: T3 and the flow never
have anything left to do then.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

import torch
from torch import Tensor

from nightingale.backends.base import Block
from nightingale.backends.shared.capability_checks import SMALL_MODEL_WEIGHTS, available_cores
from nightingale.backends.shared.pipeline import CoreShares, RenderPipeline
from nightingale.backends.torch.devices import use_threads
from nightingale.backends.torch.renderer import TorchRenderer, TorchRenderStream
from nightingale.types import Samples
from nightingale.voices.voice import Voice


def share_cores(weights: int) -> CoreShares | None:
    """Divide this process's cores among the stages; None where each stage is better off with all of them.

    weights: of T3. An application that gave PyTorch fewer threads than cores wants no product to use more.
    """
    cores, limit = available_cores(), torch.get_num_threads()
    if cores < 2 or (weights > SMALL_MODEL_WEIGHTS and limit >= cores):
        return None
    return CoreShares.of(cores, limit)


class PipelinedRenderer(RenderPipeline):
    """The reference renderer in two threads. Blocks are cut alike, so the audio is the same."""

    max_batch = 1

    def __init__(self, renderer: TorchRenderer, shares: CoreShares) -> None:
        # T3 beside the flow, whose calls are small too, would delay the first audio.
        super().__init__(shares, waits_for_first_mel=True, on_start=use_threads)
        self._renderer = renderer

    def open(self, voice: Voice, *, seed: int) -> TorchRenderStream:
        return self._renderer.open(voice, seed=seed)

    def render(self, blocks: Sequence[Block]) -> Future[list[Samples]]:
        (block,) = blocks
        self._renderer.mark_started(block)
        return self.submit(
            partial(self._renderer.mel, block),
            partial(self._samples, block),
            first=block.first and block.alone,
        )

    def _samples(self, block: Block, mel: Tensor) -> list[Samples]:
        if not (block.final and block.alone):
            return [self._renderer.samples(block, mel)]
        use_threads(self.shares.last_block)
        try:
            return [self._renderer.samples(block, mel)]
        finally:
            use_threads(self.shares.vocoder)
