"""A renderer's stages in one thread each, so that two cores render one sentence.

The next tokens, the mel of the latest block and the samples of the one before are independent of each other, so T3,
the flow and the vocoder run at the same time, each on its own share of the cores. The last bit of a product may depend
on the number of threads, and the audio must not depend on timing. So the shares are fixed when the engine starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from nightingale.backends.base import BlockCut
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.types import Samples

Mels = TypeVar("Mels")


class CoreShares(NamedTuple):
    """Threads for each stage."""

    decoder: int
    flow: int
    vocoder: int
    last_block: int
    """Threads for the vocoder's last block, when the other stages have nothing to do."""

    @classmethod
    def of(cls, cores: int, limit: int) -> CoreShares:
        """Divide cores among the stages; no product may use more threads than `limit`."""
        few = min(limit, max(1, cores // 4))
        return cls(decoder=few, flow=few, vocoder=min(limit, max(1, cores // 2)), last_block=limit)


class CutStream:
    """A render stream whose blocks have exactly the wanted tokens, and those that are looked ahead to."""

    prefers_large_batches = False  # a batch takes as long as its blocks one by one
    first_block_tokens: int | None = None
    started = False

    def next_cut(self, waiting: int, *, finished: bool, wanted: int) -> BlockCut | None:
        size = wanted + (0 if self.started else LOOKAHEAD_TOKENS)
        # Never more than wanted, however long the block has waited, and final no sooner because the end has
        # become known in the meantime: the audio must not depend on timing.
        if waiting >= size:
            return BlockCut(size, False)
        return BlockCut(waiting, True) if finished else None


class RenderPipeline:
    """Run the stages of each block in threads of their own."""

    max_in_flight = 3  # blocks, enough to keep all stages busy

    def __init__(
        self,
        shares: CoreShares,
        *,
        waits_for_first_mel: bool = False,
        on_start: Callable[[int], None] | None = None,
    ) -> None:
        """Start the threads.

        Args:
            shares: The threads of each stage.
            waits_for_first_mel: T3 would delay the flow of a request's first block: do not return before it.
            on_start: Called in each stage's thread, with its number of threads.
        """
        self.shares = shares
        self.decoder_threads: int | None = shares.decoder
        self._two_cores, self._waits_for_first_mel = shares.vocoder == 1, waits_for_first_mel
        self._previous: Future[list[Samples]] | None = None
        self._turn, self._decoder_idle = threading.Condition(), True
        self._flow, self._vocoder = (
            ThreadPoolExecutor(
                max_workers=1,
                thread_name_prefix=f"nightingale-{stage}",
                initializer=None if on_start is None else partial(on_start, threads),
            )
            for stage, threads in (("flow", shares.flow), ("vocoder", shares.vocoder))
        )
        for stage in (self._flow, self._vocoder):
            stage.submit(int)  # now, because a thread that cannot be started later would lose its blocks

    def decoder_busy(self, busy: bool) -> None:
        if busy == self._decoder_idle:
            with self._turn:
                self._decoder_idle = not busy
                self._turn.notify_all()

    def prepare(self) -> bool:
        return False

    def close(self) -> None:
        for stage in (self._flow, self._vocoder):
            stage.shutdown(wait=True, cancel_futures=True)

    def submit(
        self, mels: Callable[[], Mels], synthesize: Callable[[Mels], list[Samples]], *, first: bool
    ) -> Future[list[Samples]]:
        """Queue the stages of some blocks.

        Args:
            mels: The flow.
            synthesize: The vocoder.
            first: They are the first of the only request, which waits for them.
        """
        previous = self._previous

        def render_mels() -> Mels:
            # The stages of a block run one after the other: on two cores, T3 and another block would delay it.
            if self._two_cores and previous is not None:
                with self._turn:
                    self._turn.wait_for(lambda: self._decoder_idle or previous.done())
            return mels()

        rendered = self._flow.submit(render_mels)
        samples = self._vocoder.submit(lambda: synthesize(rendered.result()))
        self._previous = samples
        samples.add_done_callback(self._notify)
        if first and self._waits_for_first_mel:
            with suppress(Exception):  # the caller gets it from the future
                rendered.result()
        return samples

    def _notify(self, _: Future[list[Samples]]) -> None:
        with self._turn:
            self._turn.notify_all()
