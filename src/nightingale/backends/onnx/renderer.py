"""Speech tokens to samples on ONNX Runtime, in a pipeline of three threads (backends/shared/pipeline.py).

Each session has a fixed number of threads: results depend on the tokens and the seed, never on timing.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from functools import partial

from nightingale.backends.base import Block, BlockCut
from nightingale.backends.onnx.numpy_weights import Floats
from nightingale.backends.onnx.rendering.flow_stream import FlowNetwork, FlowStream
from nightingale.backends.onnx.rendering.vocoder import VocoderNetwork, VocoderStream
from nightingale.backends.shared.pipeline import CoreShares, CutStream, RenderPipeline
from nightingale.backends.shared.recorded_mel import RecordedMel
from nightingale.types import Samples
from nightingale.voices.voice import Voice


class OnnxRenderStream(CutStream):
    """One utterance: mel frames, then samples."""

    def __init__(self, flow: FlowStream, vocoder: VocoderStream, *, seed: int) -> None:
        self.flow, self.vocoder, self.seed = flow, vocoder, seed
        self.own_flow: FlowStream | None = None
        """The same tokens in the voice of the recording that they were read from, if there is one."""
        self.recorded = RecordedMel()

    def batch_key(self, cut: BlockCut) -> Hashable:  # noqa: ARG002, a protocol
        return id(self)


class OnnxRenderer(RenderPipeline):
    """Render blocks by sessions whose threads are `shares`."""

    max_batch = 1
    """A CPU renders a batch no sooner than its blocks one by one, and its first samples last."""

    def __init__(self, flow: FlowNetwork, vocoder: VocoderNetwork, shares: CoreShares) -> None:
        super().__init__(shares)
        self._flow_network, self._vocoder_network = flow, vocoder

    def open(self, voice: Voice, *, seed: int) -> OnnxRenderStream:
        flow = FlowStream(self._flow_network, voice, seed=seed)
        return OnnxRenderStream(flow, VocoderStream(self._vocoder_network, seed=seed), seed=seed)

    def render(self, blocks: Sequence[Block]) -> Future[list[Samples]]:
        (block,) = blocks
        block.stream.started = block.stream.started or bool(block.tokens)
        return self.submit(
            partial(self._mel, block), partial(self._samples, block), first=block.first and block.alone
        )

    def _mel(self, block: Block) -> Floats:
        """Return the block's mel (frames, bands); no frames where too few tokens are known."""
        started = time.perf_counter()
        mel = self._advance(block.stream.flow, block)
        if block.recorded is not None:
            mel = self._with_recorded(mel, block)
        block.record("flow", started)
        return mel

    def _advance(self, stream: FlowStream, block: Block) -> Floats:
        taken = stream.next_block(block.tokens, final=block.final)
        if taken is None:
            return self._flow_network.noise(0, 0, 0)
        (mel,), (state,) = self._flow_network.render([taken])
        return stream.finish(taken, mel, state)

    def _with_recorded(self, mel: Floats, block: Block) -> Floats:
        """Add what speech tokens do not keep of the recording (backends/shared/recorded_mel.py)."""
        stream: OnnxRenderStream = block.stream
        assert block.recorded is not None
        if stream.own_flow is None:
            stream.own_flow = FlowStream(self._flow_network, block.recorded.voice, seed=stream.seed)
        return mel + stream.recorded.missing(block, self._advance(stream.own_flow, block), len(mel))

    def _samples(self, block: Block, mel: Floats) -> list[Samples]:
        started = time.perf_counter()
        samples = block.stream.vocoder.push(mel, final=block.final)
        block.record("vocoder", started)
        return [samples]
