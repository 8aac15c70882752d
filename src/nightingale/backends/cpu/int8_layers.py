"""Linear layers and convolutions with weights and inputs of eight bits, as machine code: what renders sound.

A linear layer has its inputs row by row, and a thread takes some rows through all outputs. A convolution has
its inputs channel by channel, (channels, time), and gives outputs back so; nothing is turned around. Time
lies in the lanes of a vector, so that a tap is the same memory some bytes further on.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, auto
from typing import Final

from llvmlite import ir

from nightingale.backends.cpu import flow_attention as attending
from nightingale.backends.cpu import thread_pool as crew
from nightingale.backends.cpu import t3_kernels as kernels
from nightingale.backends.cpu.thread_pool import not_past, operation, share, write_crew
from nightingale.backends.cpu.t3_kernels import LANES, PER_GROUP
from nightingale.backends.cpu.target import TOGETHER, Target
from nightingale.backends.cpu.llvm_builder import F32, I8, I32, I64, Array, Function, Value, Variable
from nightingale.backends.shared.quantize import LEVELS, ZERO

OUTPUTS_AT_ONCE: Final = 4
"""Of a convolution: as many as have their weights in one vector of sixteen bytes."""
TIMES_AT_ONCE: Final = 4 * LANES
"""That a thread takes through all outputs: their inputs fit in its cache."""
ROWS_AT_ONCE: Final = 16
"""Of a linear layer, likewise."""
STAY_MS: Final = 0.2
"""Between two layers torch has work for the same cores."""
BLOCKS: Final = (128, 64)
"""Inputs of a linear layer that may share a scale."""
ROUND, CONVOLVE, SNAKE, LAY, HEAR, LINEAR = range(6)
"""Kinds of operations: LINEAR with blocks of 128 inputs, and after it one for each other width."""


class Op(IntEnum):
    """Places in an operation."""

    KIND = crew.Op.KIND
    X = crew.Op.FACTS
    CODES = auto()
    """Inputs, rounded."""
    STEPS = auto()
    """Their scales."""
    WEIGHTS = auto()
    SCALES = auto()
    ZEROS = auto()
    """What is added to a sum of codes, where these are stored with ZERO added."""
    BIAS = auto()
    OUT = auto()
    COUNT = auto()
    """Of columns or rows of the result."""
    OUTPUTS = auto()
    WIDTH = auto()
    """Channels or inputs."""
    BLOCK = auto()
    LENGTH = auto()
    """Columns of the input of a convolution; floats between two channels of what a snake reads."""
    TAPS = auto()
    DILATION = auto()
    OWN = auto()
    """Memory of the threads of a linear layer."""
    OWN_BYTES = auto()
    """Of one."""


def own_bytes(width: int) -> int:
    """What a thread needs for rows of so many inputs."""
    return ROWS_AT_ONCE * (width + 8 * width // BLOCKS[-1] + 4 * PER_GROUP)


def write_column_rounding(module: ir.Module, target: Target) -> Function:
    """LANES columns of inputs (channels, length) to whole numbers (channels / TOGETHER, length, TOGETHER) and
    scales (blocks, length)."""
    given = {"x": F32, "codes": I8, "scales": F32}
    sizes = dict.fromkeys(("length", "channels", "block"), I64)
    f = Function(module, "round_columns", {**given, **sizes})
    x, length, block = f.array("x"), f["length"], f["block"]
    with f.loop(f["channels"] // block) as number:
        first = number * block
        loudest = f.variable(f.zeros(F32, LANES))
        with f.loop(first + block, start=first) as channel:
            loudest.value = loudest.value.most(x.vector(channel * length, LANES).abs())
        step = loudest.value / LEVELS
        f.array("scales")[number * length] = step
        # A column of zeros has no scale, and needs none.
        step = (step > 0.0).choose(step, 1.0)
        with f.loop(first + block, start=first, step=TOGETHER) as channel:
            packed = f.zeros(I32, LANES)
            for place in range(TOGETHER):
                value = x.vector((channel + place) * length, LANES)
                whole = (value / step).rounded().to(I32)
                byte = (whole if target.signed else whole + ZERO).bits_and(255)
                packed = packed + byte * (1 << (8 * place))
            Array(f, f.array("codes").begin(channel * length).address, I32)[0] = packed
    f.end()
    return f


def write_tile(module: ir.Module, target: Target) -> Function:
    """LANES times of OUTPUTS_AT_ONCE outputs of a convolution."""
    given = {"codes": I8, "steps": F32, "weights": I8, "scales": F32, "zeros": I32, "bias": F32, "out": F32}
    sizes = ("length", "blocks", "block", "taps", "dilation", "stride")
    f = Function(module, "tile", {**given, **dict.fromkeys(sizes, I64)})
    codes, weights, length, block = f.array("codes"), f.array("weights"), f["length"], f["block"]
    parts, outputs = range(LANES // target.lanes), range(OUTPUTS_AT_ONCE)
    totals = {
        (o, part): f.variable(f.zeros(F32, target.lanes) + f.array("bias")[o])
        for o in outputs
        for part in parts
    }
    with f.loop(f["taps"]) as tap, f.loop(f["blocks"]) as number:
        sums = {place: f.variable(f.zeros(I32, target.lanes)) for place in totals}
        shift, place = tap * f["dilation"], tap * f["blocks"] + number
        own = weights.begin(place * block * OUTPUTS_AT_ONCE)
        inputs = codes.begin((number * block // TOGETHER * length + shift) * TOGETHER)
        with f.loop(block // TOGETHER) as four:
            _four_channels(f, target, inputs.begin(four * length * TOGETHER), own.begin(four * 16), sums)
        for part in parts:
            step = f.array("steps").vector(number * length + shift + part * target.lanes, target.lanes)
            for o in outputs:
                whole = sums[o, part].value
                if not target.signed:
                    whole = whole + f.array("zeros")[place * OUTPUTS_AT_ONCE + o]
                scale = step * f.array("scales")[place * OUTPUTS_AT_ONCE + o]
                totals[o, part].value = whole.to(F32).fma(scale, totals[o, part].value)
    for (o, part), total in totals.items():
        f.array("out")[f["stride"] * o + part * target.lanes] = total.value
    f.end()
    return f


def _four_channels(
    f: Function, target: Target, inputs: Array, weights: Array, sums: dict[tuple[int, int], Variable]
) -> None:
    width = target.lanes * TOGETHER
    loaded = weights.vector(0, 16) if target.name == "neon" else None
    at = Array(f, weights.address, I32)
    spread = [target.spread(f, loaded, at, o) for o in range(OUTPUTS_AT_ONCE)]
    for part in range(LANES // target.lanes):
        times = inputs.vector(part * width, width)
        for o, own in enumerate(spread):
            place = sums[o, part]
            place.value = target.dot(f, place.value, times, own)


def write_layers(target: Target) -> ir.Module:
    module = ir.Module("layers")
    finish = kernels.write_finish(module, kernels.STORE)
    convolution = _write_round(module, target), _write_convolve(module, target), _write_snake(module)
    round_head = kernels.write_rounding(module, target, kernels.PLAIN, attending.HEAD_WIDTH)
    attention = attending.write_laying(module, target), attending.write_hearing(module, target, round_head)
    roundings = {attending.HEAD_WIDTH: round_head}
    linear = [_write_linear(module, target, finish, block, roundings) for block in BLOCKS]
    write_crew(module, target, [*convolution, *attention, *linear], stay_ms=STAY_MS)
    return module


def _write_round(module: ir.Module, target: Target) -> Function:
    columns = write_column_rounding(module, target)
    f = operation(module, "round")
    op = f.array("op")
    x, codes, steps = (
        f.array_at(op[place], kind) for place, kind in ((Op.X, F32), (Op.CODES, I8), (Op.STEPS, F32))
    )
    length = op[Op.LENGTH]
    begin, end = share(f, length, LANES)
    with f.loop(end, start=begin, step=LANES) as time:
        # The last vector of a row begins sooner, and does some of the one before again.
        start = not_past(time, length - LANES)
        f.call(
            columns, x.begin(start), codes.begin(start * TOGETHER), steps.begin(start),
            length, op[Op.WIDTH], op[Op.BLOCK],
        )  # fmt: skip
    f.end()
    return f


def _write_convolve(module: ir.Module, target: Target) -> Function:
    tile = write_tile(module, target)
    f = operation(module, "convolve")
    op = f.array("op")
    kinds = {
        Op.CODES: I8, Op.STEPS: F32, Op.WEIGHTS: I8, Op.SCALES: F32, Op.ZEROS: I32, Op.BIAS: F32, Op.OUT: F32
    }  # fmt: skip
    codes, steps, weights, scales, zeros, bias, out = (
        f.array_at(op[place], kind) for place, kind in kinds.items()
    )
    columns, block, taps = op[Op.COUNT], op[Op.BLOCK], op[Op.TAPS]
    blocks = op[Op.WIDTH] // block
    places = taps * blocks
    begin, end = share(f, columns, TIMES_AT_ONCE)
    with (
        f.loop(end, start=begin, step=TIMES_AT_ONCE) as first,
        f.loop(op[Op.OUTPUTS], step=OUTPUTS_AT_ONCE) as output,
        f.loop(not_past(first + TIMES_AT_ONCE, end), start=first, step=LANES) as time,
    ):
        start = not_past(time, columns - LANES)
        f.call(
            tile, codes.begin(start * TOGETHER), steps.begin(start), weights.begin(output * places * block),
            scales.begin(output * places), zeros.begin(output * places), bias.begin(output),
            out.begin(output * columns + start),
            op[Op.LENGTH], blocks, block, taps, op[Op.DILATION], columns,
        )  # fmt: skip
    f.end()
    return f


def _write_snake(module: ir.Module) -> Function:
    """x + sin²(αx)/α of each channel, α in `WEIGHTS` and 1/α in `SCALES`."""
    f = operation(module, "snake")
    op = f.array("op")
    x, out, alphas, inverses = (f.array_at(op[place], F32) for place in (Op.X, Op.OUT, Op.WEIGHTS, Op.SCALES))
    count = op[Op.COUNT]
    begin, end = share(f, op[Op.WIDTH], 1)
    with f.loop(end, start=begin) as channel:
        source, result = x.begin(channel * op[Op.LENGTH]), out.begin(channel * op[Op.OUTPUTS])
        alpha, inverse = alphas[channel], inverses[channel]

        def turned(value: Value) -> Value:
            return kernels.sine_squared(value * alpha).fma(inverse, value)

        whole = count // LANES * LANES
        with f.loop(whole, step=LANES) as time:
            result[time] = turned(source.vector(time, LANES))
        with f.loop(count, start=whole) as time:
            result[time] = turned(f.zeros(F32, LANES) + source[time]).lane(0)
    f.end()
    return f


def _write_linear(
    module: ir.Module, target: Target, finish: Function, block: int, roundings: Mapping[int, Function]
) -> Function:
    """roundings: those written already, by their blocks."""
    rounding = roundings.get(block) or kernels.write_rounding(module, target, kernels.PLAIN, block)
    products = kernels.Products(module, target, block)
    f = operation(module, f"linear_{block}")
    op = f.array("op")
    kinds = {Op.X: F32, Op.WEIGHTS: I8, Op.SCALES: F32, Op.BIAS: F32, Op.OUT: F32}
    x, weights, scales, bias, out = (f.array_at(op[place], kind) for place, kind in kinds.items())
    width, stride = op[Op.WIDTH], op[Op.OUTPUTS]
    blocks = width // block
    codes = f.array_at(op[Op.OWN] + op[Op.OWN_BYTES] * f["thread"], I8)
    steps = Array(f, codes.begin(width * ROWS_AT_ONCE).address, F32)
    zeros = Array(f, steps.begin(blocks * ROWS_AT_ONCE).address, I32)
    product = Array(f, zeros.begin(blocks * ROWS_AT_ONCE).address, F32)
    begin, end = share(f, op[Op.COUNT], ROWS_AT_ONCE)
    with f.loop(end, start=begin, step=ROWS_AT_ONCE) as first:
        count = not_past(first + ROWS_AT_ONCE, end) - first
        with f.loop(count) as row:
            f.call(
                rounding, x.begin((first + row) * width), bias, bias, codes.begin(row * width),
                steps.begin(row * blocks), zeros.begin(row * blocks), width,
            )  # fmt: skip
        with f.loop(stride // PER_GROUP) as group:
            own = weights.begin(group * width * PER_GROUP), scales.begin(group * blocks * PER_GROUP)
            products.write(f, own, (codes, steps, zeros), product, rows=count, width=width, blocks=blocks)
            place = group * PER_GROUP
            f.call(finish, product, bias.begin(place), out.begin(first * stride + place), count, stride)
    f.end()
    return f
