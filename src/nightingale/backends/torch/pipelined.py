"""T3, the flow and the two halves of the vocoder in a thread each: so two cores speak one sentence.

A small model's products are too small to be shared by two threads: they cost more than one thread's and end
no sooner. But the next tokens, the mel of the last ones and the sound of those before have nothing to do with
each other once a block is full. So all work at the same time, each on its own share of the cores.

The last bit of a product depends on how many threads made it, and what is heard must not depend on the
clock. So the shares are settled when the engine starts, and do not change with what happens to be idle. Only
the last block of somebody who is alone is vocoded by all cores: T3 and the flow never have anything left to
do then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import torch
from torch import Tensor

from nightingale.backends.torch.renderer import Block, TorchRenderStream, TorchRenderer, Shares, RenderFuture
from nightingale.backends.torch.sample_stream import Excited
from nightingale.types import Samples
from nightingale.voices.voice import Voice

SMALL_WEIGHTS = 50_000_000
"""With fewer, two threads spend more on waking each other than they save."""


def share_cores(weights: int) -> Shares | None:
    """How the three stages of a model share this process's cores; None where each is better off with all.

    weights: T3's. Whoever gave torch fewer threads than there are cores meant each product to have no more.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most = torch.get_num_threads()
    if cores < 2 or (weights > SMALL_WEIGHTS and most >= cores):
        return None
    few = min(most, max(1, cores // 4))
    return Shares(t3=few, flow=few, vocoder=min(most, cores // 2), alone=most)


_COUNTING = threading.Lock()


def use_threads(count: int) -> None:
    """So many threads for the products of the thread that calls this, and for nobody else's."""
    # Torch remembers the number for threads to come, too. A new thread knows it, and puts it back. One at a
    # time: another would find the number of the first, and put that back.
    with _COUNTING, ThreadPoolExecutor(max_workers=1) as aside:
        others = aside.submit(torch.get_num_threads).result()
        torch.get_num_threads()  # which, in a thread's first call, takes the number for threads to come
        torch.set_num_threads(count)
        aside.submit(torch.set_num_threads, others).result()


class Later:
    """A sound that other threads render."""

    def __init__(self, rendered: Future[Samples]) -> None:
        self._rendered = rendered

    @property
    def ready(self) -> bool:
        return self._rendered.done()

    def take(self) -> list[Samples]:
        return [self._rendered.result()]


class PipelinedRenderer:
    """The plain studio in three threads of its own. What is cut, and so the sound, is the same."""

    together = 1
    under_way = 3  # a block in each stage

    def __init__(self, plain: TorchRenderer, shares: Shares) -> None:
        self._plain = plain
        self.shares: Shares | None = shares
        self._crowded = shares.vocoder == 1
        self._last: Future[Samples] | None = None
        self._turn, self._t3_rests = threading.Condition(), True
        self._flow = _one_thread("flow", shares.flow)
        self._excitation = _one_thread("excitation", shares.vocoder)
        self._vocoder = _one_thread("vocoder", shares.vocoder)

    def open(self, voice: Voice, *, seed: int) -> TorchRenderStream:
        return self._plain.open(voice, seed=seed)

    def t3_works(self, busy: bool) -> None:
        if busy == self._t3_rests:
            with self._turn:
                self._t3_rests = not busy
                self._turn.notify_all()

    def launch(self, blocks: Sequence[Block]) -> RenderFuture:
        (block,) = blocks
        self._plain.note(block)
        mel = self._flow.submit(self._mel, block, self._last)
        excited = self._excitation.submit(lambda: self._plain.excite(block, mel.result()))
        samples = self._last = self._vocoder.submit(self._sound, block, excited)
        samples.add_done_callback(self._next_turn)
        if block.timing.tokens == len(block.ids):
            # Somebody waits for his first sound: T3 beside its flow, whose calls are small too, delays it.
            with suppress(Exception):  # whoever takes the sound will hear of it
                mel.result()
        return Later(samples)

    def _mel(self, block: Block, before: Future[Samples] | None) -> Tensor:
        # A block's stages come one after the other: on two cores, T3 and another block would hold it up.
        if self._crowded and before is not None:
            with self._turn:
                self._turn.wait_for(lambda: self._t3_rests or before.done())
        return self._plain.mel(block)

    def _next_turn(self, _: Future[Samples]) -> None:
        with self._turn:
            self._turn.notify_all()

    def _sound(self, block: Block, excited: Future[Excited]) -> Samples:
        if not (block.final and block.alone):
            return self._plain.samples(block, excited.result())
        assert self.shares is not None
        use_threads(self.shares.alone)
        try:
            return self._plain.samples(block, excited.result())
        finally:
            use_threads(self.shares.vocoder)

    def close(self) -> None:
        for pool in (self._flow, self._excitation, self._vocoder):
            pool.shutdown(wait=True, cancel_futures=True)


def _one_thread(stage: str, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(
        max_workers=1, thread_name_prefix=f"nightingale-{stage}", initializer=use_threads, initargs=(threads,)
    )
