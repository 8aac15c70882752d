"""The weights of flow_attention.py on AVX-512: from the products of four queries with 64 keys to codes of 8 bits.

Pseudo-code
    peak[query] = max(logits[query])
    v = (logit - peak) · unit + offset                   # float32, then 16 bits: unsigned, so low ones become 0
    p_codes = ((v² + rest)¹⁶ · 256) of 16 bits           # about 255 · 2**s: 16 bits are exact enough for a code

Why it is fast: 16-bit numbers take half as many instructions as float32. The four
maxima and sums of the queries are computed together. Instructions that make one vector of 64 bytes from four of
int32 work within parts of 128 bits, so codes are stored in another order than keys (`place_of_key`); values
are packed in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

from llvmlite import ir

from nightingale.backends.cpu.kernels.llvm_builder import F32, I8, I32, I64, Function, Value
from nightingale.backends.cpu.kernels.vector_math import EXP2_ROOT_SERIES, LANES

CODE_AT_PEAK: Final = 255.4
"""The weight of the largest logit, over 256 before it is rounded down."""
ROOT: Final = (CODE_AT_PEAK / 256) ** (1 / 16)
UNIT: Final = 2**16 * math.sqrt(EXP2_ROOT_SERIES[1] * ROOT)
"""The difference of v for one power of two."""
OFFSET: Final = UNIT * EXP2_ROOT_SERIES[0] / (2 * EXP2_ROOT_SERIES[1])
REST: Final = round(2**16 * ROOT * (1 - EXP2_ROOT_SERIES[0] ** 2 / (4 * EXP2_ROOT_SERIES[1])))
WORDS_16: Final = ir.VectorType(ir.IntType(16), 2 * LANES)
BYTES: Final = ir.VectorType(I8, 4 * LANES)
PARTS_128: Final = range(0, LANES, 4)


def emit_weights(
    f: Function, logits: Sequence[Sequence[Value]], scales: Value, peaks: Value, unit: float
) -> tuple[list[Value], Value]:
    """Return the codes of each of four queries, and their sums (4). unit: of logits times scales, and of peaks."""
    factor, shift = scales * (UNIT / unit), peaks * (-UNIT / unit) + (OFFSET + 0.5)
    codes = [
        _emit_codes(f, vectors, factor.extract(query), shift.extract(query))
        for query, vectors in enumerate(logits)
    ]
    return codes, _joined_sums([_emit_byte_sum(f, own) for own in codes]).cast(F32)


def _emit_codes(f: Function, logits: Sequence[Value], factor: Value, shift: Value) -> Value:
    ints = [logit.fma(logit.splat(factor), logit.splat(shift)).cast(I32) for logit in logits]
    pairs = []
    for two in (ints[:2], ints[2:]):
        v = f.intrinsic("llvm.x86.avx512.packusdw.512", WORDS_16, two)
        power = _high_product(f, v, v) + REST
        for _ in range(4):
            power = _high_product(f, power, power)
        pairs.append((power + 128) // 256)
    return f.intrinsic("llvm.x86.avx512.packuswb.512", BYTES, pairs)


def _high_product(f: Function, a: Value, b: Value) -> Value:
    return f.intrinsic("llvm.x86.avx512.pmulhu.w.512", WORDS_16, [a, b])


def _emit_byte_sum(f: Function, codes: Value) -> Value:
    eights = ir.VectorType(I64, LANES // 2)
    return f.intrinsic("llvm.x86.avx512.psad.bw.512", eights, [codes, f.zeros(I8, 4 * LANES)])


def emit_maxima(logits: Sequence[Sequence[Value]]) -> Value:
    """Return the largest logit of each of four queries, as four lanes."""
    a, b, c, d = (reduce(Value.max, own) for own in logits)
    ab, cd = (_interleaved(x, y, 0, 1).max(_interleaved(x, y, 2, 3)) for x, y in ((a, b), (c, d)))
    return _fold(_pairs(ab, cd, 0).max(_pairs(ab, cd, 2)), Value.max)


def _joined_sums(sums: Sequence[Value]) -> Value:
    """Return the sums of the lanes of four vectors of int64 as four lanes of int32."""
    a, b, c, d = sums
    ints = ir.VectorType(I32, LANES)
    ab, cd = ((x + (y << 32)).bitcast(ints) for x, y in ((a, b), (c, d)))
    return _fold(_pairs(ab, cd, 0) + _pairs(ab, cd, 2), Value.__add__)


def _interleaved(x: Value, y: Value, first: int, second: int) -> Value:
    """Return, of each part of 128 bits, the first lanes of both and the second lanes of both."""
    lanes = [part + lane + other for part in PARTS_128 for lane in (first, second) for other in (0, LANES)]
    return x.join(y).shuffle(lanes)


def _pairs(x: Value, y: Value, first: int) -> Value:
    """Return, of each part of 128 bits, two lanes of both."""
    lanes = [part + other + first + lane for part in PARTS_128 for other in (0, LANES) for lane in (0, 1)]
    return x.join(y).shuffle(lanes)


def _fold(x: Value, combine: Callable[[Value, Value], Value]) -> Value:
    """Combine the parts of 128 bits."""
    while x.lanes > 4:
        half = x.lanes // 2
        x = combine(x.shuffle(range(half)), x.shuffle(range(half, 2 * half)))
    return x
