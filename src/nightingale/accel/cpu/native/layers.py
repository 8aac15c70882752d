"""Linear layers and convolutions with weights and inputs of eight bits, as machine code: what renders sound.

A linear layer has its inputs row by row, and a thread takes some rows through all outputs. A convolution has
its inputs channel by channel, (channels, time), and gives them back so; neither is turned around. Time lies in
the lanes of a vector, so that a tap is the same memory some bytes further on.
"""

from __future__ import annotations

from typing import Final

from llvmlite import ir

from nightingale.accel.cpu.native import kernels
from nightingale.accel.cpu.native.kernels import BLOCK, LANES, PER_GROUP, ROWS
from nightingale.accel.cpu.native.target import TOGETHER, Target
from nightingale.accel.cpu.native.writing import F32, I8, I32, I64, Array, Function, Value, Variable
from nightingale.accel.cpu.rounding import LEVELS, ZERO

OUTPUTS_AT_ONCE: Final = 4
"""Of a convolution: as many as have their weights in one vector of sixteen bytes."""
TIMES_AT_ONCE: Final = 4 * LANES
"""That a thread takes through all outputs: their inputs fit in its cache."""
ROWS_AT_ONCE: Final = 16
"""Of a linear layer, likewise."""


def write_column_rounding(module: ir.Module, target: Target) -> Function:
    """LANES columns of inputs (channels, stride) to whole numbers (channels / TOGETHER, length, TOGETHER) and
    scales (blocks, length)."""
    given = {"x": F32, "codes": I8, "scales": F32}
    sizes = dict.fromkeys(("stride", "length", "channels", "block"), I64)
    f = Function(module, "round_columns", {**given, **sizes})
    x, length, block = f.array("x"), f["length"], f["block"]
    with f.loop(f["channels"] // block) as number:
        first = number * block
        loudest = f.variable(f.zeros(F32, LANES))
        with f.loop(first + block, start=first) as channel:
            loudest.value = loudest.value.most(x.vector(channel * f["stride"], LANES).abs())
        step = loudest.value / LEVELS
        f.array("scales")[number * length] = step
        # A column of zeros has no scale, and needs none.
        step = (step > 0.0).choose(step, 1.0)
        with f.loop(first + block, start=first, step=TOGETHER) as channel:
            packed = f.zeros(I32, LANES)
            for place in range(TOGETHER):
                value = x.vector((channel + place) * f["stride"], LANES)
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
    width = target.lanes * TOGETHER
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
    assert width
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


def write_convolution(module: ir.Module, target: Target) -> None:
    """`rounding` of a thread's share of columns, and then `convolve` of its share of times; each for itself,
    and everybody must have done the first before anybody begins the second."""
    columns, tile = write_column_rounding(module, target), write_tile(module, target)
    arrays = {"x": F32, "codes": I8, "steps": F32}
    sizes = ("stride", "length", "channels", "block", "begin", "end")
    f = Function(module, "rounding", {**arrays, **dict.fromkeys(sizes, I64)})
    with f.loop(f["end"], start=f["begin"], step=LANES) as time:
        start = _not_past(time, f["length"] - LANES)
        f.call(
            columns, f.array("x").begin(start), f.array("codes").begin(start * TOGETHER),
            f.array("steps").begin(start), f["stride"], f["length"], f["channels"], f["block"],
        )  # fmt: skip
    f.end()
    arrays = {"codes": I8, "steps": F32, "weights": I8, "scales": F32, "zeros": I32, "bias": F32, "out": F32}
    sizes = ("length", "blocks", "block", "taps", "dilation", "columns", "outputs", "begin", "end")
    f = Function(module, "convolve", {**arrays, **dict.fromkeys(sizes, I64)})
    places = f["taps"] * f["blocks"]
    with (
        f.loop(f["end"], start=f["begin"], step=TIMES_AT_ONCE) as first,
        f.loop(f["outputs"], step=OUTPUTS_AT_ONCE) as output,
        f.loop(_not_past(first + TIMES_AT_ONCE, f["end"]), start=first, step=LANES) as time,
    ):
        start = _not_past(time, f["columns"] - LANES)
        f.call(
            tile, f.array("codes").begin(start * TOGETHER), f.array("steps").begin(start),
            f.array("weights").begin(output * places * f["block"]),
            f.array("scales").begin(output * places), f.array("zeros").begin(output * places),
            f.array("bias").begin(output), f.array("out").begin(output * f["columns"] + start),
            f["length"], f["blocks"], f["block"], f["taps"], f["dilation"], f["columns"],
        )  # fmt: skip
    f.end()


def _not_past(value: Value, limit: Value) -> Value:
    """The last vector of a row begins sooner, and does some of the one before again."""
    return (value > limit).choose(limit, value)


def write_rows(module: ir.Module, target: Target) -> None:
    """`rows`: of a linear layer, from `begin` to `end`."""
    rounding = kernels.write_rounding(module, target, kernels.PLAIN)
    products = {rows: kernels.write_product(module, target, rows) for rows in ROWS}
    finish = kernels.write_finish(module, kernels.STORE)
    arrays = {"x": F32, "weights": I8, "scales": F32, "bias": F32, "out": F32, "own": I8}
    sizes = ("width", "groups", "begin", "end")
    f = Function(module, "rows", {**arrays, **dict.fromkeys(sizes, I64)})
    width, blocks, stride = f["width"], f["width"] // BLOCK, f["groups"] * PER_GROUP
    codes, x, weights, scales = (f.array(name) for name in ("own", "x", "weights", "scales"))
    steps = Array(f, codes.begin(width * ROWS_AT_ONCE).address, F32)
    zeros = Array(f, steps.begin(blocks * ROWS_AT_ONCE).address, I32)
    product = Array(f, zeros.begin(blocks * ROWS_AT_ONCE).address, F32)
    with f.loop(f["end"], start=f["begin"], step=ROWS_AT_ONCE) as first:
        count = _not_past(first + ROWS_AT_ONCE, f["end"]) - first
        with f.loop(count) as row:
            at = row * width, row * blocks
            f.call(
                rounding, x.begin((first + row) * width), f.array("bias"), f.array("bias"),
                codes.begin(at[0]), steps.begin(at[1]), zeros.begin(at[1]), width,
            )  # fmt: skip
        with f.loop(f["groups"]) as group:
            done = f.variable(f.number(0))
            for several, function in products.items():
                with f.forever():
                    row = done.value
                    f.leave_if(row + several > count)
                    f.call(
                        function, weights.begin(group * width * PER_GROUP),
                        scales.begin(group * blocks * PER_GROUP), codes.begin(row * width),
                        steps.begin(row * blocks), zeros.begin(row * blocks),
                        product.begin(row * PER_GROUP), width,
                    )  # fmt: skip
                    done.value = row + several
            out = f.array("out").begin(first * stride + group * PER_GROUP)
            f.call(finish, product, f.array("bias").begin(group * PER_GROUP), out, count, stride)
    f.end()
