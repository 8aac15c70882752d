"""Speech tokens to samples on a GPU: blocks of the flow, then windows of the vocoder, several utterances at
once.

Everything runs on a stream of its own, beside T3's, and nothing waits for the host: ids go in through pinned
memory, samples come back the same way, and an event says when they are there. Block sizes are few and fixed,
so each is a graph.

Why nothing is overwritten while it is read. One thread launches all work, of `cache_prompt`, `open` and
`launch`, on the one stream, where it runs in order: the inputs of a graph, its replay, the copies of its
results. Graphs share a memory pool for that reason only. What outlives a block (state of convolutions, the
last mel, cycles) is a copy. T3 shares only weights, which never change, and tokens, which come through the
host; not even library workspaces, which belong to the stream a graph was captured on (`reserve_stream`).
Memory that was allocated on this stream is reused on this stream only.

Reference: `TorchRenderer` in backends/torch/renderer.py gives the same samples, to rounding.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.cuda.flow.flow_blocks import FlowBlocks
from nightingale.backends.cuda.flow.flow_steps import FRAMES, FlowSteps
from nightingale.backends.cuda.flow.voice_prompt import VoicePromptCache, cache_prompt
from nightingale.backends.cuda.graphs import (
    RENDER_PRIORITY,
    GraphMode,
    copy_async,
    default_mode,
    deterministic_cudnn,
    reserve_stream,
)
from nightingale.backends.cuda.random import int64_key
from nightingale.backends.cuda.vocoder.bucketed_vocoder import BucketedVocoder
from nightingale.backends.cuda.vocoder.vocoder_windows import (
    EMPTY_WINDOW,
    VocoderWindows,
    Window,
    context_frames,
)
from nightingale.clocks import CLOCKS
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.flow import Flow

SAMPLES = CLOCKS.samples_per_frame


@dataclass(slots=True, kw_only=True)
class UtteranceState:
    """An utterance between two blocks. Tokens are counted from the prompt's first."""

    prompt: VoicePromptCache
    flow_key: int
    source_key: int
    phase: Tensor
    """(harmonics, 1)."""
    ids: list[int]
    """The tokens from `start` on, where the next block begins."""
    start: int
    rendered_tokens: int
    """Tokens before this one were rendered, or are the prompt's."""
    conv_state: Tensor
    window: Window = EMPTY_WINDOW
    started: bool = field(default=False, init=False)
    """True once a block was rendered."""

    @property
    def unrendered(self) -> int:
        return self.start + len(self.ids) - self.rendered_tokens


@dataclass(frozen=True, slots=True)
class RenderedBlock:
    samples: NDArray[np.float32]
    start: int
    """The number of the first sample in its utterance."""
    known: int
    """Samples of the utterance for which mel has arrived."""


class PendingSamples:
    """Samples on their way to the host.

    rows: for each utterance the number of its first frame, the frames that were rendered, and the frames of
    the utterance that have arrived.
    """

    def __init__(
        self, host: Tensor, event: torch.cuda.Event | None, rows: Sequence[tuple[int, int, int]]
    ) -> None:
        self._host, self._event, self._rows = host, event, rows

    @property
    def ready(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def take(self) -> list[RenderedBlock]:
        """Wait for the copy and return the samples."""
        if self._event is not None:
            self._event.synchronize()
        return [
            RenderedBlock(
                self._host[row, : SAMPLES * frames].numpy().copy(), SAMPLES * first, SAMPLES * known
            )
            for row, (first, frames, known) in enumerate(self._rows)
        ]


class BlockRenderer:
    """The flow and the vocoder with graphs for a few sizes of blocks and batches.

    Args:
        flow: The flow.
        hift: The vocoder.
        precision: Of the flow's estimator; None is its own.
        blocks: Sizes in tokens, ascending; the first is that of an utterance's first block.
        context: Tokens before a block that are rendered again with it.
        hold_frames: The last frames of a block are not emitted before the next one is rendered.
        extrapolated_frames: Frames that stand for those after a block.
        batches: Buckets of utterances.
        mode: None: graphs on a GPU, eager elsewhere.
    """

    def __init__(
        self,
        flow: Flow,
        hift: Hift,
        *,
        precision: torch.dtype | None,
        blocks: tuple[int, ...],
        context: int,
        hold_frames: int,
        extrapolated_frames: int,
        batches: tuple[int, ...],
        mode: GraphMode | None = None,
    ) -> None:
        if blocks[0] + LOOKAHEAD_TOKENS < context or len(blocks) < 2:
            raise ConfigError(
                "the first block is too small, or there is no other",
                got=f"blocks of {', '.join(map(str, blocks))} tokens",
                allowed=f"two or more sizes, from {context - LOOKAHEAD_TOKENS} tokens on",
                fix="Choose a larger first_block_tokens, or the exact profile.",
            )
        self.steps = FlowSteps(flow, precision=precision)
        self.device = self.steps.device
        self.blocks, self.context, self.batches = blocks, context, batches
        mode = mode or default_mode(self.device)
        sizes = {LOOKAHEAD_TOKENS + blocks[0], *(context + block for block in blocks)}
        self.flow_blocks = FlowBlocks(
            self.steps, context=context, tokens=tuple(sorted(sizes)), batches=batches, mode=mode
        )
        before = hold_frames + context_frames(hift)[0]
        frames = {FRAMES * blocks[0] + extrapolated_frames}
        frames |= {before + FRAMES * block + extrapolated_frames for block in blocks}
        self.windows = VocoderWindows(
            BucketedVocoder(hift, batches=batches, frames=tuple(sorted(frames)), mode=mode),
            hold_frames=hold_frames,
            extrapolated_frames=extrapolated_frames,
        )
        self._reserved = reserve_stream(self.device, RENDER_PRIORITY) if self.device.type == "cuda" else None
        self._stream = self._reserved.stream if self._reserved else None
        if self._stream is not None:
            # Weights that were converted above may still be on their way on the current stream.
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

    @property
    def prompt_range(self) -> tuple[int, int]:
        """The shortest and the longest prompt, in tokens, that there are graphs for."""
        return LOOKAHEAD_TOKENS + 1, self.flow_blocks.prompts[-1] + LOOKAHEAD_TOKENS

    def capture(self, prompt: VoicePromptCache) -> None:
        """Capture every size, for voices with a prompt about as long as this one."""
        with self._on_stream():
            self.flow_blocks.capture(prompt)
            self.windows.vocoder.capture()

    def cache_prompt(self, name: str, ids: Tensor, mel: Tensor, speaker: Tensor) -> VoicePromptCache:
        """Render a voice's prompt. name: the purpose of its noise; for the others see `flow.voice_prompt`."""
        with self._on_stream(), deterministic_cudnn():
            return cache_prompt(self.steps, ids, mel, speaker, key=int64_key(0, name))

    @torch.inference_mode()
    def open(self, prompt: VoicePromptCache, *, seed: int, phase: Tensor) -> UtteranceState:
        """Start an utterance. phase: (harmonics, 1) radians."""
        with self._on_stream():
            return UtteranceState(
                prompt=prompt,
                flow_key=int64_key(seed, "flow"),
                source_key=int64_key(seed, "source"),
                phase=copy_async(phase, self.device),
                ids=list(prompt.pending_ids),
                start=prompt.tokens,
                rendered_tokens=prompt.tokens + len(prompt.pending_ids),
                conv_state=prompt.conv_state,
            )

    def next_cut(
        self, utterance: UtteranceState, waiting: int, *, finished: bool, wanted: int
    ) -> tuple[int, bool] | None:
        """Return how many of the waiting ids go into the next block and whether it is the last one.

        None means that there are too few. A block that is not the last has about `wanted` tokens. The result
        depends on the ids alone, not on when they arrived and whether the end was known by then: audio must
        not depend on the clock.
        """
        unrendered = utterance.unrendered + waiting
        possible = unrendered - LOOKAHEAD_TOKENS
        block = max(b for b in self.blocks if b <= wanted or b == self.blocks[0])
        if not utterance.started:
            block = self.blocks[0]
        if finished and possible < block and unrendered > self.blocks[-1]:
            # Too few for this block, too many for the last one: never while more may come.
            block = max(b for b in self.blocks if b <= possible)
        if possible >= block:
            return block + LOOKAHEAD_TOKENS - utterance.unrendered, False
        return (waiting, True) if finished else None

    def batch_key(self, utterance: UtteranceState, ids: int, *, final: bool) -> Hashable:
        """Return the key of a block; blocks with equal keys can be rendered together."""
        return id(utterance.prompt), self._block_size(len(utterance.ids) + ids, final)

    def _block_size(self, ids: int, final: bool) -> int:
        """Return the tokens of a block, padding included."""
        if not final:
            return ids - LOOKAHEAD_TOKENS
        return next(size for size in self.flow_blocks.tokens if size >= ids)

    @torch.inference_mode()
    def launch(self, blocks: Sequence[tuple[UtteranceState, list[int], bool]]) -> PendingSamples:
        """Render blocks (utterance, new ids, whether they are its last) with equal batch keys.

        Each has something to render. A failure leaves the utterances as they were.
        """
        with self._on_stream():
            ids = [utterance.ids + new for utterance, new, _ in blocks]
            tokens = self._block_size(len(ids[0]), blocks[0][2])
            utterances, final = [utterance for utterance, _, _ in blocks], [last for _, _, last in blocks]
            ends = [
                u.start + (len(own) if last else tokens)
                for u, own, last in zip(utterances, ids, final, strict=True)
            ]
            mel, conv_state = self._mel(utterances, ids, tokens)
            new_mel = [
                mel[row, :, FRAMES * (u.rendered_tokens - u.start) : FRAMES * (end - u.start)]
                for row, (u, end) in enumerate(zip(utterances, ends, strict=True))
            ]
            samples, windows = self.windows.push(
                [u.window for u in utterances],
                new_mel,
                final,
                key=self._to_device([u.source_key for u in utterances]),
                phase=torch.stack([u.phase for u in utterances]),
            )
            rows = [
                (
                    u.window.first,
                    w.known - u.window.first + (0 if last else self.windows.extrapolated),
                    w.known,
                )
                for u, w, last in zip(utterances, windows, final, strict=True)
            ]
            host, event = self._to_host(samples)
            for row, (u, window) in enumerate(zip(utterances, windows, strict=True)):
                u.window, u.conv_state, u.started = window, conv_state[row : row + 1].clone(), True
                u.ids = ids[row][tokens - self.context :]
                u.start, u.rendered_tokens = u.start + tokens - self.context, ends[row]
        return PendingSamples(host, event, rows)

    def _mel(
        self, utterances: Sequence[UtteranceState], ids: Sequence[list[int]], tokens: int
    ) -> tuple[Tensor, Tensor]:
        prompt, width = utterances[0].prompt, tokens + LOOKAHEAD_TOKENS
        numbers = self._to_device(
            [
                [*own[:width], *[0] * (width - len(own)), len(own), FRAMES * u.start]
                for own, u in zip(ids, utterances, strict=True)
            ]
        )
        bands = self.steps.flow.config.mel_bands
        cond = torch.zeros(len(ids), bands, FRAMES * tokens, dtype=self.steps.dtype, device=self.device)
        for row, utterance in enumerate(utterances):
            mel = prompt.pending_mel[:, FRAMES * (utterance.start - prompt.tokens) :]
            cond[row, :, : mel.shape[1]] = mel  # none, once the block begins after the prompt
        return self.flow_blocks(
            prompt,
            numbers[:, :width],
            numbers[:, width],
            cond=cond,
            speaker=prompt.speaker.expand(len(ids), -1),
            key=self._to_device([u.flow_key for u in utterances]),
            first_frame=numbers[:, width + 1],
            conv_state=torch.cat([u.conv_state for u in utterances]),
        )

    def _to_host(self, samples: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        if self._stream is None:
            return samples.float(), None
        # Memory of this block's own, and an event after the copy: `take` reads after the event. The graph's
        # buffer is overwritten by a later launch, so after the copy.
        host = torch.empty(samples.shape, dtype=torch.float32, pin_memory=True)
        host.copy_(samples, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return host, event

    def _to_device(self, values: Sequence[int] | Sequence[list[int]]) -> Tensor:
        return copy_async(torch.tensor(values), self.device)

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
