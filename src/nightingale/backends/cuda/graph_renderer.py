"""The renderer of the CUDA backend: blocks of fixed sizes, several utterances at once, beside T3.

A voice whose prompt is shorter or longer than there are graphs for is rendered by the reference renderer.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future

import numpy as np
import torch

from nightingale.audio.crossfade import HOLD_FRAMES, Crossfade
from nightingale.backends.base import (
    Block,
    BlockCut,
    ModelSource,
    Renderer,
    RenderFuture,
    RenderStream,
    Setup,
)
from nightingale.backends.cuda.block_renderer import BlockRenderer, PendingSamples, UtteranceState
from nightingale.backends.cuda.flow.voice_prompt import VoicePromptCache
from nightingale.backends.torch.devices import DTYPES
from nightingale.backends.torch.mel_stream import CONTEXT_TOKENS
from nightingale.backends.torch.renderer import PROMPT_CACHE_BYTES, TorchRenderer, TorchRenderStream
from nightingale.backends.torch.sample_stream import extrapolated_frames, harmonic_phase
from nightingale.backends.torch.weights import rendering_weights
from nightingale.decoding.lru import BytesLRU
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.types import Samples
from nightingale.voices.voice import Voice

MAX_BATCH = 16
"""Blocks of several utterances in one voice, at most, in one graph."""


class CudaRenderStream:
    prefers_large_batches = True

    def __init__(self, blocks: BlockRenderer, utterance: UtteranceState) -> None:
        self._blocks, self.utterance = blocks, utterance
        self.crossfade = Crossfade()

    def next_cut(self, waiting: int, *, finished: bool, wanted: int) -> BlockCut | None:
        cut = self._blocks.next_cut(self.utterance, waiting, finished=finished, wanted=wanted)
        return None if cut is None else BlockCut(*cut)

    def batch_key(self, cut: BlockCut) -> Hashable:
        if not cut.tokens and not self.utterance.unrendered:
            return id(self)  # there is nothing to render
        return self._blocks.batch_key(self.utterance, cut.tokens, final=cut.final)


class GraphFuture:
    """Blocks that the GPU renders."""

    def __init__(self, blocks: Sequence[Block], pending: PendingSamples) -> None:
        self._blocks, self._pending = blocks, pending
        self._started = time.perf_counter()

    def done(self) -> bool:
        return self._pending.ready

    def result(self) -> list[Samples]:
        joined = []
        for block, rendered in zip(self._blocks, self._pending.take(), strict=True):
            block.record("render", self._started)
            crossfade = block.stream.crossfade
            end = crossfade.end(rendered.known, final=block.final)
            joined.append(crossfade.join(rendered.samples, start=rendered.start, end=end))
        return joined


class CudaGraphRenderer:
    max_in_flight = 2  # one is computed, and the next one is queued behind it
    decoder_threads: int | None = None

    def __init__(
        self, blocks: BlockRenderer, reference: TorchRenderer, hift: HiftConfig, *, cache_bytes: int
    ) -> None:
        """cache_bytes: limit of cached voice prompts."""
        self._blocks, self._reference, self._hift = blocks, reference, hift
        self.max_batch = blocks.batches[-1]
        self._prompts: BytesLRU[str, VoicePromptCache] = BytesLRU(cache_bytes)

    def has_graphs_for(self, voice: Voice) -> bool:
        shortest, longest = self._blocks.prompt_range
        return shortest <= len(voice.flow_prompt_ids) <= longest

    def open(self, voice: Voice, *, seed: int) -> RenderStream:
        if not self.has_graphs_for(voice):
            return self._reference.open(voice, seed=seed)
        phase = harmonic_phase(self._hift, seed)[0]
        return CudaRenderStream(self._blocks, self._blocks.open(self.prompt(voice), seed=seed, phase=phase))

    def prompt(self, voice: Voice) -> VoicePromptCache:
        """Return the flow's cached state after the voice's prompt."""
        return self._prompts.get(
            voice.content_hash,
            lambda: self._blocks.cache_prompt(
                f"prompt/{voice.content_hash}",
                torch.tensor(voice.flow_prompt_ids),
                torch.tensor(voice.flow_prompt_mel),
                torch.tensor(voice.flow_speaker),
            ),
        )

    def render(self, blocks: Sequence[Block]) -> RenderFuture:
        if isinstance(blocks[0].stream, TorchRenderStream):
            return self._reference.render(blocks)
        if not blocks[0].tokens and not blocks[0].stream.utterance.unrendered:
            return _finished([np.zeros(0, np.float32) for _ in blocks])
        pending = self._blocks.launch([(b.stream.utterance, b.tokens, b.final) for b in blocks])
        future, first = GraphFuture(blocks, pending), blocks[0]
        if len(blocks) == 1 and first.alone and first.first:
            return _finished(future.result())  # the first audio is awaited, and T3 would take half of the GPU
        return future

    def decoder_busy(self, busy: bool) -> None: ...

    def close(self) -> None: ...


def _finished(samples: list[Samples]) -> RenderFuture:
    future: Future[list[Samples]] = Future()
    future.set_result(samples)
    return future


def open_renderer(source: ModelSource, setup: Setup) -> Renderer:
    """Open the flow and the vocoder on the GPU; graphs for the shared sizes are captured when first used."""
    profile = setup.profile
    flow, hift = rendering_weights(source, setup.machine.device)
    reference = TorchRenderer(flow, hift, streaming=profile.streaming)
    sizes = [profile.first_block_tokens]
    while sizes[-1] < profile.largest_block_tokens:
        sizes.append(min(2 * sizes[-1], profile.largest_block_tokens))
    batches = tuple(size for size in (1, 4) if size < profile.slots)
    blocks = BlockRenderer(
        flow,
        hift,
        precision=DTYPES.get(setup.precision),  # None: that of the weights
        blocks=tuple(sizes),
        context=CONTEXT_TOKENS,
        hold_frames=HOLD_FRAMES,
        extrapolated_frames=extrapolated_frames(hift),
        batches=(*batches, min(MAX_BATCH, profile.slots)),
    )
    cache_bytes = max(PROMPT_CACHE_BYTES, (setup.machine.free_bytes or 0) // 10)
    renderer = CudaGraphRenderer(blocks, reference, hift.config, cache_bytes=cache_bytes)
    voice = setup.voice
    if voice is not None and renderer.has_graphs_for(voice):
        blocks.capture(renderer.prompt(voice))
    return renderer
