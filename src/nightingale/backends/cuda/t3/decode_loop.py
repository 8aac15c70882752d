"""T3's decode loop in CUDA graphs: many utterances at once, without waiting for the host.

    logits -> guidance -> penalty, cuts -> token -> append -> embedding -> layers -> head -> logits

One such step is one graph, for a bucket of slots and a bucket of cached positions. Several steps are launched
at a time; their tokens come back in one copy, which the host reads while the next steps run.

Reference: `HostDecoder` in decoding/host_decoder.py. In float32 a seed gives the same tokens there and here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from nightingale.backends.cuda import graphs
from nightingale.backends.cuda.random import int64_key
from nightingale.backends.cuda.t3 import batched_sampling
from nightingale.backends.cuda.t3.batched_sampling import (
    NO_TOKEN,
    DecodeState,
    SamplerOrder,
    SlotStart,
)
from nightingale.backends.cuda.t3.packed_network import PackedT3
from nightingale.backends.cuda.t3.packed_weights import KVCaches
from nightingale.backends.cuda.triton_support import KernelChoice, Tuning, compiling_ahead
from nightingale.errors import MemoryFull
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_cache import DenseKVCache
from nightingale.types import Sampling

PROMPT_STRIDE = 32
"""Prompts are padded to a multiple of this, so that few graphs serve all lengths."""
COMMON_TEXTS, COMMON_TOKENS = (40, 70, 100, 140, 200), 250
"""Text ids of a sentence, and speech tokens of a long one."""
PREFILL_BATCHES = (1, 4)
"""Prompts of one length that are computed together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan:
    """The graphs of a decode loop."""

    slots: tuple[int, ...]
    """Buckets of utterances."""
    spans: tuple[int, ...] = (256, 512, 1024)
    """Buckets of cached positions, besides the whole capacity."""
    steps: int
    """Steps in one launch, at most."""
    kernels: KernelChoice = "auto"
    tuning: Tuning | None = None
    """For the Triton kernels; None is their own."""
    mode: graphs.GraphMode | None = None
    """None: graphs on a GPU, eager elsewhere."""


class PendingTokens(NamedTuple):
    """Tokens (steps, slots) on their way to the host."""

    copy: graphs.HostCopy
    slots: int

    def take(self) -> list[list[int]]:
        """Wait for the copy and return each slot's tokens; INVALID_LOGITS stands for one that failed."""
        rows = self.copy.take()[:, : self.slots].T.tolist()
        return [[token for token in row if token != NO_TOKEN] for row in rows]


class _Prompt(NamedTuple):
    """A prompt that waits for its prefill. embedded: (rows, padded length, width)."""

    embedded: Tensor
    start: SlotStart


class DecodeLoop:
    """T3 with a KV cache of fixed size. Its tensors belong to the thread that calls it.

    t3: its weights are joined in place; order: of the sampler's steps; guided: whether a slot has two rows, for
    classifier-free guidance; capacity: positions of each slot.
    """

    @torch.no_grad()
    def __init__(
        self,
        t3: T3,
        *,
        order: SamplerOrder,
        guided: bool,
        capacity: int,
        plan: DecodePlan,
    ) -> None:
        weight = t3.speech_head.weight
        self.t3, self.order, self.capacity = t3, order, capacity
        self.device, self.dtype = weight.device, weight.dtype
        self.rows = 2 if guided else 1
        self.plan = replace(plan, spans=(*(s for s in plan.spans if s < capacity), capacity))
        self.packed = PackedT3(t3, positions=capacity, kernels=plan.kernels, tuning=plan.tuning)
        slots, lines = plan.slots[-1], max(plan.steps, graphs.WARMUP_RUNS)
        self._caches = [
            (cache.keys, cache.values)
            for cache in t3.new_kv_cache(rows=slots * self.rows, capacity=capacity)
            if isinstance(cache, DenseKVCache)
        ]
        self.kv_bytes = sum(tensor.nbytes for tensor in chain(*self._caches))
        self.state = DecodeState.empty(
            slots=slots, rows=self.rows, vocab=t3.config.speech_vocab, steps=lines, device=self.device
        )
        self._graphs: graphs.GraphCache[None] = graphs.GraphCache(self.device, plan.mode, reserved=True)
        self._slots: dict[int, tuple[int, bool]] = {}
        """For each slot in use: the most positions it has cached, and whether its sampling sorts."""
        self._sorting = False
        self._prompts: list[_Prompt] = []
        """Prompts for the next launch, which computes them first, several at a time."""

    def capture(self, *, sorting: bool) -> None:
        """Compile the kernels, and capture the graphs of one utterance; others are captured when first used, or by
        `captures`."""
        self._sorting = sorting
        if self.packed.kernels.loaded is not None:
            with torch.inference_mode(), self._state_preserved(), compiling_ahead() as possible:
                for slots in (self.plan.slots[0], self.plan.slots[-1]) if possible else ():
                    self._step(*self._views(slots, self.plan.spans[0]), sorting)
        for span in self.plan.spans:
            self._step_graph(self.plan.slots[0], span, sorting)

    def captures(self) -> Iterator[Callable[[], object]]:
        """Yield functions that capture the graphs of many utterances, for prompts and sentences as they are common.

        They may be called while no slot is in use.
        """
        lengths = [self.t3.config.prompt_length(count) for count in COMMON_TEXTS]
        spans = [span for span in self.plan.spans if span >= lengths[0]]
        needed = [span for span in spans if span < lengths[0] + COMMON_TOKENS]
        for slots in reversed(self.plan.slots):
            for span in spans[: len(needed) + 1]:
                yield partial(self._step_graph, slots, span, self._sorting)
        for batch in reversed(PREFILL_BATCHES):
            for time in sorted({self._padded(length) for length in lengths if length <= self.capacity}):
                yield partial(self._prefill_graph, batch, time, 0)

    @torch.inference_mode()
    def prefill(self, slot: int, prompt: Tensor, *, sampling: Sampling, seed: int, budget: int) -> None:
        """Take a prompt (rows, time, width) for a slot; the next step samples its first token."""
        length, table = prompt.shape[1], self.t3.config.learned_positions
        padded = self._padded(length)
        limit = self.capacity if table is None else min(self.capacity, length + table[1] - 1)
        if length + budget > limit or padded > self.capacity:
            raise MemoryFull(
                "the utterance does not fit its KV cache",
                got=f"a prompt of {length} positions and {budget} tokens",
                allowed=f"{limit} together",
                fix="Speak a shorter sentence, or plan a larger capacity.",
            )
        # An unguided request in a guided pool: both rows are conditional, and guidance adds nothing.
        x = prompt.new_zeros(self.rows, padded, prompt.shape[2])
        x[:, :length] = prompt
        start = SlotStart(slot, sampling, int64_key(seed, "tokens"), length, budget)
        self._prompts = [one for one in self._prompts if one.start.slot != slot]
        self._prompts.append(_Prompt(x, start))
        self._slots[slot] = (length, batched_sampling.needs_sorting(sampling))

    @torch.inference_mode()
    def compute_prompts(self) -> None:
        """Compute the prompts that wait, those of one padded length together."""
        prompts, self._prompts = self._prompts, []
        for time in sorted({one.embedded.shape[1] for one in prompts}):
            alike, most = [one for one in prompts if one.embedded.shape[1] == time], PREFILL_BATCHES[-1]
            for at in range(0, len(alike), most):
                self._prefill(alike[at : at + most], time)
        if prompts:
            self.state.start([one.start for one in prompts])

    @torch.inference_mode()
    def launch(self, steps: int) -> PendingTokens:
        """Launch decode steps for every slot in use."""
        graphs.bucket_for(steps, (self.plan.steps,), what="steps at a time")
        self.compute_prompts()
        sorting = any(sorts for _, sorts in self._slots.values())
        slots = graphs.bucket_for(max(self._slots) + 1, self.plan.slots, what="utterances")
        longest = max(length for length, _ in self._slots.values()) + steps
        span = graphs.bucket_for(min(longest, self.capacity), self.plan.spans, what="positions")
        step = self._step_graph(slots, span, sorting)
        self.state.cursor.zero_()
        for _ in range(steps):
            step()
        self._slots = {
            slot: (min(length + steps, self.capacity), sorts) for slot, (length, sorts) in self._slots.items()
        }
        # `recent` is overwritten by the next launch, which runs on the same stream, so after the copy.
        return PendingTokens(graphs.HostCopy(self.state.recent[:steps]), slots)

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        self._prompts = [one for one in self._prompts if one.start.slot != slot]
        self.state.release(slot)
        self._slots.pop(slot, None)

    @torch.inference_mode()
    def reset(self, slot: int) -> None:
        """Clear a slot after a fault: NaN in the KV cache would reach the next utterance, masked or not."""
        rows = slice(slot * self.rows, (slot + 1) * self.rows)
        for tensor in chain(*self._caches):
            tensor[rows].zero_()
        self.state.logits[slot].zero_()

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        """Move an utterance to a free slot, so that slots in use have no gaps."""
        self.compute_prompts()
        length, _ = self._slots[source]
        old, new = source * self.rows, target * self.rows
        for tensor in chain(*self._caches):
            tensor[new : new + self.rows, :, :length] = tensor[old : old + self.rows, :, :length]
        self.state.move(source, target)
        self._slots[target] = self._slots.pop(source)
        self.state.release(source)

    def _prefill(self, prompts: list[_Prompt], time: int) -> None:
        batch = graphs.bucket_for(len(prompts), PREFILL_BATCHES, what="prompts")
        prompts = prompts + prompts[:1] * (batch - len(prompts))  # the first one again: it writes the same
        slots = torch.tensor([[one.start.slot, one.start.length - 1] for one in prompts])
        rows = slots[:, :1] * self.rows + torch.arange(self.rows)
        table = torch.stack([rows.flatten(), slots[:, 1].repeat_interleave(self.rows)])
        rows, last = graphs.copy_async(table, self.device)
        self._prefill_graph(batch, time, prompts[0].start.slot)(
            x=torch.cat([one.embedded for one in prompts]),
            last=last,
            rows=rows,
            slots=rows[:: self.rows] // self.rows,
        )

    def _padded(self, length: int) -> int:
        return min(-(-length // PROMPT_STRIDE) * PROMPT_STRIDE, max(self.capacity, length))

    def _prefill_graph(self, batch: int, time: int, slot: int) -> graphs.GraphedFunction[None]:
        """Return the graph of a batch and a prompt length. slot: one whose cache a capture may overwrite."""
        if (batch, time) not in self._graphs:
            logits, width = self.state.logits, self.t3.config.backbone.width

            def prefill(x: Tensor, last: Tensor, rows: Tensor, slots: Tensor) -> None:
                found = self.packed.prefill(x, last, self._caches, rows)
                logits.index_copy_(0, slots, found.view(batch, *logits.shape[1:]))

            inputs = {
                "x": torch.zeros(batch * self.rows, time, width, dtype=self.dtype),
                "last": torch.full((batch * self.rows,), time - 1),
                "rows": torch.arange(slot * self.rows, (slot + 1) * self.rows).repeat(batch),
                "slots": torch.full((batch,), slot),
            }
            with self._state_preserved():
                self._graphs.capture((batch, time), f"{batch} T3 prompts of {time}", prefill, inputs)
        return self._graphs[batch, time]

    def _step_graph(self, slots: int, span: int, sorting: bool) -> graphs.GraphedFunction[None]:
        size = (slots, span, sorting)
        if size not in self._graphs:
            state, caches = self._views(slots, span)

            def capture() -> None:
                name = f"T3 step of {slots}, {span} positions, {self.packed.kernels.name}"
                name += ", sorting" if sorting else ""
                with self._state_preserved():
                    self._graphs.capture(size, name, lambda: self._step(state, caches, sorting), {})

            self.packed.kernels.retry(capture)
        return self._graphs[size]

    def _views(self, slots: int, span: int) -> tuple[DecodeState, KVCaches]:
        """Return the state and the caches of the first slots, and of so many positions."""
        rows = slots * self.rows
        caches = [(keys[:rows, :, :span], values[:rows, :, :span]) for keys, values in self._caches]
        return self.state.first(slots), caches

    def _step(self, state: DecodeState, caches: KVCaches, sorting: bool) -> None:
        x, lengths = self.packed.sample(state, order=self.order, sorting=sorting)
        self.packed.step(x, caches, lengths, out=state.logits.flatten(0, 1))

    @contextmanager
    def _state_preserved(self) -> Iterator[None]:
        """Save and restore the state around a capture, which runs the function."""
        with torch.inference_mode():
            saved = {name: value.clone() for name, value in self.state.tensors().items()}
            self.state.running.zero_()
            self.state.cursor.zero_()
            yield
            for name, value in self.state.tensors().items():
                value.copy_(saved[name])
