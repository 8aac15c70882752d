"""The table of operations of a T3 step: which tensor each operation reads and writes.

    per layer   linear     stream --norm--> qkv                 STORE
                attention  qkv -> attended, cache grows
                linear     attended -> stream                   ADD
                linear     stream --norm--> inner               SWIGLU (Llama) or GELU (GPT-2)
                linear     inner -> stream                      ADD
    at the end  linear     stream --norm--> logits              STORE, only where logits are wanted

`stream` (tokens, width) is the residual stream. The table is built once; a step writes the embeddings into
`stream` and a few words into the job, and runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.cpu.kernels import t3_operations
from nightingale.backends.cpu.kernels.int8_gemm import GROUP_TILES, Epilogue, Norm
from nightingale.backends.cpu.kernels.jit import CompiledModule, compile_cached
from nightingale.backends.cpu.kernels.t3_operations import AttentionOp, LinearOp, SequenceField, T3Job
from nightingale.backends.cpu.kernels.target import TILE_OUTPUTS, host_target
from nightingale.backends.cpu.kernels.thread_pool import ThreadPool, write_words
from nightingale.backends.cpu.kernels.vector_math import LANES
from nightingale.backends.shared.capability_checks import ffn_width
from nightingale.backends.shared.packed_t3 import load_packed
from nightingale.backends.shared.t3_inputs import Floats, rotary_tables
from nightingale.models.chatterbox.t3.config import LlamaConfig
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.aligned_arrays import page_aligned_zeros

OPS_PER_LAYER: Final = 5


@cache
def compiled_step(head_dim: int, rotary: bool, bits: int) -> CompiledModule:
    """Return the operations of a T3 as machine code."""
    emit = partial(t3_operations.emit_t3_step, host_target(), head_dim=head_dim, rotary=rotary, bits=bits)
    return compile_cached(emit, host_target(), name=f"t3 {head_dim} {rotary} {bits}")


class T3Program:
    """The operations of a step, and the memory that they work in."""

    def __init__(
        self,
        t3: T3,
        packed: Path,
        *,
        rows: int,
        capacity: int,
        threads: int,
    ) -> None:
        """Load weights in `TiledFormat`; allocate a KV cache of `rows` sequences of `capacity` positions."""
        backbone, self._vocab = t3.config.backbone, t3.config.speech_vocab
        width, inner, head_dim = backbone.width, ffn_width(t3.config), backbone.width // backbone.heads
        is_llama, blocks = isinstance(backbone, LlamaConfig), -(-capacity // LANES)
        cached = rows, backbone.layers, backbone.heads
        keys = page_aligned_zeros((*cached, blocks, head_dim, LANES), np.float16)
        values = page_aligned_zeros((*cached, blocks * LANES, head_dim), np.float16)
        self.kv_cache: dict[str, NDArray[np.float16]] = {"keys": keys, "values": values}
        self._weights = load_packed(packed)
        bits = 4 if self._weights["logits.scales"].dtype == np.float16 else 8
        sizes = width, 3 * width, width, inner, len(self._weights["logits.codes"]) * TILE_OUTPUTS
        self.stream, self._qkv, attended, hidden, self._logits = (
            page_aligned_zeros((t3_operations.MAX_TOKENS, size)) for size in sizes
        )
        self._zero_bias: Floats = page_aligned_zeros((max(2 * inner, *sizes),))
        self._ops: list[tuple[int, dict[Any, Any]]] = []
        activation = Epilogue.SWIGLU if is_llama else Epilogue.GELU
        for layer in range(backbone.layers):
            self._linear(f"{layer}.qkv", self.stream, self._qkv, Epilogue.STORE)
            cache = {AttentionOp.KEYS: keys[0, layer], AttentionOp.VALUES: values[0, layer]}
            self._ops.append((t3_operations.T3Opcode.ATTENTION, {AttentionOp.QKV: self._qkv, **cache}))
            self._linear(f"{layer}.out", attended, self.stream, Epilogue.ADD)
            self._linear(f"{layer}.up", self.stream, hidden, activation)
            self._linear(f"{layer}.down", hidden, self.stream, Epilogue.ADD)
        self._linear("logits", self.stream, self._logits, Epilogue.STORE)
        self._ops[-1][1][LinearOp.LOGITS_ONLY] = 1
        self.rotary = rotary_tables(t3, capacity)
        cos, sin = self.rotary or (self._zero_bias, self._zero_bias)
        self._sequences: NDArray[np.int64] = np.zeros(
            (t3_operations.MAX_TOKENS, len(SequenceField)), np.int64
        )
        module = compiled_step(head_dim, is_llama, bits)
        self._pool = ThreadPool(module, threads, max_ops=len(self._ops))
        self._pool.set_operations(*self._ops)
        self._pool.reserve_scratch(t3_operations.scratch_bytes(max(width, inner), capacity + LANES, bits))
        write_words(self._pool.job, {
            T3Job.SEQUENCES: self._sequences, T3Job.ATTENTION_OUT: attended, T3Job.COS: cos, T3Job.SIN: sin,
            T3Job.HEADS: backbone.heads, T3Job.HEAD_STRIDE: values[0, 0, 0].size,
            T3Job.CACHE_ROW_STRIDE: values[0].size,
        })  # fmt: skip

    def run(
        self,
        sequences: Sequence[tuple[int, int, int, int]],
        *,
        logits_tokens: int,
        queries: Mapping[int, Floats] | None = None,
    ) -> Tensor:
        """Run a step over the embeddings in `stream`; return the logits (logits_tokens, vocab) of the last.

        `sequences` has a row of `SequenceField` for each sequence. queries: (tokens, width) by layer, get the queries
        of layers before positions are applied.
        """
        self._sequences[: len(sequences)] = sequences
        job = self._pool.job
        tokens = sum(sequence[SequenceField.TOKENS] for sequence in sequences)
        job[T3Job.TOKENS], job[T3Job.SEQUENCE_COUNT] = tokens, len(sequences)
        job[T3Job.LOGITS_TOKENS], first = logits_tokens, 0
        for layer, into in sorted((queries or {}).items()):
            end = OPS_PER_LAYER * layer + 1
            self._pool.run(range(first, end))
            first = end
            into[:] = self._qkv[:tokens, : into.shape[1]]
        self._pool.run(range(first, len(self._ops)))
        logits = self._logits[:logits_tokens, : self._vocab].copy()
        # Rounding to int8 makes numbers of NaN, which the residual stream keeps.
        finite = np.isfinite(self.stream[tokens - logits_tokens : tokens]).all(axis=1)
        logits[~finite] = np.nan
        return torch.from_numpy(logits)

    def _linear(self, name: str, x: Floats, out: Floats, epilogue: Epilogue) -> None:
        """Add the operation that multiplies x by weights in `TiledFormat`, after the norm among them."""
        weights = self._weights
        codes = weights[f"{name}.codes"]
        op: dict[Any, Any] = {
            LinearOp.X: x, LinearOp.K: x.shape[1], LinearOp.OUT: out, LinearOp.OUT_STRIDE: out.shape[1],
            LinearOp.GROUPS: len(codes) // GROUP_TILES, LinearOp.EPILOGUE: epilogue,
            LinearOp.W_CODES: codes, LinearOp.W_SCALES: weights[f"{name}.scales"],
            LinearOp.BIAS: weights.get(f"{name}.bias", self._zero_bias),
        }  # fmt: skip
        if f"{name}.norm_weight" in weights:
            op |= {LinearOp.NORM: Norm.RMS, LinearOp.NORM_WEIGHT: weights[f"{name}.norm_weight"]}
        if f"{name}.norm_bias" in weights:
            op |= {LinearOp.NORM: Norm.LAYER, LinearOp.NORM_BIAS: weights[f"{name}.norm_bias"]}
        self._ops.append((t3_operations.T3Opcode.LINEAR, op))
