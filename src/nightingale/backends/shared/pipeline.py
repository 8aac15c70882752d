"""A renderer's stages in one thread each, so that two cores render one sentence.

The next tokens, the mel of the latest block, the excitation of the one before and the samples of another one
are independent of each other, so T3 and the stages run at the same time, each on its own share of the cores.
After the flow a block may be rendered in parts, each of which enters a stage as soon as it has left the one
before: so the stages run at the same time within the last block of a sentence too. The last bit of a product
may depend on the number of threads, and the audio must not depend on timing. So the shares are fixed when the
engine starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nightingale.backends.base import BlockCut
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.types import Samples

Mels = TypeVar("Mels")


class CoreShares(NamedTuple):
    """Threads for each stage; those of the vocoder's two parts are equal."""

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
        vocoder_stages: int = 1,
        waits_for_first_mel: bool = False,
        on_start: Callable[[int], None] | None = None,
    ) -> None:
        """Start the threads.

        Args:
            shares: The threads of each stage.
            vocoder_stages: Stages after the excitation.
            waits_for_first_mel: T3 would delay the flow of a request's first block: do not return before it.
            on_start: Called in each stage's thread, with its number of threads.
        """
        self.shares = shares
        self.decoder_threads: int | None = shares.decoder
        self._two_cores, self._waits_for_first_mel = shares.vocoder == 1, waits_for_first_mel
        self._previous: Future[list[Samples]] | None = None
        self._turn, self._decoder_idle = threading.Condition(), True
        vocoder = [(f"vocoder-{number}", shares.vocoder) for number in range(vocoder_stages)]
        self._flow, self._excitation, *self._vocoder = (
            ThreadPoolExecutor(
                max_workers=1,
                thread_name_prefix=f"nightingale-{stage}",
                initializer=None if on_start is None else partial(on_start, threads),
            )
            for stage, threads in [("flow", shares.flow), ("excitation", shares.vocoder), *vocoder]
        )
        for stage in (self._flow, self._excitation, *self._vocoder):
            stage.submit(int)  # now, because a thread that cannot be started later would lose its blocks

    def decoder_busy(self, busy: bool) -> None:
        if busy == self._decoder_idle:
            with self._turn:
                self._decoder_idle = not busy
                self._turn.notify_all()

    def prepare(self) -> bool:
        return False

    def close(self) -> None:
        for stage in (self._flow, self._excitation, *self._vocoder):
            stage.shutdown(wait=True, cancel_futures=True)

    def submit(
        self,
        mels: Callable[[], Mels],
        excite: Callable[[Mels], Iterable[Any]],
        synthesize: Sequence[Callable[[Any], Any]],
        *,
        first: bool,
    ) -> Future[list[Samples]]:
        """Queue the stages of some blocks.

        Args:
            mels: The flow.
            excite: Returns the parts of the blocks one after the other.
            synthesize: What each stage of the vocoder makes of a part; the last one returns samples.
            first: They are the first of the only request, which waits for them.
        """
        previous, samples = self._previous, Future[list[Samples]]()

        def render_mels() -> Mels:
            # The stages of a block run one after the other: on two cores, T3 and another block would delay it.
            if self._two_cores and previous is not None:
                with self._turn:
                    self._turn.wait_for(lambda: self._decoder_idle or previous.done())
            return mels()

        def excite_parts() -> None:
            parts: list[Future[list[Samples]]] = []
            try:
                for part in excite(rendered.result()):
                    done: Future[Any] = self._vocoder[0].submit(synthesize[0], part)
                    for stage, run in zip(self._vocoder[1:], synthesize[1:], strict=True):
                        done = stage.submit(_after, done, run)
                    parts.append(done)
                self._vocoder[-1].submit(_join, parts, samples)
            except BaseException as error:  # the caller gets it from the future
                samples.set_exception(error)

        rendered = self._flow.submit(render_mels)
        self._excitation.submit(excite_parts)
        self._previous = samples
        samples.add_done_callback(self._notify)
        if first and self._waits_for_first_mel:
            with suppress(Exception):  # the caller gets it from the future
                rendered.result()
        return samples

    def _notify(self, _: Future[list[Samples]]) -> None:
        with self._turn:
            self._turn.notify_all()


def _after(previous: Future[Any], run: Callable[[Any], Any]) -> Any:
    return run(previous.result())


def _join(parts: Sequence[Future[list[Samples]]], joined: Future[list[Samples]]) -> None:
    """Concatenate the samples of finished parts, block by block."""
    try:
        rows = zip(*(part.result() for part in parts), strict=True)
        joined.set_result([row[0] if len(row) == 1 else np.concatenate(row) for row in rows])
    except BaseException as error:  # the caller gets it from the future
        joined.set_exception(error)
