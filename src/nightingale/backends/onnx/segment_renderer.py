"""Whole segments of an official model on ONNX Runtime: flow, then vocoder, each on all cores."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future

import numpy as np

from nightingale.backends.base import Block, BlockCut
from nightingale.backends.onnx.rendering.segment_flow import SegmentFlow
from nightingale.backends.onnx.rendering.vocoder_stream import VocoderNetwork, VocoderStream
from nightingale.backends.shared.pipeline import CutStream
from nightingale.types import Samples
from nightingale.voices.voice import Voice


class SegmentStream(CutStream):
    """One utterance: its tokens wait until all are known."""

    def __init__(self, voice: Voice, *, seed: int) -> None:
        self.voice, self.seed = voice, seed
        self.ids: list[int] = []

    def batch_key(self, cut: BlockCut) -> Hashable:  # noqa: ARG002, a protocol
        return id(self)


class SegmentRenderer:
    """Render a segment when its last block is submitted."""

    max_batch = 1
    max_in_flight = 1
    decoder_threads: int | None = None

    def __init__(self, flow: SegmentFlow, hift: VocoderNetwork) -> None:
        self._flow, self._hift = flow, hift

    def open(self, voice: Voice, *, seed: int) -> SegmentStream:
        return SegmentStream(voice, seed=seed)

    def render(self, blocks: Sequence[Block]) -> Future[list[Samples]]:
        future: Future[list[Samples]] = Future()
        future.set_result([self._samples(block) for block in blocks])
        return future

    def decoder_busy(self, busy: bool) -> None: ...

    def prepare(self) -> bool:
        return False

    def close(self) -> None: ...

    def _samples(self, block: Block) -> Samples:
        stream: SegmentStream = block.stream
        stream.started = stream.started or bool(block.tokens)
        stream.ids += block.tokens
        if not (block.final and stream.ids):
            return np.zeros(0, np.float32)
        started = time.perf_counter()
        mel = self._flow.render(stream.ids, stream.voice, seed=stream.seed)
        started = block.record("flow", started)
        vocoder = VocoderStream(self._hift, seed=stream.seed)
        (samples,) = self._hift.render([vocoder], [mel], final=True)
        block.record("vocoder", started)
        return samples
