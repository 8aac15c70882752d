"""What a step of T3 is made of: inputs rounded, products with weights of eight bits, attention, and between.

Every token is computed for itself, in the same order whoever else is computed beside it: in company as alone,
to the last bit.
"""

from __future__ import annotations

import math
from typing import Final

from llvmlite import ir

from nightingale.backends.onnx.graph import EPSILON
from nightingale.backends.cpu.target import OUTPUTS, TOGETHER, Target
from nightingale.backends.cpu.llvm_builder import F16, F32, I8, I32, I64, Array, Function, Value, Variable
from nightingale.backends.shared.quantize import LEVELS, ZERO

BLOCK: Final = 128
"""Inputs that share a scale."""
LANES: Final = 16
"""Of the vectors written here; narrower machines cut them."""
GROUP: Final = 4
"""Tiles that are computed together, and taken by one thread at a time."""
PER_GROUP: Final = GROUP * OUTPUTS
ROWS: Final = (4, 2, 1)
"""That a product takes at a time."""
PLAIN, ROOT_MEAN_SQUARE, LAYER = range(3)
"""Norms."""
STORE, ADD, GATED, GELU = range(4)
"""What is done with a product: kept; added to what is there; its first half through SiLU times its second;
through GELU."""


def exp(x: Value) -> Value:
    """Near to the last place, between -87 and 88; beyond, as at these."""
    x = x.most(-87.3).least(88.0)
    power = (x * math.log2(math.e)).rounded()
    rest = power.fma(-0.693359375, x)
    rest = power.fma(2.12194440e-4, rest)
    series = rest.like(1 / 5040)
    for divisor in (720, 120, 24, 6, 2, 1, 1):
        series = series.fma(rest, 1 / divisor)
    whole = (power.to(I32) + 127) * (1 << 23)
    return series * whole.as_bits(x.kind)


def sigmoid(x: Value) -> Value:
    return x.like(1.0) / (exp(-x) + 1.0)


def sine_squared(x: Value) -> Value:
    """Of angles up to some thousands, to 1e-6."""
    turns = (x * (1 / math.pi)).rounded()
    # π in three parts, so that what is left of a large angle is exact.
    rest = turns.fma(-3.140625, x)
    rest = turns.fma(-9.67502593994140625e-4, rest)
    rest = turns.fma(-1.509957990978376432e-7, rest)
    square = rest * rest
    series = rest.like(1 / 362880)
    for divisor in (-5040, 120, -6, 1):
        series = series.fma(square, 1 / divisor)
    sine = series * rest
    return sine * sine


def gelu(x: Value) -> Value:
    """As tanh has it."""
    inner = (x * x * x * 0.044715 + x) * math.sqrt(2 / math.pi)
    return x * sigmoid(inner * 2.0)


def write_rounding(module: ir.Module, target: Target, norm: int, block_width: int = BLOCK) -> Function:
    """A row of inputs, normed, to whole numbers and a scale a block."""
    given = {"x": F32, "weight": F32, "bias": F32, "codes": I8, "scales": F32, "zeros": I32, "width": I64}
    f = Function(module, f"round_{norm}_{block_width}", given)
    x, width = f.array("x"), f["width"]
    mean = f.variable(f.number(0.0, F32))
    factor = f.variable(f.number(1.0, F32))
    count = width.to(F32)
    if norm == LAYER:
        total = f.variable(f.zeros(F32, LANES))
        with f.loop(width, step=LANES) as i:
            total.value += x.vector(i, LANES)
        mean.value = total.value.sum() / count
    if norm != PLAIN:
        squares = f.variable(f.zeros(F32, LANES))
        centre = mean.value
        with f.loop(width, step=LANES) as i:
            off = x.vector(i, LANES) - centre
            squares.value = off.fma(off, squares.value)
        factor.value = f.number(1.0, F32) / (squares.value.sum() / count + EPSILON).sqrt()
    centre, scale = mean.value, factor.value
    with f.loop(width // block_width) as block:
        values = []
        for part in range(0, block_width, LANES):
            at = block * block_width + part
            value = x.vector(at, LANES)
            if norm == LAYER:
                value = value - centre
            if norm != PLAIN:
                value = value * scale * f.array("weight").vector(at, LANES)
            if norm == LAYER:
                value = value + f.array("bias").vector(at, LANES)
            values.append(value)
        loudest = values[0].abs()
        for value in values[1:]:
            loudest = loudest.most(value.abs())
        step = loudest.largest() / LEVELS
        f.array("scales")[block] = step
        # A block of zeros has no scale, and needs none.
        step = (step > 0.0).choose(step, 1.0)
        total_codes = f.zeros(I32, LANES)
        for number, value in enumerate(values):
            whole = (value / step).rounded().to(I32)
            total_codes = total_codes + whole
            f.array("codes")[block * block_width + number * LANES] = whole.to(I8)
        if not target.signed:
            f.array("zeros")[block] = total_codes.sum() * -ZERO
    f.end()
    return f


def write_product(module: ir.Module, target: Target, rows: int, block_width: int = BLOCK) -> Function:
    """A group of outputs of some rows, to out (rows, PER_GROUP)."""
    given = {"codes": I8, "scales": F32, "inputs": I8, "steps": F32, "zeros": I32, "out": F32, "width": I64}
    f = Function(module, f"product_{rows}_{block_width}", given)
    codes, inputs, width = f.array("codes"), f.array("inputs"), f["width"]
    blocks, at_once, parts = width // block_width, target.tiles(rows), range(OUTPUTS // target.lanes)
    every = [(row, tile, part) for row in range(rows) for tile in range(at_once) for part in parts]
    for first in range(0, GROUP, at_once):
        totals = {place: f.variable(f.zeros(F32, target.lanes)) for place in every}
        with f.loop(blocks) as block:
            sums = {place: f.variable(f.zeros(I32, target.lanes)) for place in every}
            begins = [width * (first + tile) + block * block_width for tile in range(at_once)]
            tiles = [codes.begin(begin * OUTPUTS) for begin in begins]
            sources = [inputs.begin(width * row + block * block_width) for row in range(rows)]
            with f.loop(block_width, step=4 * TOGETHER) as k:
                sixteen_inputs(f, target, k, tiles, sources, sums)
            for row in range(rows):
                step, zero = f.array("steps")[blocks * row + block], f.array("zeros")[blocks * row + block]
                for tile in range(at_once):
                    for part in parts:
                        at = (blocks * (first + tile) + block) * OUTPUTS + part * target.lanes
                        scale = f.array("scales").vector(at, target.lanes)
                        whole = sums[row, tile, part].value
                        if not target.signed:
                            whole = whole + zero
                        total = totals[row, tile, part]
                        total.value = whole.to(F32).fma(scale * step, total.value)
        for row, tile, part in every:
            place = row * PER_GROUP + (first + tile) * OUTPUTS + part * target.lanes
            f.array("out")[place] = totals[row, tile, part].value
    f.end()
    return f


class Products:
    """A group of outputs for any number of rows, some at a time."""

    def __init__(self, module: ir.Module, target: Target, block_width: int = BLOCK) -> None:
        self._several = {rows: write_product(module, target, rows, block_width) for rows in ROWS}

    def write(
        self, f: Function, weights: tuple[Array, Array], inputs: tuple[Array, Array, Array], out: Array,
        *, rows: Value, width: Value, blocks: Value,
    ) -> None:  # fmt: skip
        """weights: codes and scales of the group; inputs: codes, steps and zeros of the rows."""
        done = f.variable(f.number(0))
        for several, function in self._several.items():
            with f.forever():
                row = done.value
                f.leave_if(row + several > rows)
                starts = row * width, row * blocks, row * blocks
                given = [part.begin(start) for part, start in zip(inputs, starts, strict=True)]
                f.call(function, *weights, *given, out.begin(row * PER_GROUP), width)
                done.value = row + several


Sums = dict[tuple[int, int, int], Variable]
"""By row, tile and part of a tile."""


def sixteen_inputs(
    f: Function, target: Target, k: Value, tiles: list[Array], sources: list[Array], sums: Sums
) -> None:
    """Add the products of inputs k … k + 16 of some rows to the sums of some tiles."""
    loaded = [source.vector(k, 16) if target.name == "neon" else None for source in sources]
    for group in range(4):
        given = [
            target.spread(f, own, Array(f, source.begin(k).address, I32), group)
            for own, source in zip(loaded, sources, strict=True)
        ]
        for tile, codes in enumerate(tiles):
            start = k * OUTPUTS + group * TOGETHER * OUTPUTS
            if target.prefetch:
                codes.prefetch(start + target.prefetch)
            for part in range(OUTPUTS // target.lanes):
                width = target.lanes * TOGETHER
                weights = codes.vector(start + part * width, width)
                for row, own in enumerate(given):
                    place = sums[row, tile, part]
                    place.value = target.dot(f, place.value, weights, own)


def write_finish(module: ir.Module, how: int) -> Function:
    """What becomes of a product (rows, PER_GROUP), of which `out` is the first row's place."""
    given = {"product": F32, "bias": F32, "out": F32, "rows": I64, "stride": I64}
    f = Function(module, f"finish_{how}", given)
    with f.loop(f["rows"]) as row:
        product, out = f.array("product").begin(row * PER_GROUP), f.array("out").begin(row * f["stride"])
        kept = PER_GROUP // 2 if how == GATED else PER_GROUP
        for at in range(0, kept, LANES):
            value = product.vector(at, LANES) + f.array("bias").vector(at, LANES)
            if how == ADD:
                value = value + out.vector(at, LANES)
            elif how == GATED:
                value = value * sigmoid(value) * product.vector(kept + at, LANES)
            elif how == GELU:
                value = gelu(value)
            out[at] = value
    f.end()
    return f


def write_attention(module: ir.Module, *, head_width: int, rotary: bool) -> Function:
    """One head of one utterance: its new keys and values are remembered, then every new token listens.

    Keys lie in blocks of LANES positions, (blocks, head_width, LANES), so that a block is scored at once;
    values (positions, head_width). Both are float16.
    """
    given = {"qkv": F32, "keys": F16, "values": F16, "cos": F32, "sin": F32, "heard": F32, "scores": F32}
    f = Function(module, "attention", {**given, "tokens": I64, "past": I64, "width": I64})
    qkv, keys, values, scores = (f.array(name) for name in ("qkv", "keys", "values", "scores"))
    pieces, width = range(0, head_width, LANES), f["width"]

    def turned(start: Value, position: Value) -> list[Value]:
        x = [qkv.vector(start + at, LANES) for at in pieces]
        if not rotary:
            return x
        cos, sin = (
            [f.array(name).vector(position * head_width + at, LANES) for at in pieces]
            for name in ("cos", "sin")
        )
        half = len(x) // 2
        across = [-part for part in x[half:]] + x[:half]
        return [(a * c) + (b * s) for a, b, c, s in zip(x, across, cos, sin, strict=True)]

    with f.loop(f["tokens"]) as token:
        position, start = f["past"] + token, token * width * 3
        place = keys.begin(position // LANES * (head_width * LANES) + position % LANES)
        for number, part in enumerate(turned(start + width, position)):
            small = part.to(F16)
            for lane in range(LANES):
                place[(number * LANES + lane) * LANES] = small.lane(lane)
        for at in pieces:
            part = qkv.vector(start + width * 2 + at, LANES)
            values[position * head_width + at] = part.to(F16)
    question = f.local(F32, head_width)
    with f.loop(f["tokens"]) as token:
        count = f["past"] + token + 1
        for at, part in zip(pieces, turned(token * width * 3, count - 1), strict=True):
            question[at] = part * head_width**-0.5
        blocks = (count + (LANES - 1)) // LANES
        _score(f, question, keys, scores, blocks, count, head_width)
        whole = exponentials(f, scores, blocks)
        sums = [f.variable(f.zeros(F32, LANES)) for _ in pieces]
        with f.loop(count) as position:
            share = scores[position]
            for at, total in zip(pieces, sums, strict=True):
                value = values.vector(position * head_width + at, LANES).to(F32)
                total.value = value.fma(share, total.value)
        scale = f.number(1.0, F32) / whole
        for at, total in zip(pieces, sums, strict=True):
            f.array("heard")[token * width + at] = total.value * scale
    f.end()
    return f


def _score(
    f: Function, question: Array, keys: Array, scores: Array, blocks: Value, count: Value, head_width: int
) -> None:
    with f.loop(blocks) as block:
        sums = [f.zeros(F32, LANES)] * 4
        for at in range(head_width):
            key = keys.vector((block * head_width + at) * LANES, LANES).to(F32)
            sums[at % 4] = key.fma(question[at], sums[at % 4])
        score = (sums[0] + sums[1]) + (sums[2] + sums[3])
        there = (f.counting(LANES) + block * LANES) < count
        scores[block * LANES] = there.choose(score, -math.inf)


def exponentials(f: Function, scores: Array, blocks: Value) -> Value:
    """In place; their sum."""
    most = f.variable(scores.vector(0, LANES))
    with f.loop(blocks) as block:
        most.value = most.value.most(scores.vector(block * LANES, LANES))
    top = most.value.largest()
    total = f.variable(f.zeros(F32, LANES))
    with f.loop(blocks) as block:
        shares = exp(scores.vector(block * LANES, LANES) - top)
        scores[block * LANES] = shares
        total.value += shares
    return total.value.sum()
