"""The renderer of the CUDA backend: windows of the flow, then windows of the vocoder, several utterances at
once, each in its own voice.

Everything runs on a stream of its own, beside T3's, and nothing waits for the host: ids and samples are copied
through pinned memory. Graphs are captured when their size is first used.

Why nothing is overwritten while it is read. One thread launches all work, of `open` and `render`, on the one
stream, where it runs in order: the inputs of a graph, its replay, the copies of its results. Graphs share a
memory pool for that reason only. What outlives a block (the last mel, cycles) is a copy. T3 shares only
weights, which never change, and tokens, which come through the host; not even library workspaces, which belong
to the stream a graph was captured on (`reserve_stream`).

Reference: `render_mel` in backends/torch/mel_stream.py and `SampleStream` give the same samples, to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nightingale.audio.crossfade import Crossfade
from nightingale.backends.base import (
    Block,
    BlockCut,
    ModelSource,
    Renderer,
    RenderFuture,
    Setup,
)
from nightingale.backends.cuda.bucketed_vocoder import (
    BATCHES,
    EMPTY_WINDOW,
    BucketedVocoder,
    VocoderWindows,
    Window,
)
from nightingale.backends.cuda.flow.flow_steps import FRAMES, FlowSteps
from nightingale.backends.cuda.flow.flow_windows import FlowWindow, FlowWindows, VoicePrompt
from nightingale.backends.cuda.graphs import RENDER_PRIORITY, HostCopy, copy_async, reserve_stream
from nightingale.backends.cuda.random import int64_key
from nightingale.backends.shared.pipeline import CutStream
from nightingale.backends.torch.devices import DTYPES
from nightingale.backends.torch.sample_stream import harmonic_phase
from nightingale.backends.torch.weights import rendering_weights
from nightingale.clocks import CLOCKS
from nightingale.decoding.lru import BytesLRU
from nightingale.models.chatterbox.hift.config import HARMONICS
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.types import Samples
from nightingale.voices.voice import Voice

SAMPLES = CLOCKS.samples_per_frame
MAX_BATCH = 16
"""Blocks that are rendered together, at most: the next ones need not wait long."""
CONTEXT_TOKENS = 25
"""Tokens before a block that are rendered again with it, as its left context."""
FIRST_BLOCK_TOKENS, MANY_MULTIPROCESSORS = 5, 100
"""Tokens of a first block on a large GPU, which has the next block long before they have been played."""
PROMPT_TOKENS = 250
"""Tokens of a prompt of ten seconds, which most voices have."""
SEGMENT_TOKENS = 100
"""Tokens of a sentence, whose graphs are captured at load where segments are rendered whole."""
PREPARED_TOKENS = 153
"""The longest window, without its prompt, whose graphs are captured before it occurs."""
PROMPT_BYTES = 64 << 20
"""Limit of the voices' prompts on the GPU, which take 0.2 MB each."""


class CudaRenderStream(CutStream):
    """An utterance between two blocks. phase: (harmonics, 1) radians, on the host; whole: it is one block."""

    prefers_large_batches = True

    def __init__(self, prompt: VoicePrompt, *, seed: int, phase: Tensor, whole: bool) -> None:
        self.prompt, self.phase, self.whole = prompt, phase, whole
        self.flow_key, self.source_key = int64_key(seed, "flow"), int64_key(seed, "source")
        self.ids: list[int] = []
        """The tokens from number `start` on, where the next window begins."""
        self.start, self.rendered = 0, 0
        """Tokens before number `rendered` have been rendered."""
        self.window, self.crossfade = EMPTY_WINDOW, Crossfade()

    def next_cut(self, waiting: int, *, finished: bool, wanted: int) -> BlockCut | None:
        if self.whole:
            return BlockCut(waiting, True) if finished else None
        return super().next_cut(waiting, finished=finished, wanted=wanted)

    def batch_key(self, cut: BlockCut) -> Hashable:
        """Return one key for all blocks that are not empty."""
        return None if cut.tokens or len(self.ids) > self.rendered - self.start else id(self)


class GraphFuture:
    """Blocks that the GPU renders, and their samples on the way to the host.

    copies: samples of some of the blocks, and which these are; rows: for each block the number of its first
    frame, the frames that were rendered, and the frames of the utterance that have arrived.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        copies: Sequence[tuple[HostCopy, Sequence[int]]],
        rows: Mapping[int, tuple[int, int, int]],
    ) -> None:
        self._blocks, self._copies, self._rows = blocks, copies, rows
        self._started = time.perf_counter()

    def done(self) -> bool:
        return self._copies[-1][0].done()

    def result(self) -> list[Samples]:
        joined: dict[int, Samples] = {}
        for copy, numbers in self._copies:
            for number, samples in zip(numbers, copy.take().numpy(), strict=True):
                block, (first, frames, known) = self._blocks[number], self._rows[number]
                crossfade = block.stream.crossfade
                end = crossfade.end(SAMPLES * known, final=block.final)
                rendered = samples[: SAMPLES * frames].copy()
                joined[number] = crossfade.join(rendered, start=SAMPLES * first, end=end)
        for block in self._blocks:
            block.record("render", self._started)
        return [joined[number] for number in range(len(self._blocks))]


class CudaGraphRenderer:
    """The flow and the vocoder with graphs for the sizes of batches that occur."""

    max_batch = MAX_BATCH
    max_in_flight = 2  # one is computed, and the next one is queued behind it
    decoder_threads: int | None = None

    def __init__(self, flow: Flow, hift: Hift, setup: Setup) -> None:
        self._whole, self._hift = not setup.profile.in_blocks, hift.config
        self._prompts: BytesLRU[str, VoicePrompt] = BytesLRU(PROMPT_BYTES)
        flow = flow.with_steps(setup.profile.flow_steps)
        precision = DTYPES.get(setup.precision)  # None: that of the weights
        steps = FlowSteps(flow, precision=precision)
        self._flow, self._device = FlowWindows(steps), steps.device
        self._windows = VocoderWindows(BucketedVocoder(hift, precision=precision))
        self._sizes = self._prepared_sizes(setup)
        fast = self._device.type != "cuda" or _multiprocessors(self._device) >= MANY_MULTIPROCESSORS
        self._first_block_tokens = FIRST_BLOCK_TOKENS if fast else None
        self._stream: torch.cuda.Stream | None = None
        if self._device.type == "cuda":
            self._stream = reserve_stream(self._device, RENDER_PRIORITY, self)
            # Weights that were converted above may still be on their way on the current stream.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def check_kernels(self, tokens: int) -> None:
        """Compile and check the vocoder's kernels for a segment, or for a block of so many tokens."""
        frames = FRAMES * SEGMENT_TOKENS if self._whole else FRAMES * tokens + self._windows.extrapolated
        with self._on_stream():
            self._windows.vocoder.check_kernels(frames)

    def warm_up(self, voice: Voice, tokens: int) -> None:
        """Capture the graphs of a segment, or of a block of so many tokens, in this voice."""
        ids = [0] * (SEGMENT_TOKENS if self._whole else tokens + LOOKAHEAD_TOKENS)
        stream = self.open(voice, seed=0)
        self.render([Block(stream=stream, tokens=ids, first=True, final=self._whole, alone=True)]).result()

    def open(self, voice: Voice, *, seed: int) -> CudaRenderStream:
        with self._on_stream():
            prompt = self._prompts.get(voice.content_hash, lambda: self._flow.prompt(voice))
        phase = harmonic_phase(seed)[0]
        stream = CudaRenderStream(prompt, seed=seed, phase=phase, whole=self._whole)
        stream.first_block_tokens = self._first_block_tokens
        return stream

    def render(self, blocks: Sequence[Block]) -> RenderFuture:
        first = blocks[0]
        finished: Future[list[Samples]] = Future()
        if first.stream.batch_key(BlockCut(len(first.tokens), first.final)) is not None:
            finished.set_result([np.zeros(0, np.float32) for _ in blocks])
            return finished
        future = self.launch(blocks)
        if len(blocks) > 1 or not (first.alone and first.first):
            return future
        finished.set_result(future.result())  # the first audio is awaited: T3 would take half of the GPU
        return finished

    def decoder_busy(self, busy: bool) -> None: ...

    def prepare(self) -> bool:
        """Capture the graphs of one more size: a capture takes a tenth of a second, too long for a listener."""
        with suppress(StopIteration), torch.inference_mode(), self._on_stream():
            next(self._sizes)()
            return True
        return False

    def _prepared_sizes(self, setup: Setup) -> Iterator[Callable[[], object]]:
        """Yield functions that capture the graphs of batches, the largest first, of prompts like the voice's."""
        bands, prompt_tokens = self._flow.steps.flow.config.mel_bands, PROMPT_TOKENS
        if setup.voice is not None:
            prompt_tokens = len(setup.voice.flow_prompt_ids)
        zeros = torch.zeros(FRAMES * prompt_tokens, bands, device=self._device)
        prompt = VoicePrompt(ids=(0,) * prompt_tokens, mel=zeros, speaker=zeros[0])
        for batch in reversed([size for size in BATCHES if size <= setup.slots]):
            for frames in self._windows.vocoder.frames:
                tokens = (frames - self._windows.extrapolated) // FRAMES
                if tokens <= PREPARED_TOKENS:
                    yield partial(self._render_silence, prompt, batch, tokens)
        yield from self._flow.captures(FRAMES * prompt_tokens)

    def _render_silence(self, prompt: VoicePrompt, batch: int, tokens: int) -> None:
        phase = torch.zeros(HARMONICS, 1)
        streams = [CudaRenderStream(prompt, seed=0, phase=phase, whole=self._whole) for _ in range(batch)]
        ids = [0] * (tokens + LOOKAHEAD_TOKENS)
        self.launch([Block(stream=one, tokens=ids, first=True, final=False, alone=False) for one in streams])

    def close(self) -> None: ...

    @torch.inference_mode()
    def launch(self, blocks: Sequence[Block]) -> GraphFuture:
        """Start to render blocks that are not empty. A failure leaves their streams as they were."""
        with self._on_stream():
            windows = [_flow_window(block) for block in blocks]
            mels = [
                mel[:, FRAMES * (block.stream.rendered - block.stream.start) :]
                for block, mel in zip(blocks, self._flow(windows), strict=True)
            ]
            copies, rows, following = [], {}, {}
            for numbers in self._windows.batches([block.stream.window for block in blocks], mels):
                streams = [blocks[number].stream for number in numbers]
                final = [blocks[number].final for number in numbers]
                samples, after = self._windows.push(
                    [s.window for s in streams],
                    [mels[number] for number in numbers],
                    final,
                    key=copy_async(torch.tensor([s.source_key for s in streams]), self._device),
                    phase=copy_async(torch.stack([s.phase for s in streams]), self._device),
                )
                for number, s, later, last in zip(numbers, streams, after, final, strict=True):
                    frames = later.known - s.window.first + (0 if last else self._windows.extrapolated)
                    rows[number], following[number] = (s.window.first, frames, later.known), later
                # The graph's buffer is overwritten by a later launch, so after the copy.
                copies.append((HostCopy(samples.float()), numbers))
            for number, (block, window) in enumerate(zip(blocks, windows, strict=True)):
                _advance(block.stream, window, following[number])
        return GraphFuture(blocks, copies, rows)

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _flow_window(block: Block) -> FlowWindow:
    stream: CudaRenderStream = block.stream
    ids = [*stream.ids, *block.tokens]
    return FlowWindow(
        prompt=stream.prompt,
        ids=ids,
        tokens=len(ids) - (0 if block.final else LOOKAHEAD_TOKENS),
        start=stream.start,
        key=stream.flow_key,
    )


def _advance(stream: CudaRenderStream, rendered: FlowWindow, following: Window) -> None:
    """Move a stream to its next window."""
    stream.window, stream.started = following, True
    stream.rendered = rendered.start + rendered.tokens
    stream.start = max(0, stream.rendered - CONTEXT_TOKENS)
    stream.ids = list(rendered.ids[stream.start - rendered.start :])


def open_renderer(source: ModelSource, setup: Setup) -> Renderer:
    """Open the flow and the vocoder on the GPU, with graphs for the first audio of a request."""
    flow, hift = rendering_weights(source, setup.machine.device)
    assert isinstance(hift, Hift)
    renderer = CudaGraphRenderer(flow, hift, setup)
    renderer.check_kernels(setup.profile.smallest_block_tokens)
    if setup.voice is not None:
        renderer.warm_up(setup.voice, setup.profile.smallest_block_tokens)
    return renderer
