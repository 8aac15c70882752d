"""Keys and values of the flow's attention in int8, packed for flow_attention.py, whose shapes they are.

pack_keys:  k_codes, k_scales = quantize(k);  v_codes, v_scales = quantize(v)       # by blocks of 64 keys
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final

from llvmlite import ir

from nightingale.backends.cpu.kernels.int8_gemm import emit_quantization, emit_quantization_factor
from nightingale.backends.cpu.kernels.llvm_builder import F32, I8, I32, I64, Function, Pointer, Value
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, Target
from nightingale.backends.cpu.kernels.thread_pool import Arg, Operation
from nightingale.backends.cpu.kernels.vector_math import LANES, emit_nearest_int, transposed
from nightingale.backends.shared.int8_blocks import INT8_MAX, ZERO_POINT

HEAD_DIM: Final = 64
PARTS: Final = HEAD_DIM // LANES
BLOCK_KEYS: Final = 64
"""Keys whose weights, and whose values, share a scale."""


class FlowAttentionOp(Arg):
    """Arguments of both operations. Strides count floats."""

    Q = K = V = OUT = K_SCALES = V_SCALES = F32
    K_CODES = V_CODES = I8
    Q_HEAD_STRIDE = Q_ROW_STRIDE = K_HEAD_STRIDE = K_ROW_STRIDE = V_HEAD_STRIDE = V_ROW_STRIDE = I64
    KEYS = HEADS = I64
    QUERIES = I64
    """At least QUERY_TILE."""


def packed_bytes(keys: int, heads: int) -> tuple[int, int, int, int]:
    """Return the bytes of K_CODES, K_SCALES, V_CODES and V_SCALES."""
    padded = heads * padded_keys(keys)
    return padded * HEAD_DIM, 4 * padded, padded * HEAD_DIM, 4 * padded // BLOCK_KEYS * HEAD_DIM


def padded_keys(keys: int) -> int:
    return -(-keys // BLOCK_KEYS) * BLOCK_KEYS


def place_of_key(target: Target, key: Value) -> Value:
    """Return the place of a key of a block among the codes of its weights, and of its values."""
    if not target.interleaves_weights:
        return key
    # Fours of keys are a square of four by four, transposed.
    row, column = key // LANES, key % LANES // DOT_INPUTS
    return (column * DOT_INPUTS + row) * DOT_INPUTS + key % DOT_INPUTS


def emit_pack_keys(module: ir.Module, packers: BlockPackers) -> Operation:
    f = Operation(module, "pack_keys")
    op = f.args(FlowAttentionOp)
    blocks = (op.keys + (BLOCK_KEYS - 1)) // BLOCK_KEYS
    begin, end = f.thread_range(blocks * op.heads)
    with f.loop(end, start=begin) as unit:
        head, block = unit // blocks, unit % blocks
        first = block * BLOCK_KEYS
        count = (first + BLOCK_KEYS).min(op.keys) - first
        packed = PackedHeads(op, blocks)
        k = op.k.offset(head * op.k_head_stride + first * op.k_row_stride)
        f.call(packers.keys, k, op.k_row_stride, count, *packed.keys(head, block))
        v = op.v.offset(head * op.v_head_stride + first * op.v_row_stride)
        f.call(packers.values, v, op.v_row_stride, count, *packed.values(head, block), blocks)
    return f.ret()


class PackedHeads:
    """Places in the packed keys and values of all heads."""

    def __init__(self, op: SimpleNamespace, blocks: Value) -> None:
        self._op, self._blocks = op, blocks

    def keys(self, head: Value, block: Value) -> tuple[Pointer, Pointer]:
        """Return codes and scales of a block of keys."""
        at = (head * self._blocks + block) * BLOCK_KEYS
        return self._op.k_codes.offset(at * HEAD_DIM), self._op.k_scales.offset(at)

    def values(self, head: Value, block: Value) -> tuple[Pointer, Pointer]:
        """Return codes and scales of the first channels of a block of values."""
        at = (head * (PARTS * self._blocks) + block) * LANES
        return self._op.v_codes.offset(at * BLOCK_KEYS), self._op.v_scales.offset(at)


class BlockPackers:
    """Functions that quantize a block of keys or values, rows `stride` floats apart.

    The last of `count` keys fills up its block; values are filled up with zeros.
    """

    def __init__(self, module: ir.Module, target: Target) -> None:
        self.keys, self.values = _emit_pack_key_block(module, target), _emit_pack_value_block(module, target)


def _emit_pack_key_block(module: ir.Module, target: Target) -> Function:
    f = Function(
        module, "pack_key_block", {"k": F32, "stride": I64, "count": I64, "codes": I8, "scales": F32}
    )
    k, stride, count, all_codes, scales = f.params
    rows = f.stack_array(I8, LANES * HEAD_DIM)
    with f.loop(BLOCK_KEYS, step=LANES) as first:
        with f.loop(LANES) as row:
            key = first + row
            source = k.offset(key.min(count - 1) * stride)
            vectors = [source.load_vector(number * LANES, LANES) for number in range(PARTS)]
            scales[key], codes = emit_quantization(vectors)
            for number, code in enumerate(codes):
                stored = code if target.signed_weights else code + ZERO_POINT
                rows[row * HEAD_DIM + number * LANES] = stored.cast(I8)
        fours = [rows.cast(I32).load_vector(row * LANES, LANES) for row in range(LANES)]
        for number, four in enumerate(transposed(fours)):
            all_codes.cast(I32)[first * (HEAD_DIM // DOT_INPUTS) + number * LANES] = four
    return f.ret()


def _emit_pack_value_block(module: ir.Module, target: Target) -> Function:
    """The parts of LANES channels are `blocks` blocks apart."""
    params = {"v": F32, "stride": I64, "count": I64, "codes": I8, "scales": F32, "blocks": I64}
    f = Function(module, "pack_value_block", params)
    v, stride, count, codes, scales, blocks = f.params
    with f.loop(PARTS) as part:
        own = part * blocks * LANES

        def values(key: Value) -> Value:
            loaded: Value = v.offset(key.min(count - 1) * stride).load_vector(part * LANES, LANES)
            return loaded

        magnitude = f.variable(f.zeros(F32, LANES))
        with f.loop(BLOCK_KEYS) as key:
            magnitude.value = magnitude.value.max(values(key).abs())
        scales[own] = magnitude.value * (1 / INT8_MAX)
        factor = emit_quantization_factor(magnitude.value)
        with f.loop(BLOCK_KEYS, step=DOT_INPUTS) as key:
            packed = f.zeros(I32, LANES)
            for place in range(DOT_INPUTS):
                value = (key + place < count).select(values(key + place), 0.0)
                packed = packed + (emit_nearest_int(value, factor) & 255) * (1 << (8 * place))
            at = place_of_key(target, key) // DOT_INPUTS * LANES
            codes.cast(I32)[own * (BLOCK_KEYS // DOT_INPUTS) + at] = packed
    return f.ret()
