"""Speech tokens to samples on ONNX Runtime: the flow and the two parts of the vocoder in one thread each.

The next tokens, the mel of the latest block, the excitation of the one before and the samples of another one
are independent of each other, so T3 and the three stages run at the same time. Each session has a fixed number
of threads: results depend on the tokens and the seed, never on timing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from nightingale.backends.base import Block, BlockCut
from nightingale.backends.onnx.numpy_weights import Floats
from nightingale.backends.onnx.rendering.flow_stream import FRAMES, FlowNetwork, FlowStream
from nightingale.backends.onnx.rendering.vocoder_stream import (
    MIN_FIRST_FRAMES,
    ExcitedPass,
    VocoderNetwork,
    VocoderStream,
)
from nightingale.backends.shared.capability_checks import available_cores
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.types import Samples
from nightingale.voices.voice import Voice


class StageThreads(NamedTuple):
    """Threads for each stage; those of the vocoder's two parts are equal."""

    decoder: int
    flow: int
    vocoder: int


def share_cores(cores: int | None = None) -> StageThreads:
    """Divide the cores of this process among the stages."""
    cores = available_cores() if cores is None else cores
    few = max(1, cores // 4)
    return StageThreads(decoder=few, flow=few, vocoder=max(1, cores // 2))


class OnnxRenderStream:
    """One utterance: mel frames, then samples."""

    prefers_large_batches = False  # a batch takes as long as its blocks one by one

    def __init__(self, flow: FlowStream, vocoder: VocoderStream, *, prompt_tokens: int) -> None:
        self.flow, self.vocoder = flow, vocoder
        self.started = False
        # What the stages will hold once all submitted blocks are rendered.
        self._waiting_tokens, self._waiting_frames = min(prompt_tokens, LOOKAHEAD_TOKENS), 0
        self._has_samples = False

    def next_cut(self, waiting: int, *, finished: bool, wanted: int) -> BlockCut | None:
        size = wanted + (0 if self.started else LOOKAHEAD_TOKENS)
        # Never more than wanted, however long the block has waited, and final no sooner because the end has
        # become known in the meantime: the audio must not depend on timing.
        if waiting >= size:
            return BlockCut(size, False)
        return BlockCut(waiting, True) if finished else None

    def batch_key(self, cut: BlockCut) -> Hashable:
        return cut, self._waiting_tokens, self._waiting_frames, self._has_samples

    def submit(self, block: Block) -> None:
        """Count a block that was submitted."""
        self.started = self.started or bool(block.tokens)
        tokens = self._waiting_tokens + len(block.tokens)
        self._waiting_tokens = 0 if block.final else min(tokens, LOOKAHEAD_TOKENS)
        self._waiting_frames += FRAMES * (tokens - self._waiting_tokens)
        if self._has_samples or self._waiting_frames >= MIN_FIRST_FRAMES:
            self._has_samples, self._waiting_frames = True, 0


class OnnxRenderer:
    """Render blocks in a pipeline of three threads.

    Args:
        flow: The flow's sessions.
        hift: The vocoder's sessions.
        shares: The threads that these sessions have, and those that are left for the decoder.
        max_batch: Blocks of one call. On a CPU a batch takes as long as its blocks one after the other, and
            its first samples come last.
    """

    max_in_flight = 3  # one block in each stage

    def __init__(
        self, flow: FlowNetwork, hift: VocoderNetwork, shares: StageThreads, *, max_batch: int = 1
    ) -> None:
        self._flow, self._hift, self.max_batch = flow, hift, max_batch
        self.decoder_threads: int | None = shares.decoder
        self._few_cores = shares.vocoder == 1
        self._previous: Future[list[Samples]] | None = None
        self._turn, self._decoder_idle = threading.Condition(), True
        self._stages = [
            ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"nightingale-{stage}")
            for stage in ("flow", "excitation", "vocoder")
        ]

    def open(self, voice: Voice, *, seed: int) -> OnnxRenderStream:
        flow, vocoder = FlowStream(self._flow, voice, seed=seed), VocoderStream(self._hift, seed=seed)
        return OnnxRenderStream(flow, vocoder, prompt_tokens=len(voice.flow_prompt_ids))

    def decoder_busy(self, busy: bool) -> None:
        if busy == self._decoder_idle:
            with self._turn:
                self._decoder_idle = not busy
                self._turn.notify_all()

    def render(self, blocks: Sequence[Block]) -> Future[list[Samples]]:
        for block in blocks:
            block.stream.submit(block)
        flow, excitation, vocoder = self._stages
        mels = flow.submit(self._mels, blocks, self._previous)
        features = excitation.submit(self._excite, blocks, mels)
        samples = self._previous = vocoder.submit(self._synthesize, blocks, features)
        samples.add_done_callback(self._notify)
        if blocks[0].first:
            # The first audio is awaited: T3 beside the flow would delay it.
            with suppress(Exception):  # the caller gets it from the future
                mels.result()
        return samples

    def close(self) -> None:
        for stage in self._stages:
            stage.shutdown(wait=True, cancel_futures=True)

    def _notify(self, _: Future[list[Samples]]) -> None:
        with self._turn:
            self._turn.notify_all()

    def _mels(self, blocks: Sequence[Block], previous: Future[list[Samples]] | None) -> list[Floats]:
        """Return the mel (frames, bands) of each block; no frames where too few tokens are known."""
        # The stages of a block run one after the other: on two cores, T3 and another block would delay it.
        if self._few_cores and previous is not None:
            with self._turn:
                self._turn.wait_for(lambda: self._decoder_idle or previous.done())
        started = time.perf_counter()
        streams: list[FlowStream] = [block.stream.flow for block in blocks]
        taken = [
            stream.next_block(block.tokens, final=block.final)
            for stream, block in zip(streams, blocks, strict=True)
        ]
        ready = [one for one in taken if one is not None]
        if len(ready) < len(blocks):  # the blocks of a batch are alike
            return [self._flow.noise(0, 0, 0) for _ in blocks]
        mels, states = self._flow.render(ready)
        parts = zip(streams, ready, mels, states, strict=True)
        fresh = [stream.finish(one, mel, state) for stream, one, mel, state in parts]
        for block in blocks:
            block.record("flow", started)
        return fresh

    def _excite(self, blocks: Sequence[Block], mels: Future[list[Floats]]) -> list[ExcitedPass]:
        """Return the features of the excitation; none if the vocoder has to wait for more frames."""
        known, final = mels.result(), blocks[0].final
        started = time.perf_counter()
        streams: list[VocoderStream] = [block.stream.vocoder for block in blocks]
        taken = [stream.next_mel(mel, final=final) for stream, mel in zip(streams, known, strict=True)]
        ready = [mel for mel in taken if mel is not None]
        if len(ready) < len(blocks):
            return []
        passes = self._hift.excite(streams, ready, final=final)
        for block in blocks:
            block.record("vocoder", started)
        return passes

    def _synthesize(self, blocks: Sequence[Block], excited: Future[list[ExcitedPass]]) -> list[Samples]:
        passes = excited.result()
        if not passes:
            return [self._flow.noise(0, 0, 0)[:, 0] for _ in blocks]
        started = time.perf_counter()
        streams: list[VocoderStream] = [block.stream.vocoder for block in blocks]
        samples = self._hift.synthesize(streams, passes)
        for block in blocks:
            block.record("vocoder", started)
        return samples
