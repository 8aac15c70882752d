"""The projections of the flow's attention: queries in float32, keys and values in int8, packed for flow_attention.py.

    q, k, v = (norm(x) @ weight.T + bias) of each head, by blocks of 64 rows;  pack(k), pack(v)

Shapes
    x         (rows, k) float32
    q         (rows, heads, 64) float32
    weight    of all queries, then all keys, then all values: 3 · heads · 64 outputs
    keys and values as in flow_attention.py

Why it is fast: the 64 outputs of a head and 64 rows of them stay in the L1 cache until they are packed. Of keys and
values only a quarter of the bytes is written to memory.
"""

from __future__ import annotations

from typing import Final

from llvmlite import ir

from nightingale.backends.cpu.kernels.llvm_builder import F32, I8, I64
from nightingale.backends.cpu.kernels.packed_keys import BLOCK_KEYS, HEAD_DIM, BlockPackers, PackedHeads
from nightingale.backends.cpu.kernels.rows_linear import RowsEpilogue, RowsGemm, linear_scratch_bytes
from nightingale.backends.cpu.kernels.thread_pool import Arg, Operation

PROJECT_BLOCK: Final = 256
"""Inputs that share a scale."""
SHARES: Final = 2
"""Units of work of a block of rows: a sentence has few blocks, and threads should end together."""


class ProjectHeadsOp(Arg):
    X = NORM_WEIGHT = NORM_BIAS = W_SCALES = BIAS = Q = K_SCALES = V_SCALES = F32
    W_CODES = K_CODES = V_CODES = I8
    ROWS = K = I64
    HEADS = I64
    """A multiple of SHARES."""


def project_scratch_bytes(k: int) -> int:
    """Return the bytes that a thread needs: quantized rows, and a block of one head."""
    return linear_scratch_bytes(k, PROJECT_BLOCK, BLOCK_KEYS) + 4 * BLOCK_KEYS * HEAD_DIM


def emit_project_heads(module: ir.Module, gemm: RowsGemm, packers: BlockPackers) -> Operation:
    f = Operation(module, "project_heads")
    op = f.args(ProjectHeadsOp)
    blocks, width = (op.rows + (BLOCK_KEYS - 1)) // BLOCK_KEYS, op.heads * HEAD_DIM
    tile = f.scratch.cast(F32)
    scratch, packed = (
        gemm.scratch(tile.offset(BLOCK_KEYS * HEAD_DIM), op.k, BLOCK_KEYS),
        PackedHeads(op, blocks),
    )
    begin, end = f.thread_range(blocks * SHARES)
    with f.loop(end, start=begin) as unit:
        block, share = unit // SHARES, unit % SHARES
        first = block * BLOCK_KEYS
        count = (first + BLOCK_KEYS).min(op.rows) - first
        gemm.emit_quantize(
            f, op, op.x.offset(first * op.k), scratch, count, stride=op.k, norm=True, first=f.const(0)
        )
        heads = op.heads // SHARES
        with f.loop((share + 1) * heads, start=share * heads) as head:
            store, one = f.const(RowsEpilogue.STORE), f.const(1)
            queries, keys, values = (
                (start, start + HEAD_DIM) for start in (width * part + head * HEAD_DIM for part in range(3))
            )
            q, dim = op.q.offset(first * width + head * HEAD_DIM), f.const(HEAD_DIM)
            gemm.emit_multiply(
                f, op, scratch, q, count=count, outputs=queries, stride=width, epilogue=store, taps=one
            )
            gemm.emit_multiply(
                f, op, scratch, tile, count=count, outputs=keys, stride=dim, epilogue=store, taps=one
            )
            f.call(packers.keys, tile, dim, count, *packed.keys(head, block))
            gemm.emit_multiply(
                f, op, scratch, tile, count=count, outputs=values, stride=dim, epilogue=store, taps=one
            )
            f.call(packers.values, tile, dim, count, *packed.values(head, block), blocks)
    return f.ret()
