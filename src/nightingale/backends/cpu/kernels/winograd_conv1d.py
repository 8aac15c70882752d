"""Float32 one-dimensional convolution with half the multiplications: the residual blocks of the vocoder.

    y[o, t] = bias[o] + Σ_{c, k} weight[o, c, k] · snake(x[c, t - left + k · dilation])  + residual[o, t]

Winograd's algorithm F(4, 4) computes four outputs of four taps by seven products in place of sixteen:

    four outputs = Aᵀ · ((G · four taps) ⊙ (Bᵀ · seven inputs))

A kernel of 3, 7 or 11 taps is 1, 2 or 3 groups of four taps, whose products are added before Aᵀ. The matrices are
those of Toom and Cook for the points POINTS and infinity. Sums are rounded twice as much as in a plain sum of
products (2e-6 of the result with 256 channels), so this is float32 by any measure.

Shapes and layout (C channels, O outputs, G groups)
    x, residual, y   (C or O, columns) float32            rows of x are x_stride apart; snake and residual are optional
    w                (7, O / 4, G, C, 4) float32          transformed weights, four outputs side by side
    row              (ROW_FLOATS,)                        one channel of a chunk, in time order
    x_hat            (7, C, HAT_STRIDE)                   transformed inputs of a chunk
    y_hat            (7, O, HAT_STRIDE)                   the sums of products

A tile is four outputs that are `dilation` apart. A chunk is `tiles` tiles of each of the `dilation` phases; in
x_hat, phase q begins at q · (tiles + G - 1), so that group g of the taps reads g columns further on.

Pseudo-code, for each chunk; where there are few, for each half of the outputs
    for channel:
        row = snake(x[channel])
        x_hat[:, channel, tile] = Bᵀ · row[inputs of tile]
    for component, 4 outputs:
        y_hat[component, output, :] = Σ_{g, c} w[component, output, g, c] · x_hat[component, c, g:]
    for output:
        row[outputs of tile] = Aᵀ · y_hat[:, output, tile]
        y[output] = row + bias + residual

Why it is fast: half of the multiplications; 4 outputs × 4 vectors of columns stay in registers while all channels
are added; a chunk's transforms stay in the core's cache; activation, padding and residual need no pass of
their own over memory.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from nightingale.backends.cpu.kernels.llvm_builder import F32, I32, I64, Function, Pointer, Value
from nightingale.backends.cpu.kernels.target import Isa, Target
from nightingale.backends.cpu.kernels.thread_pool import Arg, Operation
from nightingale.backends.cpu.kernels.vector_math import LANES, emit_sin_squared

POINTS: Final = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5)
TILE: Final = 4
"""Outputs of a tile, and taps of a group."""
COMPONENTS: Final = 2 * TILE - 1
CHUNK_COLUMNS: Final = 64
"""The most columns of a chunk's products."""
MAX_DILATION, MAX_GROUPS = 5, 3
TILE_LANES: Final = 4
"""Tiles that are transformed at a time."""
HAT_STRIDE: Final = CHUNK_COLUMNS + 16
"""Room for the groups of taps, and for vectors that reach over the end."""
ROW_FLOATS: Final = TILE * (CHUNK_COLUMNS + MAX_GROUPS + TILE_LANES * MAX_DILATION) + 8 * MAX_DILATION + LANES
OUTPUT_BLOCK: Final = 4
MAX_PARTS: Final = 2
"""Threads divide parts of the outputs too where there are few chunks."""
MANY_CHUNKS: Final = 16


class WinogradOp(Arg):
    X = ALPHA = INVERSE_ALPHA = W = BIAS = RESIDUAL = OUT = F32
    X_STRIDE = LENGTH = LEFT = CHANNELS = COLUMNS = OUTPUTS = GROUPS = DILATION = TILES = I64
    PARTS = HAS_SNAKE = HAS_RESIDUAL = I64
    """The parts of the outputs; 1 or 0."""


def transforms() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return Aᵀ (4, 7), G (7, 4) and Bᵀ (7, 7)."""
    powers = np.array([[point**i for i in range(COMPONENTS)] for point in POINTS])
    vandermonde = np.concatenate([powers, np.eye(COMPONENTS)[-1:]])
    few = np.concatenate([powers[:, :TILE], np.eye(TILE)[-1:]])
    inverse = np.linalg.inv(vandermonde).T
    scale = np.abs(inverse).max(axis=1, keepdims=True)
    return few.T, few * scale, inverse / scale


def transform_weight(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return weights (outputs, channels, taps) as the kernel reads them."""
    outputs, channels, taps = weight.shape
    groups = -(-taps // TILE)
    padded = np.zeros((outputs, channels, groups * TILE))
    padded[..., :taps] = weight
    by_group = padded.reshape(outputs // OUTPUT_BLOCK, OUTPUT_BLOCK, channels, groups, TILE)
    hat = np.einsum("jt,bocgt->jbgco", transforms()[1], by_group)
    return np.ascontiguousarray(hat, np.float32)


def tiles_per_phase(columns: int, groups: int, dilation: int) -> int:
    """Return the tiles of each phase in a chunk: as many as fit, or as `columns` outputs have."""
    most = (CHUNK_COLUMNS + groups - 1) // dilation - (groups - 1)
    return min(most, -(-columns // (TILE * dilation)))


def parts_of_outputs(columns: int, tiles: int, dilation: int) -> int:
    """Return in how many parts the outputs of a convolution are computed."""
    return 1 if columns > MANY_CHUNKS * TILE * tiles * dilation else MAX_PARTS


def scratch_bytes(channels: int, outputs: int) -> int:
    return 4 * (ROW_FLOATS + COMPONENTS * HAT_STRIDE * (channels + outputs))


def emit_winograd_conv1d(module: ir.Module, target: Target) -> Operation:
    product = _emit_product(module, target)
    f = Operation(module, "winograd_conv1d")
    op = f.args(WinogradOp)
    row = f.scratch.cast(F32)
    x_hat = row.offset(ROW_FLOATS)
    y_hat = x_hat.offset(op.channels * (COMPONENTS * HAT_STRIDE))
    outputs = op.outputs // op.parts
    chunk, ahead = op.dilation * op.tiles * TILE, op.groups - 1
    columns = op.dilation * (op.tiles + ahead) - ahead
    begin, end = f.thread_range((op.columns + chunk - 1) // chunk * op.parts)
    with f.loop(end, start=begin) as unit:
        first, offset = unit // op.parts * chunk, unit % op.parts * outputs
        with f.loop(op.channels) as channel:
            _emit_load_row(f, op, row, channel, first)
            _emit_transform(f, op, row, x_hat.offset(channel * HAT_STRIDE))
        with f.loop(COMPONENTS) as component, f.loop(outputs, step=OUTPUT_BLOCK) as output:
            block = component * op.outputs + offset + output
            with f.loop(columns, step=_vectors(target) * target.lanes) as column:
                f.call(
                    product,
                    x_hat.offset(component * op.channels * HAT_STRIDE + column),
                    op.w.offset(block * (op.groups * op.channels)),
                    y_hat.offset((component * outputs + output) * HAT_STRIDE + column),
                    op.channels,
                    op.groups,
                )
        with f.loop(outputs) as output:
            _emit_inverse_transform(f, op, y_hat.offset(output * HAT_STRIDE), outputs, row)
            _emit_store_row(f, op, row, offset + output, first, (op.columns - first).min(chunk))
    return f.ret()


def _emit_load_row(f: Function, op: Any, row: Pointer, channel: Value, first: Value) -> None:
    """Write the inputs of a chunk to `row`, zeros where there are none; snake(0) is 0."""
    needed = (op.tiles + op.groups) * op.dilation * TILE
    with f.loop(needed + LANES, step=LANES) as at:
        row[at] = f.zeros(F32, LANES)
    # The chunk's first output reads the input `first - left`, which is the row's first.
    start = (op.left - first).max(0)
    end = needed.min(op.length + op.left - first)
    x = op.x.offset(channel * op.x_stride + first - op.left)
    whole = start + (end - start).max(0) // LANES * LANES
    with f.if_else(op.has_snake.equals(1)) as (snake, plain):
        with snake:
            alpha, inverse = op.alpha[channel], op.inverse_alpha[channel]
            with f.loop(whole, start=start, step=LANES) as at:
                value = x.load_vector(at, LANES)
                row[at] = emit_sin_squared(value * alpha).fma(inverse, value)
            with f.loop(end, start=whole) as at:
                value = f.zeros(F32, 4) + x[at]
                row[at] = emit_sin_squared(value * alpha).fma(inverse, value).extract(0)
        with plain:
            with f.loop(whole, start=start, step=LANES) as at:
                row[at] = x.load_vector(at, LANES)
            with f.loop(end, start=whole) as at:
                row[at] = x[at]


def _emit_transform(f: Function, op: Any, row: Pointer, x_hat: Pointer) -> None:
    matrix, tiles, step = transforms()[2], op.tiles + op.groups - 1, op.dilation * TILE

    def store(inputs: list[Value], at: Value) -> None:
        for component, factors in enumerate(matrix):
            x_hat[op.channels * (component * HAT_STRIDE) + at] = _combine(inputs, factors)

    with f.if_else(op.dilation.equals(1)) as (plain, dilated):
        with plain, f.loop(tiles, step=TILE_LANES) as tile:
            both = [row.load_vector((tile + ahead) * TILE, TILE * TILE_LANES) for ahead in (0, 1)]
            store([_every_fourth(both[n // TILE], n % TILE) for n in range(COMPONENTS)], tile)
        with dilated, f.loop(op.dilation) as phase, f.loop(tiles, step=TILE_LANES) as tile:
            base, inputs = row.offset(tile * step + phase), []
            for number in range(COMPONENTS):
                gathered = f.zeros(F32, TILE_LANES).raw
                for lane in range(TILE_LANES):
                    value = base[step * lane + op.dilation * number]
                    gathered = f.builder.insert_element(gathered, value.raw, f.const(lane, I32).raw)
                inputs.append(Value(f, gathered))
            store(inputs, phase * tiles + tile)


def _emit_inverse_transform(f: Function, op: Any, y_hat: Pointer, outputs: Value, row: Pointer) -> None:
    matrix, tiles, step = transforms()[0], op.tiles + op.groups - 1, op.dilation * TILE

    def results(at: Value) -> list[Value]:
        sums = [
            y_hat.load_vector(outputs * (component * HAT_STRIDE) + at, TILE_LANES)
            for component in range(COMPONENTS)
        ]
        return [_combine(sums, factors) for factors in matrix]

    with f.if_else(op.dilation.equals(1)) as (plain, dilated):
        with plain, f.loop(op.tiles, step=TILE_LANES) as tile:
            even, odd = (
                _join(first, second) for first, second in zip(*[iter(results(tile))] * 2, strict=True)
            )
            whole = _join(even, odd)
            order = [TILE_LANES * number + lane for lane in range(TILE_LANES) for number in range(TILE)]
            row[tile * TILE] = whole.shuffle(order)
        with dilated, f.loop(op.dilation) as phase, f.loop(op.tiles, step=TILE_LANES) as tile:
            base = row.offset(tile * step + phase)
            for number, result in enumerate(results(phase * tiles + tile)):
                for lane in range(TILE_LANES):
                    base[step * lane + op.dilation * number] = result.extract(lane)


def _every_fourth(vector: Value, start: int) -> Value:
    return vector.shuffle(range(start, vector.lanes, TILE))


def _join(first: Value, second: Value) -> Value:
    """Return the lanes of both vectors in one."""
    mask = ir.Constant(ir.VectorType(I32, 2 * first.lanes), list(range(2 * first.lanes)))
    return first.wrap(first.function.builder.shuffle_vector(first.raw, second.raw, mask))


def _combine(vectors: list[Value], factors: NDArray[np.float64]) -> Value:
    """Return Σ factor · vector, without the products by zero."""
    total: Value | None = None
    for vector, factor in zip(vectors, factors, strict=True):
        if abs(factor) > 1e-9:
            total = vector * float(factor) if total is None else vector.fma(float(factor), total)
    assert total is not None
    return total


def _emit_store_row(f: Function, op: Any, row: Pointer, output: Value, first: Value, count: Value) -> None:
    at_row = output * op.columns + first
    out, residual, bias, whole = (
        op.out.offset(at_row),
        op.residual.offset(at_row),
        op.bias[output],
        count // LANES * LANES,
    )
    with f.if_else(op.has_residual.equals(1)) as (add, store):
        with add:
            with f.loop(whole, step=LANES) as at:
                out[at] = row.load_vector(at, LANES) + bias + residual.load_vector(at, LANES)
            with f.loop(count, start=whole) as at:
                out[at] = row[at] + bias + residual[at]
        with store:
            with f.loop(whole, step=LANES) as at:
                out[at] = row.load_vector(at, LANES) + bias
            with f.loop(count, start=whole) as at:
                out[at] = row[at] + bias


def _vectors(target: Target) -> int:
    """Return the vectors of columns whose sums fit in registers beside those of OUTPUT_BLOCK outputs."""
    return 2 if target.isa == Isa.AVX_VNNI else 4


def _emit_product(module: ir.Module, target: Target) -> Function:
    """Emit OUTPUT_BLOCK outputs × some vectors of columns of one component."""
    params = {"x_hat": F32, "w": F32, "y_hat": F32, "channels": I64, "groups": I64}
    f = Function(module, "winograd_product", params)
    x_hat, w, y_hat, channels, groups = f.params
    lanes, vectors = target.lanes, range(_vectors(target))
    places = [(output, vector) for output in range(OUTPUT_BLOCK) for vector in vectors]
    sums = {place: f.variable(f.zeros(F32, lanes)) for place in places}
    with f.loop(groups) as group, f.loop(channels) as channel:
        inputs = [
            x_hat.load_vector(channel * HAT_STRIDE + group + vector * lanes, lanes) for vector in vectors
        ]
        at = (group * channels + channel) * OUTPUT_BLOCK
        weights = w.load_vector(at, OUTPUT_BLOCK) if lanes == OUTPUT_BLOCK else None
        for output in range(OUTPUT_BLOCK):
            own = None if weights is None else weights.shuffle([output] * lanes)
            factor = own or f.splat(w[at + output], lanes)
            for vector in vectors:
                total = sums[output, vector]
                total.value = inputs[vector].fma(factor, total.value)
    for (output, vector), total in sums.items():
        y_hat[output * HAT_STRIDE + vector * lanes] = total.value
    return f.ret()
