"""Elementary functions on vectors, emitted inline: exp, sigmoid, GELU, sin² and softmax.

Each is a range reduction and a polynomial, without branches or tables, so that a vector of any width takes
the same few instructions; the libm of the machine would be called once per lane. The accuracy that each
promises is tested against torch in float64 (tests/backends/cpu/test_cpu_kernels.py).
"""

from __future__ import annotations

import math
from typing import Final

from llvmlite import ir

from nightingale.backends.cpu.kernels.llvm_builder import F32, I32, Function, Pointer, Value

LANES: Final = 16
"""Lanes of the vectors that kernels are written in; machines with narrower registers split them."""
ROUNDING: Final = 1.5 * 2**23
"""Added to a float32 below 2**22, it leaves the nearest integer (ties to even) in the low bits."""
ROUNDING_BITS: Final = 0x4B400000
"""The bits of ROUNDING."""


def emit_nearest_int(value: Value, factor: Value | float = 1.0) -> Value:
    """Return value · factor, rounded to the nearest int32; below 2**22 only. Conversions are slow on ARM."""
    rounded = value.fma(value.splat(factor), ROUNDING)
    return rounded.bitcast(ir.VectorType(I32, value.lanes)) - ROUNDING_BITS


GELU_RANGE: Final = 3.8
GELU_SERIES: Final = (
    0.7990664917, -0.1333336486, 0.01936795133, -0.00199828232, 0.0001342129869, -5.154266316e-06, 8.474818879e-08
)  # fmt: skip
EXP2_ROOT_SERIES: Final = (0.04325128556, 0.0008661396275)
"""2**s is (1 + c₁ s + c₂ s²)**16 to 2.5e-4 for s from -9 to 0, a thirtieth of a code; lower ones fall to 0."""
EXP2_SERIES: Final = (0.99999926, 0.69312186, 0.24024746, 0.05591749, 0.0095699)


def emit_exp(x: Value) -> Value:
    """Return e**x to 1e-6 relative; x is clamped to the range of normal float32 results.

    n = round(x / ln 2);  r = x - n ln 2           # ln 2 in two parts, so that r is exact
    e**x = 2**n * (1 + r + r²/2! + … + r⁷/7!)      # 2**n by writing n into the exponent
    """
    x = x.max(-87.3).min(88.0)
    n = (x * math.log2(math.e)).round()
    r = n.fma(-0.693359375, x)
    r = n.fma(2.12194440e-4, r)
    series = r.splat(1 / 5040)
    for divisor in (720, 120, 24, 6, 2, 1, 1):
        series = series.fma(r, 1 / divisor)
    power = (n.cast(I32) + 127) * (1 << 23)
    return series * power.bitcast(x.ir_type)


def emit_exp2(x: Value) -> Value:
    """Return 2**x to 3e-6 relative, for x up to 126; below -126 it is 2**-126.

    n = round(x);  2**x = 2**n · P(x - n)          # 2**n by adding n to the exponent
    """
    x = x.max(-126.0)
    rounded = x + ROUNDING
    r = x - (rounded - ROUNDING)
    series = r.splat(EXP2_SERIES[-1])
    for coefficient in EXP2_SERIES[-2::-1]:
        series = series.fma(r, coefficient)
    ints = ir.VectorType(I32, x.lanes)
    # The shift drops all bits of ROUNDING.
    return (series.bitcast(ints) + (rounded.bitcast(ints) << 23)).bitcast(x.ir_type)


def emit_sigmoid(x: Value) -> Value:
    return x.splat(1.0) / (emit_exp(-x) + 1.0)


def emit_mish(x: Value) -> Value:
    """Return x·tanh(ln(1 + eˣ)), as x·n/(n + 2) with n = eˣ·(eˣ + 2); from 20 on it is x."""
    e = emit_exp(x.min(20.0))
    n = e * (e + 2.0)
    return x * n / (n + 2.0)


def emit_gelu(x: Value) -> Value:
    """Return GELU in its tanh approximation; (1 + tanh y) / 2 is sigmoid(2y)."""
    y = (x * x * x * 0.044715 + x) * math.sqrt(2 / math.pi)
    return x * emit_sigmoid(y * 2.0)


def emit_gelu_erf(x: Value) -> Value:
    """Return x·(1 + erf(x/√2))/2 to 3e-4, by a polynomial without a division: its result is quantized to int8.

    z = x, clamped to ±3.8;  erf(z/√2) = z·P(z²), fitted so that the largest error of the product with x is least and
    3.8·P(3.8²) is 1
    """
    z = x.max(-GELU_RANGE).min(GELU_RANGE)
    square = z * z
    series = z.splat(GELU_SERIES[-1])
    for coefficient in GELU_SERIES[-2::-1]:
        series = series.fma(square, coefficient)
    half = x * 0.5
    return half.fma(series * z, half)


def emit_sin_squared(x: Value) -> Value:
    """Return sin²(x) to 1e-6 for angles up to some thousands.

    n = round(x / π);  r = x - n π                 # π in three parts, so that r is exact
    sin²(x) = (r - r³/3! + r⁵/5! - r⁷/7! + r⁹/9!)²
    """
    n = (x * (1 / math.pi)).round()
    r = n.fma(-3.140625, x)
    r = n.fma(-9.67502593994140625e-4, r)
    r = n.fma(-1.509957990978376432e-7, r)
    square = r * r
    series = r.splat(1 / 362880)
    for divisor in (-5040, 120, -6, 1):
        series = series.fma(square, 1 / divisor)
    sine = series * r
    return sine * sine


def emit_softmax_numerators(f: Function, logits: Pointer, blocks: Value) -> Value:
    """Replace `blocks` × LANES logits by exp(logit - max) and return their sum; the caller divides."""
    running = f.variable(logits.load_vector(0, LANES))
    with f.loop(blocks) as block:
        running.value = running.value.max(logits.load_vector(block * LANES, LANES))
    maximum = running.value.reduce_max()
    total = f.variable(f.zeros(F32, LANES))
    with f.loop(blocks) as block:
        numerators = emit_exp(logits.load_vector(block * LANES, LANES) - maximum)
        logits[block * LANES] = numerators
        total.value += numerators
    return total.value.reduce_sum()


def transposed(rows: list[Value]) -> list[Value]:
    """Return the columns of as many rows as they have lanes: halves change places, then quarters, and so on."""
    rows, distance = list(rows), len(rows) // 2
    while distance:
        for first in range(len(rows)):
            if first & distance:
                continue
            both = rows[first].join(rows[first + distance])
            lanes = range(len(rows))
            rows[first], rows[first + distance] = (
                both.shuffle(
                    [lane if not lane & distance else len(rows) + lane - distance for lane in lanes]
                ),
                both.shuffle(
                    [lane + distance if not lane & distance else len(rows) + lane for lane in lanes]
                ),
            )
        distance //= 2
    return rows
