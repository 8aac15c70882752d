"""T3's decoding without the host: graphs that draw, append and go one step on, for many utterances at once.

    scores -> guidance -> penalties, cuts -> token -> append -> embedding -> layers -> head -> scores

One such step is one graph, for a bucket of slots and a bucket of remembered positions. Steps are launched
several at a time; the tokens come back in one copy, which the host may read while the next steps run.

The twin is decoding/decoding.py: in float32, a seed gives the same tokens there and here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nightingale.backends.cuda.batched_sampling import Order, draw, guide, needs_sorting, shape_scores
from nightingale.backends.cuda.decode_state import NO_TOKEN, DecodeState
from nightingale.backends.cuda.graphs import (
    RECORDING,
    WARMUPS,
    GraphReport,
    How,
    Replay,
    bucket_for,
    how_on,
    own_stream,
)
from nightingale.backends.cuda.random import int64_key
from nightingale.backends.cuda.t3_layers import PackedT3, Way, compiler_room
from nightingale.errors import MemoryFull
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_cache import DenseKVCache
from nightingale.types import Sampling

PROMPT_STRIDE = 32
"""Prompts are padded to a multiple of this, so that few graphs serve all lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan:
    """What is recorded, and how."""

    slots: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    """Buckets of utterances."""
    spans: tuple[int, ...] = (256, 512, 1024)
    """Buckets of remembered positions, besides the whole capacity."""
    steps: int = 8
    """At most so many steps are launched before their tokens are read."""
    compile_mode: str | None = None
    way: Way = "auto"
    tuning: tuple[int, ...] | None = None
    """Of the Triton kernels; None is their own."""
    how: How | None = None
    """None: graphs on a GPU, eager elsewhere."""


DEFAULT = DecodePlan()


class Pending:
    """Tokens on their way to the host."""

    def __init__(self, tokens: Tensor, event: torch.cuda.Event | None) -> None:
        self._tokens, self._event = tokens, event

    @property
    def ready(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def take(self) -> list[list[int]]:
        """Of each slot, the tokens drawn in these steps, or BROKEN. Waits for them if it must."""
        if self._event is not None:
            self._event.synchronize()
        return [[token for token in row if token != NO_TOKEN] for row in self._tokens.T.tolist()]


class DecodeLoop:
    """T3 with a fixed pool of memory, decoded by graphs. Its tensors belong to the thread that calls it."""

    @torch.no_grad()
    def __init__(
        self, t3: T3, *, order: Order, guided: bool, capacity: int, plan: DecodePlan = DEFAULT
    ) -> None:
        """t3: in the precision it shall run in; its weights are joined in place. guided: two rows a slot."""
        weight = t3.speech_head.weight
        self.t3, self.order, self.capacity = t3, order, capacity
        self.device, self.dtype = weight.device, weight.dtype
        self.rows = 2 if guided else 1
        self.how: How = plan.how or how_on(self.device)
        self.plan = replace(plan, spans=(*(s for s in plan.spans if s < capacity), capacity))
        self.packed = PackedT3(
            t3, positions=capacity, compile_mode=plan.compile_mode, way=plan.way, tuning=plan.tuning
        )
        slots, lines = plan.slots[-1], max(plan.steps, WARMUPS)
        self._memory = [
            memory
            for memory in t3.new_kv_cache(rows=slots * self.rows, capacity=capacity)
            if isinstance(memory, DenseKVCache)
        ]
        vocab = t3.config.speech_vocab
        self.state = DecodeState.empty(
            slots=slots, rows=self.rows, vocab=vocab, steps=lines, device=self.device
        )
        self._graphs: dict[tuple[str, int, int, bool], Replay[Any]] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.how == "graph" else None
        self._own_stream = own_stream(self.device, RECORDING) if self.how == "graph" else None
        self._recorder = self._own_stream.stream if self._own_stream else None
        self._held: dict[int, tuple[int, bool]] = {}
        """Of each slot in use: positions it remembers at most, and whether its sampling sorts."""
        pinned = self.device.type == "cuda"
        # Hand-over to the host. A launch copies its tokens to one of two places and records an event after
        # the copy, on the stream the steps run on; `Pending.take` reads the place after that event. The next
        # launch writes to the other one, and the launch after next to this one again: by then it must be
        # taken, which `GraphDecoder.step` does by taking each launch right after the next. On the device
        # `recent` is written again by the next launch, after the copy, because both are on one stream.
        self._hosts = [torch.empty(lines, slots, dtype=torch.int64, pin_memory=pinned) for _ in range(2)]
        self._launches = 0

    @property
    def reports(self) -> list[GraphReport]:
        return [graph.report for graph in self._graphs.values()]

    @property
    def bytes(self) -> int:
        """What the memory takes, however many are speaking."""
        return sum(memory.keys.nbytes + memory.values.nbytes for memory in self._memory)

    def warm(self, *, prompts: tuple[int, int], sorting: bool) -> None:
        """Record all that is needed before the first utterance comes. prompts: the shortest and longest."""
        assert not self._held, "somebody is speaking: his memory would be scribbled on"
        for slots in self.plan.slots:
            for span in self.plan.spans:
                self._step_graph(slots, span, sorting)
        shortest, longest = (self._padded(length) for length in prompts)
        for length in [*range(shortest, longest, PROMPT_STRIDE), longest]:
            self._prefill_graph(length, 0)

    @torch.inference_mode()
    def begin(self, slot: int, prompt: Tensor, *, sampling: Sampling, seed: int, budget: int) -> None:
        """Read a prompt (rows, time, width) into a slot; the first step draws its first token."""
        length = prompt.shape[1]
        padded = self._padded(length)
        table = self.t3.config.learned_positions
        most = self.capacity if table is None else min(self.capacity, length + table[1] - 1)
        if length + budget > most or padded > self.capacity:
            raise MemoryFull(
                "the utterance would outgrow its memory",
                got=f"a prompt of {length} positions and {budget} tokens",
                allowed=f"{most} together",
                fix="Speak a shorter sentence, or plan a larger capacity.",
            )
        # An unguided request in a guided pool: both rows are told, and guidance adds nothing.
        x = prompt.new_zeros(self.rows, padded, prompt.shape[2])
        x[:, :length] = prompt
        first = slot * self.rows
        self._prefill_graph(padded, slot)(
            x=x,
            last=torch.full((1,), length - 1, device=self.device),
            rows=torch.arange(first, first + self.rows, device=self.device),
            slot=torch.full((1,), slot, device=self.device),
        )
        vocab = self.t3.config.speech_vocab
        self.state.knobs.set(slot, sampling, key=int64_key(seed, "tokens"), vocab=vocab)
        self.state.begin(slot, length=length, budget=budget)
        self._held[slot] = (length, needs_sorting(sampling))

    @torch.inference_mode()
    def launch(self, steps: int) -> Pending:
        """So many steps for every slot in use. Take the tokens before the launch after next."""
        bucket_for(steps, (self.plan.steps,), what="steps at a time")
        slots = bucket_for(max(self._held) + 1, self.plan.slots, what="utterances")
        longest = max(length for length, _ in self._held.values()) + steps
        span = bucket_for(min(longest, self.capacity), self.plan.spans, what="positions")
        step = self._step_graph(slots, span, any(sorts for _, sorts in self._held.values()))
        self.state.cursor.zero_()
        for _ in range(steps):
            step()
        self._held = {slot: (length + steps, sorts) for slot, (length, sorts) in self._held.items()}
        host = self._hosts[self._launches % 2][:steps]
        self._launches += 1
        host.copy_(self.state.recent[:steps], non_blocking=True)
        event = None
        if self.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        return Pending(host[:, :slots], event)

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        self.state.release(slot)
        self._held.pop(slot, None)

    @torch.inference_mode()
    def wipe(self, slot: int) -> None:
        """After a fault: what is not a number would reach the slot's next utterance, masked or not."""
        rows = slice(slot * self.rows, (slot + 1) * self.rows)
        for memory in self._memory:
            memory.keys[rows].zero_()
            memory.values[rows].zero_()
        self.state.scores[slot].zero_()

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        """Bring an utterance to a free slot, so that slots in use have no gaps."""
        length, _ = self._held[source]
        old, new = source * self.rows, target * self.rows
        for memory in self._memory:
            for cache in (memory.keys, memory.values):
                cache[new : new + self.rows, :, :length] = cache[old : old + self.rows, :, :length]
        self.state.move(source, target)
        self._held[target] = self._held.pop(source)
        self.state.release(source)

    def _padded(self, length: int) -> int:
        return min(-(-length // PROMPT_STRIDE) * PROMPT_STRIDE, max(self.capacity, length))

    def _prefill_graph(self, time: int, slot: int) -> Replay[Any]:
        """slot: one whose memory may be scribbled on while the graph is recorded."""
        key = ("prefill", time, 0, False)
        if key not in self._graphs:
            caches = [(memory.keys, memory.values) for memory in self._memory]
            scores = self.state.scores

            def prefill(x: Tensor, last: Tensor, rows: Tensor, slot: Tensor) -> None:
                scores.index_copy_(0, slot, self.packed.prefill(x, last, caches, rows)[None])

            with self._sheltered():
                width = self.t3.config.backbone.width
                self._graphs[key] = Replay(
                    f"T3 prompt of {time}",
                    prefill,
                    {
                        "x": torch.zeros(self.rows, time, width, dtype=self.dtype),
                        "last": torch.tensor([time - 1]),
                        "rows": torch.arange(slot * self.rows, (slot + 1) * self.rows),
                        "slot": torch.tensor([slot]),
                    },
                    how=self.how,
                    device=self.device,
                    pool=self._pool,
                    stream=self._recorder,
                )
        return self._graphs[key]

    def _step_graph(self, slots: int, span: int, sorting: bool) -> Replay[Any]:
        key = ("step", slots, span, sorting)
        if key not in self._graphs:
            state, rows = self.state.first(slots), slots * self.rows
            caches = [(m.keys[:rows, :, :span], m.values[:rows, :, :span]) for m in self._memory]

            def step() -> None:
                self._step(state, caches, sorting)

            def record() -> Replay[Any]:
                with self._sheltered(), compiler_room(self.plan.compile_mode):
                    return Replay(
                        f"T3 step of {slots}, {span} positions, {self._way(sorting)}",
                        step,
                        {},
                        how=self.how,
                        device=self.device,
                        pool=self._pool,
                        stream=self._recorder,
                    )

            try:
                self._graphs[key] = record()
            except Exception as error:  # whatever a compiler may come up with, before anything is recorded
                if self.plan.way != "auto" or not self.packed.without_kernels(error):
                    raise
                self._graphs[key] = record()
        return self._graphs[key]

    def _way(self, sorting: bool) -> str:
        way = self.packed.way
        compiled = "compiled " if self.plan.compile_mode and way != "triton" else ""
        return compiled + way + (", sorting" if sorting else "")

    def _step(self, state: DecodeState, caches: list[tuple[Tensor, Tensor]], sorting: bool) -> None:
        scores = guide(state.scores, state.knobs.cfg_weight)
        shaped = shape_scores(scores, state.seen, state.knobs, order=self.order, sorting=sorting)
        tokens = draw(shaped, state.knobs, state.drawn)
        state.append(tokens, ~shaped.amax(dim=-1).isfinite(), self.order)

        def by_row(value: Tensor) -> Tensor:
            return value[:, None].expand(-1, self.rows).flatten()

        after = self.packed.step(by_row(tokens), by_row(state.drawn), caches, by_row(state.lengths))
        state.scores.copy_(after.view_as(state.scores))
        # Who has stopped writes to the same place again: it is read by nobody, and stays inside the memory.
        state.lengths.add_(state.running)

    @contextmanager
    def _sheltered(self) -> Iterator[None]:
        """Recording runs the function; whoever is speaking must not notice."""
        if self.how == "eager":
            yield
            return
        with torch.inference_mode():
            kept = {name: value.clone() for name, value in self.state.tensors().items()}
            self.state.running.zero_()
            self.state.cursor.zero_()
            yield
            for name, value in self.state.tensors().items():
                value.copy_(kept[name])
