"""A draft head as operations of T3's own program, with quantized weights: a draft must be cheap, not exact.

    start   linear   taps --norm--> state                           ADD
    step    linear   state ‖ embedding -> x                         STORE
            linear   x --norm--> inner                              SWIGLU     per block
            linear   inner -> x                                     ADD
            linear   x --norm--> logits, with the weights of T3's head

It shares T3's threads: those of another pool would wait for work on the same cores. The reference is
`TorchDraftHead` in backends/torch/draft_heads.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nightingale.backends.cpu.int8_layout import interleave_gate, tile_weight
from nightingale.backends.cpu.kernels.int8_gemm import GROUP_TILES, NORM_EPSILON, QUANT_BLOCK, Epilogue, Norm
from nightingale.backends.cpu.kernels.t3_operations import LinearOp, T3Job, T3Opcode
from nightingale.backends.cpu.kernels.target import TILE_OUTPUTS, host_target
from nightingale.backends.cpu.kernels.thread_pool import ThreadPool
from nightingale.backends.shared.quantize import quantize_weights
from nightingale.backends.shared.t3_inputs import Floats, InputEmbeddings
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.config import TAPS
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.aligned_arrays import page_aligned_zeros

Weights = Mapping[str, NDArray[Any]]
MAX_ROWS = 2
"""Rows of an utterance."""


def linear_operation(
    weights: Weights, name: str, x: Floats, out: Floats, epilogue: Epilogue, zero_bias: Floats
) -> tuple[int, dict[Any, Any]]:
    """Return the operation that multiplies x by weights in `TiledFormat`, after the norm among them."""
    codes = weights[f"{name}.codes"]
    op: dict[Any, Any] = {
        LinearOp.X: x, LinearOp.K: x.shape[1], LinearOp.OUT: out, LinearOp.OUT_STRIDE: out.shape[1],
        LinearOp.GROUPS: len(codes) // GROUP_TILES, LinearOp.EPILOGUE: epilogue,
        LinearOp.W_CODES: codes, LinearOp.W_SCALES: weights[f"{name}.scales"],
        LinearOp.BIAS: weights.get(f"{name}.bias", zero_bias),
    }  # fmt: skip
    if f"{name}.norm_weight" in weights:
        op |= {LinearOp.NORM: Norm.RMS, LinearOp.NORM_WEIGHT: weights[f"{name}.norm_weight"]}
    if f"{name}.norm_bias" in weights:
        op |= {LinearOp.NORM: Norm.LAYER, LinearOp.NORM_BIAS: weights[f"{name}.norm_bias"]}
    return T3Opcode.LINEAR, op


def rms_norm(x: Floats, weight: Floats) -> Floats:
    squares = np.square(x).mean(axis=-1, keepdims=True)
    normed: Floats = x / np.sqrt(squares + np.float32(NORM_EPSILON)) * weight
    return normed


class Int8DraftHead:
    """Run a draft head by the threads of T3's program, which adds its operations and sets `pool`."""

    pool: ThreadPool

    @torch.inference_mode()
    def __init__(self, t3: T3, head: DraftHead, *, bits: int) -> None:
        self._embeddings, self._width, self._vocab = InputEmbeddings(t3), head.width, t3.config.speech_vocab
        self._norm: Floats = head.norm.weight.detach().float().numpy()
        self._blocks = len(head.blocks)
        self._weights: dict[str, NDArray[Any]] = {}
        blocks: list[Any] = list(head.blocks)
        layers = {"taps": head.taps_proj.weight, "in": head.in_proj.weight}
        norms = {"taps": head.taps_norm, "logits": head.norm}
        for number, block in enumerate(blocks):
            layers[f"{number}.up"] = interleave_gate(block.mlp.gate_proj.weight, block.mlp.up_proj.weight)
            layers[f"{number}.down"] = block.mlp.down_proj.weight
            norms[f"{number}.up"] = block.norm
        for name, weight in layers.items():
            quantized = quantize_weights([weight.detach().float()], bits)
            tiled = tile_weight(quantized, signed=host_target().signed_weights, bits=bits)
            for part, value in zip(("codes", "scales"), tiled, strict=True):
                self._weights[f"{name}.{part}"] = value.numpy()
        for name, norm in norms.items():
            self._weights[f"{name}.norm_weight"] = norm.weight.detach().float().numpy()
        inner = blocks[0].mlp.down_proj.in_features
        self.max_inputs = max(TAPS * head.width, inner)
        sizes = TAPS * head.width, head.width, 2 * head.width, head.width, inner
        self._taps, self._state, self._both, self._x, self._inner = (
            page_aligned_zeros((MAX_ROWS, size)) for size in sizes
        )
        self._logits: Floats = np.empty(0, np.float32)
        self._start = self._step = range(0)

    @staticmethod
    def fits(head: DraftHead) -> bool:
        """Return whether the kernels can run it: inputs are quantized in whole blocks."""
        inner = len(head.get_parameter("blocks.0.mlp.gate_proj.weight"))
        return inner % QUANT_BLOCK == 0

    def operations(self, first: int, t3: Weights) -> list[tuple[int, dict[Any, Any]]]:
        """Return the operations, whose first will have this place; t3: its weights, whose head is used."""
        weights = {**{name: t3[name] for name in t3 if name.startswith("logits.")}, **self._weights}
        weights.pop("logits.norm_bias", None)
        outputs = len(t3["logits.codes"]) * TILE_OUTPUTS
        self._logits = page_aligned_zeros((MAX_ROWS, outputs))
        zero_bias = page_aligned_zeros((max(outputs, 2 * self.max_inputs),))
        steps = [("in", self._both, self._x, Epilogue.STORE)]
        for number in range(self._blocks):
            steps.append((f"{number}.up", self._x, self._inner, Epilogue.SWIGLU))
            steps.append((f"{number}.down", self._inner, self._x, Epilogue.ADD))
        steps.append(("logits", self._x, self._logits, Epilogue.STORE))
        table = [("taps", self._taps, self._state, Epilogue.ADD), *steps]
        self._start, self._step = range(first, first + 1), range(first + 1, first + len(table))
        self._kept = weights, zero_bias  # their addresses are in the table
        return [linear_operation(weights, *one, zero_bias) for one in table]

    def start(self, hidden: Floats) -> Floats:
        rows = len(hidden)
        self._state[:rows], self._taps[:rows] = hidden[:, : self._width], hidden[:, self._width :]
        self._run(self._start, rows)
        return self._state[:rows].copy()

    def step(self, state: Floats, token: int, position: int) -> tuple[Floats, Logits]:
        rows = len(state)
        self._both[:rows, : self._width] = state
        self._both[:rows, self._width :] = self._embeddings.speech([token], [position])
        self._run(self._step, rows)
        return rms_norm(self._x[:rows], self._norm), self._logits[:rows, : self._vocab].copy()

    def _run(self, operations: range, rows: int) -> None:
        self.pool.job[T3Job.TOKENS] = rows
        self.pool.run(operations)
