"""T3's steps on a CPU by machine code of our own, with weights of eight bits: the engine's Runner.

A row of the pool is the memory of one row of an utterance, all layers of it. Rows that have no turn are not
computed. A prompt is not read twice, as in backends/onnx/runner.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.shared.t3_inputs import Floats, Heard, Tables, check_room, turned, zeros
from nightingale.backends.cpu import t3_kernels as kernels
from nightingale.backends.cpu.thread_pool import CLAIM_LENGTH, JOB_LENGTH, OP_LENGTH, Crew
from nightingale.backends.cpu.t3_kernels import LANES, PER_GROUP
from nightingale.backends.cpu.t3_program import (
    ATTEND,
    LINEAR,
    TOKENS_AT_ONCE,
    Job,
    Op,
    Span,
    scratch_bytes,
)
from nightingale.backends.cpu.target import Code
from nightingale.backends.shared.packed_t3 import Packed
from nightingale.backends.torch.runner import embed_prompt
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.runner import StepInput
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.config import LlamaConfig
from nightingale.models.chatterbox.t3.model import T3

KEYS, VALUES = "keys", "values"


class Int8Runner:
    def __init__(
        self,
        t3: T3,
        packed: Packed,
        code: Code,
        *,
        slots: int,
        rows_per_slot: int,
        capacity: int,
        batched: bool,
        max_new_tokens: int,
        threads: int | None = None,
    ) -> None:
        """t3: its embeddings are used, its layers are not (`without_backbone`). packed, code: as able.py has
        them. threads: that a step is done by; as many as torch uses if not told."""
        self.t3, self.rows_per_slot, self.batched, self.capacity = t3, rows_per_slot, batched, capacity
        self._max_new_tokens = max_new_tokens
        backbone = t3.config.backbone
        threads = torch.get_num_threads() if threads is None else threads
        blocks, head_width = -(-capacity // LANES), backbone.width // backbone.heads
        rows = slots * rows_per_slot, backbone.layers, backbone.heads
        self.pool: dict[str, NDArray[np.float16]] = {
            KEYS: zeros((*rows, blocks, head_width, LANES), np.float16),
            VALUES: zeros((*rows, blocks * LANES, head_width), np.float16),
        }
        self._tables, self._heard = Tables(t3), Heard(rows_per_slot)
        self._program = _Program(t3, packed, self.pool, code, capacity=capacity, threads=threads)
        self.rows: list[int] = [0] * slots
        """rows[slot]: how many the utterance there uses."""
        self.lengths: list[int] = [0] * slots
        """lengths[slot]: how many positions it remembers."""

    @property
    def kv_bytes(self) -> int:
        return sum(part.nbytes for part in self.pool.values())

    @torch.inference_mode()
    def prefill(self, slot: int, prompt: Prompt, *, max_tokens: int) -> Logits:
        del max_tokens
        x = embed_prompt(self.t3, prompt, max_new_tokens=self._max_new_tokens)
        return self.prefill_embeddings(slot, x).numpy()

    @torch.inference_mode()
    def prefill_embeddings(self, slot: int, prompt: Tensor) -> Tensor:
        """Read embeddings (rows, time, width) into a slot; return the logits (rows, vocab) after them."""
        rows, length = prompt.shape[:2]
        check_room(length, self.capacity)
        first = slot * self.rows_per_slot
        x = self._tables.positioned(prompt.float()).contiguous()
        scores = torch.empty(rows, self.t3.config.speech_vocab)
        for row in range(rows):
            known = self._heard.recall(x[row], partial(self._own, first + row))
            scores[row] = self._read(first + row, x[row, known:], known)
            self._heard.keep(x[row], self._own(first + row, length))
        self.rows[slot], self.lengths[slot] = rows, length
        return scores

    @torch.inference_mode()
    def step(self, turns: Sequence[StepInput]) -> list[Logits]:
        """Logits of the next token of each utterance, each (rows, vocab). All are taken, or none is."""
        for turn in turns:
            check_room(self.lengths[turn.slot] + 1, self.capacity)
        most = TOKENS_AT_ONCE // self.rows_per_slot if self.batched else 1
        scores = [own for at in range(0, len(turns), most) for own in self._run(turns[at : at + most])]
        for turn in turns:
            self.lengths[turn.slot] += 1
        return [own.numpy() for own in scores]

    def move(self, source: int, target: int) -> None:
        """Bring an utterance's memory to another slot."""
        length = self.lengths[source]
        for row in range(self.rows[source]):
            old = self._own(source * self.rows_per_slot + row, length)
            for name, own in self._own(target * self.rows_per_slot + row, length).items():
                own[:] = old[name]
        self.rows[target], self.lengths[target] = self.rows[source], length
        self.rows[source], self.lengths[source] = 0, 0

    def release(self, slot: int) -> None:
        """Do nothing: the next prompt overwrites the slot."""

    def reset(self, slot: int) -> None:
        """After a fault: nothing of the slot, nor of the prompts that were kept, is used again."""
        first = slot * self.rows_per_slot
        for part in self.pool.values():
            part[first : first + self.rows_per_slot] = 0
        self._heard.kept.clear()

    def _run(self, turns: Sequence[StepInput]) -> list[Tensor]:
        """One token more of each."""
        counts = [self.rows[turn.slot] for turn in turns]
        each = [turn for turn, count in zip(turns, counts, strict=True) for _ in range(count)]
        places = [
            turn.slot * self.rows_per_slot + row for turn in turns for row in range(self.rows[turn.slot])
        ]
        past = [self.lengths[turn.slot] for turn in each]
        program = self._program
        self._tables.embed(
            program.stream[: len(each)], [t.token for t in each], [t.position for t in each], past
        )
        spans = [
            (number, 1, place, behind)
            for number, (place, behind) in enumerate(zip(places, past, strict=True))
        ]
        return list(torch.split(program.run(spans, asked=len(each)), counts))

    def _read(self, row: int, x: Tensor, known: int) -> Tensor:
        """Logits (vocab,) after x (time, width), which follows `known` others."""
        scores = torch.empty(0)
        for at in range(0, len(x), TOKENS_AT_ONCE):
            part = x[at : at + TOKENS_AT_ONCE]
            self._program.stream[: len(part)] = part.numpy()
            last = at + len(part) == len(x)
            scores = self._program.run([(0, len(part), row, known + at)], asked=int(last))
        return scores[0]

    def _own(self, row: int, positions: int) -> dict[str, NDArray[np.float16]]:
        """A row's first so many positions, (layers, heads, …)."""
        blocks = -(-positions // LANES)
        keys, values = self.pool[KEYS][row, :, :, :blocks], self.pool[VALUES][row, :, :, :positions]
        return {KEYS: keys, VALUES: values}


class _Program:
    """The operations of a step, and the memory that they work in."""

    def __init__(
        self,
        t3: T3,
        packed: Packed,
        pool: dict[str, NDArray[np.float16]],
        code: Code,
        *,
        capacity: int,
        threads: int,
    ) -> None:
        config, backbone = t3.config, t3.config.backbone
        width, self._vocab = backbone.width, config.speech_vocab
        self._rotary = isinstance(backbone, LlamaConfig)
        inner = backbone.ffn if isinstance(backbone, LlamaConfig) else 4 * width
        self._weights, self._pool = packed.weights(), pool
        padded = self._weights["scores.codes"].shape[0] * self._weights["scores.codes"].shape[2]
        self.stream, self._qkv, self._heard, self._inner, self._scores = (
            zeros((TOKENS_AT_ONCE, size)) for size in (width, 3 * width, width, inner, padded)
        )
        self._no_bias: Floats = zeros((max(padded, 2 * inner, 3 * width),))
        self._ops: list[NDArray[np.int64]] = []
        for layer in range(backbone.layers):
            (self._llama if self._rotary else self._gpt2)(layer)
        norm = self._norm("tfmr.norm" if self._rotary else "tfmr.ln_f")
        bias = "speech_head.bias" if config.head_bias else ""
        self._product("scores", self.stream, self._scores, kernels.STORE, norm, bias=bias, asked_only=True)
        self._angles = turned(t3, capacity) or (self._no_bias, self._no_bias)
        scratch = scratch_bytes(max(width, inner), capacity + LANES)
        self._scratch: Floats = zeros((threads * scratch // 4,))
        self._table = zeros((len(self._ops), OP_LENGTH), np.int64)
        self._table[:] = self._ops
        self._claims = zeros((len(self._ops), threads, CLAIM_LENGTH), np.int64)
        self._table[:, Op.CLAIMS] = [_address(own) for own in self._claims]
        self._spans: NDArray[np.int64] = np.zeros((TOKENS_AT_ONCE, len(Span)), np.int64)
        self.job = zeros((JOB_LENGTH,), np.int64)
        facts: dict[Job, int] = {
            Job.SPANS: _address(self._spans), Job.OPS: _address(self._table), Job.OP_COUNT: len(self._ops),
            Job.THREADS: threads, Job.SCRATCH: _address(self._scratch), Job.SCRATCH_BYTES: scratch,
            Job.HEARD: _address(self._heard), Job.COS: _address(self._angles[0]),
            Job.SIN: _address(self._angles[1]), Job.HEADS: backbone.heads,
            Job.HEAD_LENGTH: pool[VALUES][0, 0, 0].size, Job.ROW_LENGTH: pool[VALUES][0].size,
        }  # fmt: skip
        for place, fact in facts.items():
            self.job[place] = fact
        self.crew = Crew(code, self.job, threads)

    def run(self, spans: Sequence[tuple[int, int, int, int]], *, asked: int) -> Tensor:
        """Logits (asked, vocab) after what lies in `stream`. spans: as `Span` names them."""
        self._spans[: len(spans)] = spans
        self.job[Job.TOKENS] = sum(span[Span.TOKENS] for span in spans)
        self.job[Job.ASKED], self.job[Job.ROWS] = asked, len(spans)
        self.crew.run()
        return torch.from_numpy(self._scores[:asked, : self._vocab].copy())

    def _llama(self, layer: int) -> None:
        at = f"tfmr.layers.{layer}."
        self._product(f"{at}qkv", self.stream, self._qkv, kernels.STORE, self._norm(f"{at}input_layernorm"))
        self._attention(layer)
        self._product(f"{at}out", self._heard, self.stream, kernels.ADD)
        norm = self._norm(f"{at}post_attention_layernorm")
        self._product(f"{at}both", self.stream, self._inner, kernels.GATED, norm)
        self._product(f"{at}down", self._inner, self.stream, kernels.ADD)

    def _gpt2(self, layer: int) -> None:
        at = f"tfmr.h.{layer}."
        norm = self._norm(f"{at}ln_1")
        self._biased(f"{at}attn.c_attn", self.stream, self._qkv, kernels.STORE, norm)
        self._attention(layer)
        self._biased(f"{at}attn.c_proj", self._heard, self.stream, kernels.ADD)
        norm = self._norm(f"{at}ln_2")
        self._biased(f"{at}mlp.c_fc", self.stream, self._inner, kernels.GELU, norm)
        self._biased(f"{at}mlp.c_proj", self._inner, self.stream, kernels.ADD)

    def _norm(self, name: str) -> dict[Op, int]:
        weight = self._weights[f"{name}.weight"]
        if self._rotary:
            return {Op.NORM: kernels.ROOT_MEAN_SQUARE, Op.NORM_WEIGHT: _address(weight)}
        bias = _address(self._weights[f"{name}.bias"])
        return {Op.NORM: kernels.LAYER, Op.NORM_WEIGHT: _address(weight), Op.NORM_BIAS: bias}

    def _biased(
        self, name: str, x: Floats, out: Floats, finish: int, norm: dict[Op, int] | None = None
    ) -> None:
        self._product(name, x, out, finish, norm, bias=f"{name}.bias")

    def _product(
        self,
        name: str,
        x: Floats,
        out: Floats,
        finish: int,
        norm: dict[Op, int] | None = None,
        *,
        bias: str = "",
        asked_only: bool = False,
    ) -> None:
        codes = self._weights[f"{name}.codes"]
        tiles, _, outputs, _ = codes.shape
        facts = {
            Op.KIND: LINEAR, Op.COUNT: tiles * outputs // PER_GROUP, Op.X: _address(x),
            Op.CODES: _address(codes), Op.SCALES: _address(self._weights[f"{name}.scales"]),
            Op.BIAS: _address(self._weights[bias] if bias else self._no_bias), Op.OUT: _address(out),
            Op.WIDTH: x.shape[1], Op.FINISH: finish, Op.STRIDE: out.shape[1],
            Op.ASKED_ONLY: int(asked_only), **(norm or {Op.NORM: kernels.PLAIN}),
        }  # fmt: skip
        self._add(facts)

    def _attention(self, layer: int) -> None:
        keys, values = (self._pool[name][0, layer] for name in (KEYS, VALUES))
        self._add(
            {Op.KIND: ATTEND, Op.X: _address(self._qkv), Op.KEYS: _address(keys), Op.VALUES: _address(values)}
        )

    def _add(self, facts: dict[Op, int]) -> None:
        op: NDArray[np.int64] = np.zeros(OP_LENGTH, np.int64)
        for place, fact in facts.items():
            op[place] = fact
        self._ops.append(op)


def _address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)
