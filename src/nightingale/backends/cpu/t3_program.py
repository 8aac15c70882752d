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

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.cpu.kernels.int8_gemm import GROUP_OUTPUTS, Epilogue, Norm
from nightingale.backends.cpu.kernels.jit import CompiledModule
from nightingale.backends.cpu.kernels.t3_operations import (
    MAX_TOKENS,
    AttentionOp,
    LinearOp,
    SequenceField,
    T3Job,
    T3Opcode,
    scratch_bytes,
)
from nightingale.backends.cpu.kernels.thread_pool import OpField, ThreadPool, address_of
from nightingale.backends.cpu.kernels.vector_math import LANES
from nightingale.backends.shared.aligned_arrays import page_aligned_zeros
from nightingale.backends.shared.capability_checks import ffn_width
from nightingale.backends.shared.packed_t3 import PackedWeights
from nightingale.backends.shared.t3_inputs import Floats, rotary_tables
from nightingale.models.chatterbox.t3.config import LlamaConfig
from nightingale.models.chatterbox.t3.model import T3

KEYS: Final = "keys"
VALUES: Final = "values"


def new_kv_cache(t3: T3, rows: int, capacity: int) -> dict[str, NDArray[np.float16]]:
    """Return the keys and values of some rows, laid out as kernels/t3_attention.py describes."""
    backbone = t3.config.backbone
    blocks, head_dim = -(-capacity // LANES), backbone.width // backbone.heads
    heads = rows, backbone.layers, backbone.heads
    return {
        KEYS: page_aligned_zeros((*heads, blocks, head_dim, LANES), np.float16),
        VALUES: page_aligned_zeros((*heads, blocks * LANES, head_dim), np.float16),
    }


class T3Program:
    """The operations of a step, and the memory that they work in."""

    def __init__(
        self,
        t3: T3,
        packed: PackedWeights,
        kv_cache: dict[str, NDArray[np.float16]],
        module: CompiledModule,
        *,
        capacity: int,
        threads: int,
    ) -> None:
        config, backbone = t3.config, t3.config.backbone
        width, inner, self._vocab = backbone.width, ffn_width(config), config.speech_vocab
        self._is_llama = isinstance(backbone, LlamaConfig)
        self._weights, self._kv_cache = packed.load(), kv_cache
        tiles, _, outputs, _ = self._weights["logits.codes"].shape
        sizes = width, 3 * width, width, inner, tiles * outputs
        self.stream, self._qkv, self._attended, self._inner, self._logits = (
            page_aligned_zeros((MAX_TOKENS, size)) for size in sizes
        )
        self._zero_bias: Floats = page_aligned_zeros((max(2 * inner, *sizes),))
        self._ops: list[dict[Any, int]] = []
        for layer in range(backbone.layers):
            (self._llama_layer if self._is_llama else self._gpt2_layer)(layer)
        norm = "tfmr.norm" if self._is_llama else "tfmr.ln_f"
        bias = "speech_head.bias" if config.head_bias else None
        self._linear("logits", self.stream, self._logits, Epilogue.STORE, norm=norm, bias=bias)
        self._ops[-1][LinearOp.LOGITS_ONLY] = 1
        self._rotary = rotary_tables(t3, capacity) or (self._zero_bias, self._zero_bias)
        self._sequences: NDArray[np.int64] = np.zeros((MAX_TOKENS, len(SequenceField)), np.int64)
        self._pool = ThreadPool(module, threads, max_ops=len(self._ops), claims=True)
        self._pool.set_operations(*self._ops)
        self._pool.reserve_scratch(scratch_bytes(max(width, inner), capacity + LANES))
        self.job, values = self._pool.job, kv_cache[VALUES]
        self.job[T3Job.SEQUENCES], self.job[T3Job.HEADS] = address_of(self._sequences), backbone.heads
        self.job[T3Job.HEAD_STRIDE], self.job[T3Job.CACHE_ROW_STRIDE] = values[0, 0, 0].size, values[0].size
        self.job[T3Job.ATTENTION_OUT] = address_of(self._attended)
        self.job[T3Job.COS], self.job[T3Job.SIN] = map(address_of, self._rotary)

    def run(self, sequences: Sequence[tuple[int, int, int, int]], *, logits_tokens: int) -> Tensor:
        """Run a step over the embeddings in `stream`; return the logits (logits_tokens, vocab) of the last.

        `sequences` has a row of `SequenceField` for each sequence.
        """
        self._sequences[: len(sequences)] = sequences
        self.job[T3Job.TOKENS] = sum(sequence[SequenceField.TOKENS] for sequence in sequences)
        self.job[T3Job.LOGITS_TOKENS], self.job[T3Job.SEQUENCE_COUNT] = logits_tokens, len(sequences)
        self._pool.run()
        return torch.from_numpy(self._logits[:logits_tokens, : self._vocab].copy())

    def _llama_layer(self, layer: int) -> None:
        at = f"tfmr.layers.{layer}."
        self._linear(f"{at}qkv", self.stream, self._qkv, Epilogue.STORE, norm=f"{at}input_layernorm")
        self._attention(layer)
        self._linear(f"{at}out", self._attended, self.stream, Epilogue.ADD)
        norm = f"{at}post_attention_layernorm"
        self._linear(f"{at}gate_up", self.stream, self._inner, Epilogue.SWIGLU, norm=norm)
        self._linear(f"{at}down", self._inner, self.stream, Epilogue.ADD)

    def _gpt2_layer(self, layer: int) -> None:
        at = f"tfmr.h.{layer}."

        def linear(name: str, x: Floats, out: Floats, epilogue: Epilogue, norm: str | None = None) -> None:
            self._linear(f"{at}{name}", x, out, epilogue, norm=norm, bias=f"{at}{name}.bias")

        linear("attn.c_attn", self.stream, self._qkv, Epilogue.STORE, f"{at}ln_1")
        self._attention(layer)
        linear("attn.c_proj", self._attended, self.stream, Epilogue.ADD)
        linear("mlp.c_fc", self.stream, self._inner, Epilogue.GELU, f"{at}ln_2")
        linear("mlp.c_proj", self._inner, self.stream, Epilogue.ADD)

    def _linear(
        self,
        name: str,
        x: Floats,
        out: Floats,
        epilogue: Epilogue,
        *,
        norm: str | None = None,
        bias: str | None = None,
    ) -> None:
        weights, codes = self._weights, self._weights[f"{name}.codes"]
        tiles, _, outputs, _ = codes.shape
        op: dict[Any, int] = {
            OpField.OPCODE: T3Opcode.LINEAR, LinearOp.GROUPS: tiles * outputs // GROUP_OUTPUTS,
            LinearOp.X: address_of(x), LinearOp.K: x.shape[1], LinearOp.OUT: address_of(out),
            LinearOp.OUT_STRIDE: out.shape[1], LinearOp.EPILOGUE: epilogue,
            LinearOp.W_CODES: address_of(codes), LinearOp.W_SCALES: address_of(weights[f"{name}.scales"]),
            LinearOp.BIAS: address_of(self._zero_bias if bias is None else weights[bias]),
        }  # fmt: skip
        if norm is not None:
            op |= {LinearOp.NORM: Norm.RMS, LinearOp.NORM_WEIGHT: address_of(weights[f"{norm}.weight"])}
        if norm is not None and not self._is_llama:
            op |= {LinearOp.NORM: Norm.LAYER, LinearOp.NORM_BIAS: address_of(weights[f"{norm}.bias"])}
        self._ops.append(op)

    def _attention(self, layer: int) -> None:
        keys, values = (address_of(self._kv_cache[name][0, layer]) for name in (KEYS, VALUES))
        self._ops.append({
            OpField.OPCODE: T3Opcode.ATTENTION, AttentionOp.QKV: address_of(self._qkv),
            AttentionOp.KEYS: keys, AttentionOp.VALUES: values,
        })  # fmt: skip
