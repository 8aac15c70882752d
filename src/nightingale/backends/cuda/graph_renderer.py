"""The renderer of the CUDA backend: blocks of the flow, then windows of the vocoder, several utterances at
once.

Everything runs on a stream of its own, beside T3's, and nothing waits for the host: ids and samples are copied
through pinned memory. Block sizes are few and fixed, so each is a graph. A voice whose prompt is shorter or
longer than there are graphs for is rendered by the reference renderer.

Why nothing is overwritten while it is read. One thread launches all work, of `prompt`, `open` and `render`,
on the one stream, where it runs in order: the inputs of a graph, its replay, the copies of its results.
Graphs share a memory pool for that reason only. What outlives a block (state of convolutions, the last mel,
cycles) is a copy. T3 shares only weights, which never change, and tokens, which come through the host; not
even library workspaces, which belong to the stream a graph was captured on (`reserve_stream`).

Reference: `TorchRenderer` in backends/torch/renderer.py gives the same samples, to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

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
from nightingale.backends.cuda.bucketed_vocoder import (
    EMPTY_WINDOW,
    BucketedVocoder,
    VocoderWindows,
    context_frames,
)
from nightingale.backends.cuda.flow.flow_blocks import FlowBlocks
from nightingale.backends.cuda.flow.flow_steps import FRAMES, FlowSteps, VoicePromptCache, cache_prompt
from nightingale.backends.cuda.graphs import (
    RENDER_PRIORITY,
    HostCopy,
    copy_async,
    deterministic_cudnn,
    reserve_stream,
)
from nightingale.backends.cuda.random import int64_key
from nightingale.backends.torch.devices import DTYPES
from nightingale.backends.torch.mel_stream import CONTEXT_TOKENS
from nightingale.backends.torch.renderer import PROMPT_CACHE_BYTES, TorchRenderer, TorchRenderStream
from nightingale.backends.torch.sample_stream import extrapolated_frames, harmonic_phase
from nightingale.backends.torch.weights import rendering_weights
from nightingale.clocks import CLOCKS
from nightingale.decoding.lru import BytesLRU
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.types import Samples
from nightingale.voices.voice import Voice

SAMPLES = CLOCKS.samples_per_frame
MAX_BATCH = 16
"""Blocks of several utterances in one voice, at most, in one graph."""


def padded_sizes(blocks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tokens of blocks, ascending, with the prompt's or the context tokens before them."""
    return tuple(sorted({LOOKAHEAD_TOKENS + blocks[0], *(CONTEXT_TOKENS + block for block in blocks)}))


class CudaRenderStream:
    """An utterance between two blocks. Tokens are counted from the prompt's first.

    blocks: the sizes of blocks in tokens, ascending; phase: (harmonics, 1) radians.
    """

    prefers_large_batches = True

    def __init__(
        self, prompt: VoicePromptCache, *, blocks: tuple[int, ...], seed: int, phase: Tensor
    ) -> None:
        self.prompt, self.blocks, self.phase = prompt, blocks, phase
        self.flow_key, self.source_key = int64_key(seed, "flow"), int64_key(seed, "source")
        self.ids, self.start = list(prompt.pending_ids), prompt.tokens
        """The tokens from `start` on, where the next block begins."""
        self.rendered_tokens = prompt.tokens + len(prompt.pending_ids)
        """Tokens before this one were rendered, or are the prompt's."""
        self.conv_state, self.window, self.crossfade = prompt.conv_state, EMPTY_WINDOW, Crossfade()
        self.started = False
        """True once a block was rendered."""

    @property
    def unrendered(self) -> int:
        return self.start + len(self.ids) - self.rendered_tokens

    def next_cut(self, waiting: int, *, finished: bool, wanted: int) -> BlockCut | None:
        """Return the next block, of about `wanted` tokens unless it is the last one.

        The result depends on the ids alone, not on when they arrived and whether the end was known by then:
        audio must not depend on the clock.
        """
        unrendered = self.unrendered + waiting
        possible = unrendered - LOOKAHEAD_TOKENS
        block = max(b for b in self.blocks if b <= wanted or b == self.blocks[0])
        if not self.started:
            block = self.blocks[0]
        if finished and possible < block and unrendered > self.blocks[-1]:
            # Too few for this block, too many for the last one: never while more may come.
            block = max(b for b in self.blocks if b <= possible)
        if possible >= block:
            return BlockCut(block + LOOKAHEAD_TOKENS - self.unrendered, False)
        return BlockCut(waiting, True) if finished else None

    def batch_key(self, cut: BlockCut) -> Hashable:
        if not cut.tokens and not self.unrendered:
            return id(self)  # there is nothing to render
        return id(self.prompt), self.block_size(cut.tokens, final=cut.final)

    def block_size(self, tokens: int, *, final: bool) -> int:
        """Return the tokens of a block with so many new ones, padding included."""
        ids = len(self.ids) + tokens
        if not final:
            return ids - LOOKAHEAD_TOKENS
        return next(size for size in padded_sizes(self.blocks) if size >= ids)


class GraphFuture:
    """Blocks that the GPU renders, and their samples on the way to the host.

    rows: for each block the number of its first frame, the frames that were rendered, and the frames of the
    utterance that have arrived.
    """

    def __init__(self, blocks: Sequence[Block], copy: HostCopy, rows: Sequence[tuple[int, int, int]]) -> None:
        self._blocks, self._copy, self._rows, self.done = blocks, copy, rows, copy.done
        self._started = time.perf_counter()

    def result(self) -> list[Samples]:
        joined, rows = [], zip(self._blocks, self._copy.take().numpy(), self._rows, strict=True)
        for block, samples, (first, frames, known) in rows:
            block.record("render", self._started)
            crossfade = block.stream.crossfade
            end = crossfade.end(SAMPLES * known, final=block.final)
            rendered = samples[: SAMPLES * frames].copy()
            joined.append(crossfade.join(rendered, start=SAMPLES * first, end=end))
        return joined


class CudaGraphRenderer:
    """The flow and the vocoder with graphs for a few sizes of blocks and batches."""

    max_in_flight = 2  # one is computed, and the next one is queued behind it
    decoder_threads: int | None = None

    def __init__(self, flow: Flow, hift: Hift, setup: Setup) -> None:
        profile, sizes = setup.profile, [setup.profile.smallest_block_tokens]
        flow = flow.with_steps(profile.flow_steps)
        while sizes[-1] < profile.largest_block_tokens:
            sizes.append(min(2 * sizes[-1], profile.largest_block_tokens))
        self.blocks = blocks = tuple(sizes)
        if blocks[0] + LOOKAHEAD_TOKENS < CONTEXT_TOKENS or len(blocks) < 2:
            raise ConfigError(
                "the first block is too small, or there is no other",
                got=f"blocks of {', '.join(map(str, blocks))} tokens",
                allowed=f"two or more sizes, from {CONTEXT_TOKENS - LOOKAHEAD_TOKENS} tokens on",
                fix="Choose a larger first_block_tokens, or the exact profile.",
            )
        self.max_batch = min(MAX_BATCH, profile.slots)
        batches = (*(size for size in (1, 4) if size < profile.slots), self.max_batch)
        self._reference = TorchRenderer(flow, hift, streaming=profile.in_blocks)
        cache_bytes = max(PROMPT_CACHE_BYTES, (setup.machine.free_bytes or 0) // 10)
        self._prompts: BytesLRU[str, VoicePromptCache] = BytesLRU(cache_bytes)
        self._hift = hift.config
        self._steps = FlowSteps(flow, precision=DTYPES.get(setup.precision))  # None: that of the weights
        self._device = self._steps.device
        self._flow_blocks = FlowBlocks(
            self._steps, context=CONTEXT_TOKENS, tokens=padded_sizes(blocks), batches=batches
        )
        before, extrapolated = HOLD_FRAMES + context_frames(hift)[0], extrapolated_frames(hift)
        frames = {FRAMES * blocks[0] + extrapolated}
        frames |= {before + FRAMES * block + extrapolated for block in blocks}
        vocoder = BucketedVocoder(hift, batches=batches, frames=tuple(sorted(frames)))
        self._windows = VocoderWindows(vocoder)
        self._stream: torch.cuda.Stream | None = None
        if self._device.type == "cuda":
            self._stream = reserve_stream(self._device, RENDER_PRIORITY, self)
            # Weights that were converted above may still be on their way on the current stream.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def has_graphs_for(self, voice: Voice) -> bool:
        tokens = len(voice.flow_prompt_ids) - LOOKAHEAD_TOKENS
        return 1 <= tokens <= self._flow_blocks.prompts[-1]

    def capture(self, voice: Voice) -> None:
        """Capture every size, for voices with a prompt about as long as this one's."""
        prompt = self.prompt(voice)
        with self._on_stream():
            self._flow_blocks.capture(prompt)
            self._windows.vocoder.capture()

    def open(self, voice: Voice, *, seed: int) -> RenderStream:
        if not self.has_graphs_for(voice):
            return self._reference.open(voice, seed=seed)
        prompt = self.prompt(voice)
        with self._on_stream():
            phase = copy_async(harmonic_phase(self._hift, seed)[0], self._device)
        return CudaRenderStream(prompt, blocks=self.blocks, seed=seed, phase=phase)

    def prompt(self, voice: Voice) -> VoicePromptCache:
        """Return the flow's cached state after the voice's prompt."""

        def render() -> VoicePromptCache:
            arrays = (voice.flow_prompt_ids, voice.flow_prompt_mel, voice.flow_speaker)
            key = int64_key(0, f"prompt/{voice.content_hash}")
            with self._on_stream(), deterministic_cudnn():
                return cache_prompt(self._steps, *map(torch.tensor, arrays), key=key)

        return self._prompts.get(voice.content_hash, render)

    def render(self, blocks: Sequence[Block]) -> RenderFuture:
        first = blocks[0]
        if isinstance(first.stream, TorchRenderStream):
            return self._reference.render(blocks)
        finished: Future[list[Samples]] = Future()
        if not first.tokens and not first.stream.unrendered:
            finished.set_result([np.zeros(0, np.float32) for _ in blocks])
            return finished
        future = self.launch(blocks)
        if len(blocks) > 1 or not (first.alone and first.first):
            return future
        finished.set_result(future.result())  # the first audio is awaited: T3 would take half of the GPU
        return finished

    def decoder_busy(self, busy: bool) -> None: ...

    def close(self) -> None: ...

    @torch.inference_mode()
    def launch(self, blocks: Sequence[Block]) -> GraphFuture:
        """Start to render blocks that are not empty. A failure leaves their streams as they were."""
        with self._on_stream():
            streams: list[CudaRenderStream] = [block.stream for block in blocks]
            final = [block.final for block in blocks]
            ids = [block.stream.ids + block.tokens for block in blocks]
            tokens = streams[0].block_size(len(blocks[0].tokens), final=final[0])
            ends = [
                s.start + (len(own) if last else tokens)
                for s, own, last in zip(streams, ids, final, strict=True)
            ]
            mel, conv_state = self._mel(streams, ids, tokens)
            new_mel = [
                mel[row, :, FRAMES * (s.rendered_tokens - s.start) : FRAMES * (end - s.start)]
                for row, (s, end) in enumerate(zip(streams, ends, strict=True))
            ]
            samples, windows = self._windows.push(
                [s.window for s in streams],
                new_mel,
                final,
                key=self._to_device([s.source_key for s in streams]),
                phase=torch.stack([s.phase for s in streams]),
            )
            rows = []
            for s, window, last in zip(streams, windows, final, strict=True):
                frames = window.known - s.window.first + (0 if last else self._windows.extrapolated)
                rows.append((s.window.first, frames, window.known))
            # The graph's buffer is overwritten by a later launch, so after the copy.
            copy = HostCopy(samples.float())
            for row, (s, window) in enumerate(zip(streams, windows, strict=True)):
                s.window, s.conv_state, s.started = window, conv_state[row : row + 1].clone(), True
                s.ids = ids[row][tokens - CONTEXT_TOKENS :]
                s.start, s.rendered_tokens = s.start + tokens - CONTEXT_TOKENS, ends[row]
        return GraphFuture(blocks, copy, rows)

    def _mel(
        self, streams: Sequence[CudaRenderStream], ids: Sequence[list[int]], tokens: int
    ) -> tuple[Tensor, Tensor]:
        """Return the mel (batch, bands, 2 · tokens) of one block of each stream, and its `conv_state`."""
        prompt, width = streams[0].prompt, tokens + LOOKAHEAD_TOKENS
        numbers = self._to_device(
            [
                [*own[:width], *[0] * (width - len(own)), len(own), FRAMES * s.start]
                for own, s in zip(ids, streams, strict=True)
            ]
        )
        bands, dtype = self._steps.flow.config.mel_bands, self._steps.dtype
        cond = torch.zeros(len(ids), bands, FRAMES * tokens, dtype=dtype, device=self._device)
        for row, s in enumerate(streams):
            mel = prompt.pending_mel[:, FRAMES * (s.start - prompt.tokens) :]
            cond[row, :, : mel.shape[1]] = mel  # none, once the block begins after the prompt
        return self._flow_blocks(
            prompt,
            numbers[:, :width],
            lengths=numbers[:, width],
            cond=cond,
            speaker=prompt.speaker.expand(len(ids), -1),
            key=self._to_device([s.flow_key for s in streams]),
            first_frame=numbers[:, width + 1],
            conv_state=torch.cat([s.conv_state for s in streams]),
        )

    def _to_device(self, values: Sequence[int] | Sequence[list[int]]) -> Tensor:
        return copy_async(torch.tensor(values), self._device)

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def open_renderer(source: ModelSource, setup: Setup) -> Renderer:
    """Open the flow and the vocoder on the GPU; graphs for the shared sizes are captured when first used."""
    renderer = CudaGraphRenderer(*rendering_weights(source, setup.machine.device), setup)
    if setup.voice is not None and renderer.has_graphs_for(setup.voice):
        renderer.capture(setup.voice)
    return renderer
