"""Speech tokens to samples on MLX, one block at a time."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future

import mlx.core as mx
import numpy as np

from nightingale.backends.base import Block, BlockCut, ModelSource, Renderer, Setup
from nightingale.backends.mlx.arrays import DTYPES, OwnThread
from nightingale.backends.mlx.rendering.flow_network import MlxFlow
from nightingale.backends.mlx.rendering.frame_stream import FrameStream, PromptPast, prepare_prompt
from nightingale.backends.mlx.rendering.frame_vocoder import MlxFrameVocoder
from nightingale.backends.mlx.rendering.hift_network import MlxHift
from nightingale.backends.mlx.rendering.waveform_stream import WaveformStream, open_waveform_stream
from nightingale.backends.mlx.weight_files import flow_weights, vocoder_weights
from nightingale.backends.shared.pipeline import CutStream
from nightingale.backends.shared.recorded_mel import RecordedMel
from nightingale.decoding.lru import BytesLRU
from nightingale.models.frame_vocoder.config import FrameVocoderConfig
from nightingale.types import Samples
from nightingale.voices.voice import Voice

PROMPT_CACHE_BYTES = 3 << 30
"""Limit of cached voice prompts. Ten seconds of a guided flow's prompt take 2.3 GB in float32."""


class MlxRenderStream(CutStream):
    """One utterance: mel frames, then samples."""

    def __init__(self, mel: FrameStream, samples: WaveformStream, *, seed: int) -> None:
        self.mel, self.samples, self.seed = mel, samples, seed
        self.own_mel: FrameStream | None = None
        """The same tokens in the voice of the recording that they were read from, if there is one."""
        self.recorded = RecordedMel()

    def batch_key(self, cut: BlockCut) -> Hashable:  # noqa: ARG002, a protocol
        return id(self)


class MlxRenderer:
    """Render each block when it is submitted.

    The host waits for a block once, when it reads the samples. A block that has a recorded mel goes through the flow
    twice, and the host waits twice: first for the mel in the recording's own voice, because the host computes what
    that lacks of the recorded one and adds it to the target's.
    """

    max_batch = 1
    max_in_flight = 1
    decoder_threads: int | None = None

    def __init__(self, flow: MlxFlow, vocoder: MlxHift | MlxFrameVocoder, *, streaming: bool) -> None:
        self._flow, self._vocoder, self._streaming = flow, vocoder, streaming
        self._prompts: BytesLRU[str, PromptPast] = BytesLRU(PROMPT_CACHE_BYTES)
        self._thread = OwnThread()

    def open(self, voice: Voice, *, seed: int) -> MlxRenderStream:
        self._thread.check()
        return MlxRenderStream(
            self._frames(voice, seed=seed),
            open_waveform_stream(self._vocoder, seed=seed),
            seed=seed,
        )

    def _frames(self, voice: Voice, *, seed: int) -> FrameStream:
        prompt = None
        if self._streaming:
            prompt = self._prompts.get(voice.content_hash, lambda: prepare_prompt(self._flow, voice))
        return FrameStream(self._flow, voice, seed=seed, prompt=prompt)

    def render(self, blocks: Sequence[Block]) -> Future[list[Samples]]:
        self._thread.check()
        future: Future[list[Samples]] = Future()
        future.set_result([self._samples(block) for block in blocks])
        return future

    def decoder_busy(self, busy: bool) -> None: ...

    def prepare(self) -> bool:
        return False

    def close(self) -> None:
        self._prompts = BytesLRU(PROMPT_CACHE_BYTES)
        mx.clear_cache()

    def _samples(self, block: Block) -> Samples:
        stream: MlxRenderStream = block.stream
        stream.started = stream.started or bool(block.tokens)
        started = time.perf_counter()
        mel = stream.mel.push(block.tokens, final=block.final)
        if block.recorded is not None:
            mel = self._with_recorded(mel, block)
        mx.async_eval(mel, stream.mel.state())
        started = block.record("flow", started)
        samples = stream.samples.push(mel, final=block.final)
        block.record("vocoder", started)
        return samples

    def _with_recorded(self, mel: mx.array, block: Block) -> mx.array:
        """Add what speech tokens do not keep of the recording (backends/shared/recorded_mel.py)."""
        stream: MlxRenderStream = block.stream
        assert block.recorded is not None
        stream.own_mel = stream.own_mel or self._frames(block.recorded.voice, seed=stream.seed)
        own = stream.own_mel.push(block.tokens, final=block.final)
        mx.async_eval(stream.own_mel.state())
        missing = stream.recorded.missing(block, np.array(own[0].astype(mx.float32)), mel.shape[1])
        return mel + mx.array(missing[None]).astype(mel.dtype)


def open_renderer(source: ModelSource, setup: Setup) -> Renderer:
    """Open the flow and the vocoder; their weights are read now."""
    preset, steps, dtype = source.info.preset, setup.profile.flow_steps, DTYPES[setup.precision]
    flow = source.shared(
        f"flow-mlx/{setup.precision}/{steps}",
        lambda: MlxFlow(preset.flow, flow_weights(source), steps=steps, dtype=dtype),
    )
    vocoder = source.shared(f"vocoder-mlx/{setup.precision}", lambda: load_vocoder(source, dtype))
    return MlxRenderer(flow, vocoder, streaming=setup.profile.in_blocks)


def load_vocoder(source: ModelSource, dtype: mx.Dtype) -> MlxHift | MlxFrameVocoder:
    """Return the vocoder that the preset describes."""
    config, weights = source.info.preset.vocoder, vocoder_weights(source)
    if isinstance(config, FrameVocoderConfig):
        return MlxFrameVocoder(config, weights, dtype=dtype)
    return MlxHift(config, weights, dtype=dtype)
