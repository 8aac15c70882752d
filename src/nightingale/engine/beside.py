"""Rendering in a thread of its own, beside T3's: so two cores speak one sentence.

A small model's products are too small to be shared by two threads: they cost more than one thread's and end
no sooner. But the next tokens and the sound of the last ones have nothing to do with each other until a block
is full. So where there are more cores than torch uses for a product, T3 and the studio work at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from nightingale.engine.studio import Block, Done, PlainRendering, PlainStudio, Sound
from nightingale.values import Samples
from nightingale.voices.voice import Voice


def cores_to_spare() -> bool:
    """Whether torch leaves some core of this process idle."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return torch.get_num_threads() < cores


class Later:
    """A sound that another thread renders."""

    def __init__(self, rendered: Future[Done]) -> None:
        self._rendered = rendered

    @property
    def ready(self) -> bool:
        return self._rendered.done()

    def take(self) -> list[Samples]:
        return self._rendered.result().take()


class BesideStudio:
    """The plain studio, a block at a time, in its own thread. What is cut, and so the sound, is the same."""

    together = 1

    def __init__(self, plain: PlainStudio) -> None:
        self._plain = plain
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nightingale-studio")

    def open(self, voice: Voice, *, seed: int) -> PlainRendering:
        return self._plain.open(voice, seed=seed)

    def launch(self, blocks: Sequence[Block]) -> Sound:
        # Somebody waits for the first sound: T3 beside it, taking turns with the interpreter, would delay it.
        if all(block.timing.tokens == len(block.ids) for block in blocks):
            return self._plain.launch(blocks)
        return Later(self._pool.submit(self._plain.launch, blocks))

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
