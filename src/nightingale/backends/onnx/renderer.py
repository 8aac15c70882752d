"""Speech tokens to samples on ONNX Runtime, in a pipeline of four threads (backends/shared/pipeline.py).

Each session has a fixed number of threads: results depend on the tokens and the seed, never on timing.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

from nightingale.backends.base import Block, BlockCut
from nightingale.backends.onnx.numpy_weights import Floats
from nightingale.backends.onnx.rendering.flow_stream import FRAMES, FlowNetwork, FlowStream
from nightingale.backends.onnx.rendering.vocoder_stream import (
    MIN_FIRST_FRAMES,
    ExcitedPass,
    UpsampledPass,
    VocoderNetwork,
    VocoderStream,
)
from nightingale.backends.shared.pipeline import CoreShares, CutStream, RenderPipeline
from nightingale.backends.shared.recorded_mel import RecordedMel
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.types import Samples
from nightingale.voices.voice import Voice


class OnnxRenderStream(CutStream):
    """One utterance: mel frames, then samples."""

    def __init__(self, flow: FlowStream, vocoder: VocoderStream, *, prompt_tokens: int, seed: int) -> None:
        self.flow, self.vocoder, self.seed = flow, vocoder, seed
        self.own_flow: FlowStream | None = None
        """The same tokens in the voice of the recording that they were read from, if there is one."""
        self.recorded = RecordedMel()
        # What the stages will hold once all submitted blocks are rendered.
        self._waiting_tokens, self._waiting_frames = min(prompt_tokens, LOOKAHEAD_TOKENS), 0
        self._has_samples = False

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


class OnnxRenderer(RenderPipeline):
    """Render blocks by sessions whose threads are `shares`."""

    max_batch = 1
    """Blocks of one call. A CPU renders a batch no sooner than its blocks one by one, and its first samples last."""

    def __init__(self, flow: FlowNetwork, hift: VocoderNetwork, shares: CoreShares) -> None:
        super().__init__(shares, vocoder_stages=2)
        self._network, self._hift = flow, hift

    def open(self, voice: Voice, *, seed: int) -> OnnxRenderStream:
        flow, vocoder = FlowStream(self._network, voice, seed=seed), VocoderStream(self._hift, seed=seed)
        return OnnxRenderStream(flow, vocoder, prompt_tokens=len(voice.flow_prompt_ids), seed=seed)

    def render(self, blocks: Sequence[Block]) -> Future[list[Samples]]:
        for block in blocks:
            block.stream.submit(block)
        return self.submit(
            partial(self._mels, blocks),
            partial(self._excite, blocks),
            [partial(self._upsample, blocks), partial(self._synthesize, blocks)],
            first=blocks[0].first and blocks[0].alone,
        )

    def _mels(self, blocks: Sequence[Block]) -> list[Floats]:
        """Return the mel (frames, bands) of each block; no frames where too few tokens are known."""
        started = time.perf_counter()
        fresh = self._advance([block.stream.flow for block in blocks], blocks)
        fresh = [
            mel if block.recorded is None else self._with_recorded(mel, block)
            for mel, block in zip(fresh, blocks, strict=True)
        ]
        for block in blocks:
            block.record("flow", started)
        return fresh

    def _advance(self, streams: Sequence[FlowStream], blocks: Sequence[Block]) -> list[Floats]:
        taken = [
            stream.next_block(block.tokens, final=block.final)
            for stream, block in zip(streams, blocks, strict=True)
        ]
        ready = [one for one in taken if one is not None]
        if len(ready) < len(blocks):  # the blocks of a batch are alike
            return [self._network.noise(0, 0, 0) for _ in blocks]
        mels, states = self._network.render(ready)
        parts = zip(streams, ready, mels, states, strict=True)
        return [stream.finish(one, mel, state) for stream, one, mel, state in parts]

    def _with_recorded(self, mel: Floats, block: Block) -> Floats:
        """Add what speech tokens do not keep of the recording (backends/shared/recorded_mel.py)."""
        stream: OnnxRenderStream = block.stream
        assert block.recorded is not None
        if stream.own_flow is None:
            stream.own_flow = FlowStream(self._network, block.recorded.voice, seed=stream.seed)
        (own,) = self._advance([stream.own_flow], [block])
        return mel + stream.recorded.missing(block, own, len(mel))

    def _excite(self, blocks: Sequence[Block], mels: list[Floats]) -> Iterator[ExcitedPass | None]:
        """Yield the features of the excitation, pass by pass; None if the vocoder has to wait for more frames."""
        started, final = time.perf_counter(), blocks[0].final
        streams = _vocoders(blocks)
        taken = [stream.next_mel(mel, final=final) for stream, mel in zip(streams, mels, strict=True)]
        ready = [mel for mel in taken if mel is not None]
        if len(ready) < len(blocks):
            yield None
            return
        for excited in self._hift.excite(streams, ready, final=final):
            _record(blocks, started)
            yield excited
            started = time.perf_counter()

    def _upsample(self, blocks: Sequence[Block], excited: ExcitedPass | None) -> UpsampledPass | None:
        if excited is None:
            return None
        started = time.perf_counter()
        upsampled = self._hift.upsample(_vocoders(blocks), excited)
        _record(blocks, started)
        return upsampled

    def _synthesize(self, blocks: Sequence[Block], upsampled: UpsampledPass | None) -> list[Samples]:
        if upsampled is None:
            return [self._network.noise(0, 0, 0)[:, 0] for _ in blocks]
        started = time.perf_counter()
        samples = self._hift.synthesize(_vocoders(blocks), upsampled)
        _record(blocks, started)
        return samples


def _vocoders(blocks: Sequence[Block]) -> list[VocoderStream]:
    return [block.stream.vocoder for block in blocks]


def _record(blocks: Sequence[Block], started: float) -> None:
    for block in blocks:
        block.record("vocoder", started)
