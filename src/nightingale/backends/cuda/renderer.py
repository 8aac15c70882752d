"""Speech ids to samples on a GPU: the flow's pieces, then the vocoder's windows, of several at once.

Everything happens on a stream of its own, beside T3's, and nothing waits for the host: ids go in through
pinned memory, samples come back the same way, and an event says when they are there. The sizes of blocks are
few and fixed, so that each is a graph.

Why nothing is written while it is read. All of the renderer's work, `hear`, `begin` and `launch`, is launched
by one thread on the one stream, in which things happen in turn: what a graph is told, its replay, the copies
of what it gave. Graphs of a kind share one pool of memory for that reason only. What outlives a block (what
its convolutions carried, its last mel, its cycles) is a copy. With T3 nothing is shared but weights, which
nobody writes, and tokens, which come through the host; nor the workspaces of libraries, which belong to the
stream a graph was recorded on (`own_stream`). Memory that was allocated on this stream is given out again on
this stream only, after what it was used for.

The twin is `TorchRenderer` in backends/torch/renderer.py: the same samples, to rounding.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.cuda.flow import FRAMES, FlowSteps
from nightingale.backends.cuda.flow_blocks import FlowPieces, Heard, hear_prompt
from nightingale.backends.cuda.graphs import (
    RENDERING,
    GraphReport,
    How,
    how_on,
    own_stream,
    reproducible,
    send,
)
from nightingale.backends.cuda.random import int64_key
from nightingale.backends.cuda.vocoder import Vocoder
from nightingale.backends.cuda.vocoder_windows import NEW, Window, Windows, frames_behind
from nightingale.clocks import CLOCKS
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.flow import Flow

SAMPLES = CLOCKS.samples_per_frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is kept of a voice."""

    heard: Heard
    waiting: tuple[int, ...]
    """The prompt's last ids, which begin every utterance: they look ahead to its first."""
    tail: Tensor
    """(bands, frames): the scaled mel of those."""
    speaker: Tensor
    """(width,)."""

    @property
    def nbytes(self) -> int:
        return self.heard.nbytes


@dataclass(slots=True, kw_only=True)
class Spoken:
    """An utterance between two blocks. Tokens are counted from the prompt's first."""

    memory: Memory
    flow_key: int
    source_key: int
    phase: Tensor
    """(harmonics, 1)."""
    ids: list[int]
    """Those from `start` on, where the next piece begins."""
    start: int
    done: int
    """Tokens before this one have been rendered, or were the prompt's."""
    carried: Tensor
    window: Window = NEW
    rendered: bool = field(default=False, init=False)
    """Whether anything was."""

    @property
    def unrendered(self) -> int:
        return self.start + len(self.ids) - self.done


@dataclass(frozen=True, slots=True)
class Rendered:
    samples: NDArray[np.float32]
    start: int
    """Number of the first sample in its utterance."""
    known: int
    """Samples that mel has come for."""


class PendingSamples:
    """Samples on their way to the host."""

    def __init__(
        self, host: Tensor, event: torch.cuda.Event | None, rows: Sequence[tuple[int, int, int]]
    ) -> None:
        """rows: of each, the number of its first frame, how many there are, and how many have come."""
        self._host, self._event, self._rows = host, event, rows

    @property
    def ready(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def take(self) -> list[Rendered]:
        """Waits for them if it must."""
        if self._event is not None:
            self._event.synchronize()
        return [
            Rendered(self._host[row, : SAMPLES * frames].numpy().copy(), SAMPLES * first, SAMPLES * known)
            for row, (first, frames, known) in enumerate(self._rows)
        ]


class BlockRenderer:
    def __init__(
        self,
        flow: Flow,
        hift: Hift,
        *,
        precision: torch.dtype | None,
        blocks: tuple[int, ...],
        context: int,
        hold_frames: int,
        guessed_frames: int,
        batches: tuple[int, ...],
        how: How | None = None,
    ) -> None:
        """precision: the flow estimator's, None for its own; blocks: sizes in tokens, ascending, the first
        for the beginning of an utterance; context: so many tokens are rendered again before a block."""
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
        how = how or how_on(self.device)
        sizes = {LOOKAHEAD_TOKENS + blocks[0], *(context + block for block in blocks)}
        self.pieces = FlowPieces(
            self.steps, context=context, tokens=tuple(sorted(sizes)), batches=batches, how=how
        )
        before = hold_frames + frames_behind(hift)[0]
        frames = {FRAMES * block + guessed_frames for block in blocks[:1]}
        frames |= {before + FRAMES * block + guessed_frames for block in blocks}
        vocoder = Vocoder(hift, batches=batches, frames=tuple(sorted(frames)), how=how)
        self.windows = Windows(vocoder, hold_frames=hold_frames, guessed_frames=guessed_frames)
        self._held = own_stream(self.device, RENDERING) if self.device.type == "cuda" else None
        self._stream = self._held.stream if self._held else None
        if self._stream is not None:
            # Hand-over: weights that were converted above are on their way on the stream that loads.
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

    @property
    def reports(self) -> list[GraphReport]:
        return [*self.pieces.reports, *self.windows.vocoder.reports]

    @property
    def prompts(self) -> tuple[int, int]:
        """The shortest and the longest prompt, in tokens, that can be remembered."""
        return LOOKAHEAD_TOKENS + 1, self.pieces.known[-1] + LOOKAHEAD_TOKENS

    def warm(self, memory: Memory) -> None:
        """Record every size there is, for voices with a prompt like this one's."""
        with self._beside():
            self.pieces.warm(memory.heard)
            self.windows.vocoder.warm()

    @torch.inference_mode()
    def hear(self, name: str, ids: Tensor, mel: Tensor, speaker: Tensor) -> Memory:
        """A voice's prompt, heard once. name: of its noise; ids: (tokens,); mel: (frames, bands); speaker:
        (width,)."""
        dtype, flow = self.steps.dtype, self.steps.flow
        with self._beside(), reproducible():
            told = send(speaker.to(dtype), self.device)
            shown = send(mel.to(dtype), self.device).T
            key = torch.full((1,), int64_key(0, name), device=self.device)
            heard = hear_prompt(self.steps, send(ids, self.device)[None], shown[None], told[None], key)
            return Memory(
                heard=heard,
                waiting=tuple(ids[heard.tokens :].tolist()),
                tail=flow.normalize_mel(shown[:, FRAMES * heard.tokens :]),
                speaker=told,
            )

    @torch.inference_mode()
    def begin(self, memory: Memory, *, seed: int, phase: Tensor) -> Spoken:
        """phase: (harmonics, 1) radians."""
        start = memory.heard.tokens
        with self._beside():
            return Spoken(
                memory=memory,
                flow_key=int64_key(seed, "flow"),
                source_key=int64_key(seed, "source"),
                phase=send(phase, self.device),
                ids=list(memory.waiting),
                start=start,
                done=start + len(memory.waiting),
                carried=memory.heard.carried,
            )

    def cut(self, spoken: Spoken, waiting: int, *, finished: bool, wanted: int) -> tuple[int, bool] | None:
        """Of so many ids that wait, how many go into the next block, and whether it is the last; None while
        there are too few. wanted: so large should a block be that is not the last.

        Which ids make a block depends on the ids alone, never on when they came or were asked for, and not on
        whether the end was known by then: sound must not depend on the clock."""
        unrendered = spoken.unrendered + waiting
        possible = unrendered - LOOKAHEAD_TOKENS
        block = max(b for b in self.blocks if b <= wanted or b == self.blocks[0])
        if not spoken.rendered:
            block = self.blocks[0]
        if finished and possible < block and unrendered > self.blocks[-1]:
            # Too few for this block, and too many for the last one: never while more may come.
            block = max(b for b in self.blocks if b <= possible)
        if possible >= block:
            return block + LOOKAHEAD_TOKENS - spoken.unrendered, False
        return (waiting, True) if finished else None

    def company(self, spoken: Spoken, ids: int, *, final: bool) -> Hashable:
        """Blocks for which this is the same can be rendered together."""
        return id(spoken.memory), self._size(len(spoken.ids) + ids, final)

    def _size(self, ids: int, final: bool) -> int:
        """Tokens of the piece, padding included."""
        if not final:
            return ids - LOOKAHEAD_TOKENS
        return next(size for size in self.pieces.tokens if size >= ids)

    @torch.inference_mode()
    def launch(self, blocks: Sequence[tuple[Spoken, list[int], bool]]) -> PendingSamples:
        """Blocks (utterance, ids that are new, whether they are its last) of one company, each with something
        to render. Whatever fails here leaves the utterances as they were."""
        with self._beside():
            given = [spoken.ids + ids for spoken, ids, _ in blocks]
            tokens = self._size(len(given[0]), blocks[0][2])
            utterances, final = [spoken for spoken, _, _ in blocks], [ends for _, _, ends in blocks]
            ends = [
                s.start + (len(ids) if last else tokens)
                for s, ids, last in zip(utterances, given, final, strict=True)
            ]
            mel, carried = self._mel(utterances, given, tokens)
            fresh = [
                mel[row, :, FRAMES * (s.done - s.start) : FRAMES * (end - s.start)]
                for row, (s, end) in enumerate(zip(utterances, ends, strict=True))
            ]
            samples, windows = self.windows.push(
                [s.window for s in utterances],
                fresh,
                final,
                key=self._numbers([s.source_key for s in utterances]),
                phase=torch.stack([s.phase for s in utterances]),
            )
            rows = [
                (s.window.first, w.known - s.window.first + (0 if last else self.windows.guessed), w.known)
                for s, w, last in zip(utterances, windows, final, strict=True)
            ]
            host, event = self._fetch(samples)
            for row, (s, window) in enumerate(zip(utterances, windows, strict=True)):
                s.window, s.carried, s.rendered = window, carried[row : row + 1].clone(), True
                s.ids = given[row][tokens - self.context :]
                s.start, s.done = s.start + tokens - self.context, ends[row]
        return PendingSamples(host, event, rows)

    def _mel(
        self, utterances: Sequence[Spoken], given: Sequence[list[int]], tokens: int
    ) -> tuple[Tensor, Tensor]:
        memory, width = utterances[0].memory, tokens + LOOKAHEAD_TOKENS
        padded = [ids[:width] + [0] * (width - len(ids)) for ids in given]
        ids = self._numbers(
            [
                [*row, len(told), FRAMES * s.start]
                for row, told, s in zip(padded, given, utterances, strict=True)
            ]
        )
        bands = self.steps.flow.config.mel_bands
        cond = torch.zeros(len(given), bands, FRAMES * tokens, dtype=self.steps.dtype, device=self.device)
        for row, spoken in enumerate(utterances):
            tail = memory.tail[:, FRAMES * (spoken.start - memory.heard.tokens) :]
            cond[row, :, : tail.shape[1]] = tail  # none, once the piece begins after the prompt
        return self.pieces(
            memory.heard,
            ids[:, :width],
            ids[:, width],
            cond=cond,
            speaker=memory.speaker.expand(len(given), -1),
            key=self._numbers([s.flow_key for s in utterances]),
            first_frame=ids[:, width + 1],
            carried=torch.cat([s.carried for s in utterances]),
        )

    def _fetch(self, samples: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        if self._stream is None:
            return samples.float(), None
        # Hand-over to the host: memory of this block's own, an event after the copy, and `take` reads after
        # the event. The graph's buffer is written again by a later launch, so after the copy.
        host = torch.empty(samples.shape, dtype=torch.float32, pin_memory=True)
        host.copy_(samples, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return host, event

    def _numbers(self, values: Sequence[int] | Sequence[list[int]]) -> Tensor:
        return send(torch.tensor(values), self.device)

    def _beside(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
