"""Attention of the flow as machine code: every query hears every key. Logits are made of bytes, what is heard
of float32.

Queries and keys are rounded, each by itself; LANES keys lie side by side, so that a block of them is scored
without summing across a vector. Some queries are taken through all keys together, while these are in the
cache, and so are the values, for which channels lie side by side.
"""

from __future__ import annotations

import math
from enum import IntEnum, auto
from typing import Final

from llvmlite import ir

from nightingale.backends.cpu import thread_pool as crew
from nightingale.backends.cpu import t3_kernels as kernels
from nightingale.backends.cpu.thread_pool import not_past, operation, share
from nightingale.backends.cpu.t3_kernels import LANES
from nightingale.backends.cpu.target import TOGETHER, Target
from nightingale.backends.cpu.llvm_builder import F32, I8, I32, Array, Function, Value
from nightingale.backends.shared.quantize import LEVELS, ZERO

HEAD_WIDTH: Final = 64
PARTS: Final = HEAD_WIDTH // LANES
AT_ONCE: Final = 4
"""Queries for whose sums there are registers."""
TILE: Final = 16
"""Queries that a thread takes through all keys."""


class Op(IntEnum):
    """Places in an operation. A distance is in floats."""

    KIND = crew.Op.KIND
    QUERIES = crew.Op.FACTS
    QUERY_HEAD = auto()
    """From a head to the next."""
    QUERY_ROW = auto()
    """From a query to the next."""
    KEYS = auto()
    KEY_HEAD = auto()
    KEY_ROW = auto()
    VALUES = auto()
    VALUE_HEAD = auto()
    VALUE_ROW = auto()
    OUT = auto()
    """(queries, heads, HEAD_WIDTH)."""
    CODES = auto()
    """Keys, rounded: (heads, blocks, HEAD_WIDTH / TOGETHER, LANES, TOGETHER) bytes."""
    STEPS = auto()
    """Their scales: (heads, blocks, LANES)."""
    LAID = auto()
    """Values: (heads, PARTS, blocks, LANES, LANES)."""
    QUERY_COUNT = auto()
    """At least TILE."""
    KEY_COUNT = auto()
    HEADS = auto()
    OWN = auto()
    OWN_BYTES = auto()
    """Of a thread."""


def room_bytes(keys: int, heads: int) -> tuple[int, int, int]:
    """Of codes, steps and values."""
    all_keys = heads * -(-keys // LANES) * LANES
    return all_keys * HEAD_WIDTH, 4 * all_keys, 4 * all_keys * HEAD_WIDTH


def own_bytes(keys: int) -> int:
    """What a thread needs: scores, and queries with their scales and sums."""
    return TILE * (4 * -(-keys // LANES) * LANES + HEAD_WIDTH + 8)


def write_laying(module: ir.Module, target: Target) -> Function:
    f = operation(module, "lay")
    op = f.array("op")
    keys, values, laid, steps = (
        f.array_at(op[place], F32) for place in (Op.KEYS, Op.VALUES, Op.LAID, Op.STEPS)
    )
    codes, count = f.array_at(op[Op.CODES], I32), op[Op.KEY_COUNT]
    blocks = _blocks(count)
    units = blocks * op[Op.HEADS]
    begin, end = share(f, units)
    with f.loop(end, start=begin) as unit:
        head, block = unit // blocks, unit % blocks
        own = codes.begin(unit * (HEAD_WIDTH // TOGETHER * LANES))
        with f.loop(LANES) as lane:
            # What would fill the last block is hidden by its number; the last key stands in for it.
            number = block * LANES + lane
            number = not_past(number, count - 1)
            key = keys.begin(head * op[Op.KEY_HEAD] + number * op[Op.KEY_ROW])
            parts = [key.vector(part * LANES, LANES) for part in range(PARTS)]
            steps[unit * LANES + lane] = _packed(f, target, parts, own, lane)
            value = values.begin(head * op[Op.VALUE_HEAD] + number * op[Op.VALUE_ROW])
            for part in range(PARTS):
                row = ((head * PARTS + part) * blocks + block) * LANES + lane
                laid[row * LANES] = value.vector(part * LANES, LANES)
    f.end()
    return f


def _packed(f: Function, target: Target, parts: list[Value], out: Array, lane: Value) -> Value:
    """A key's bytes among those of its block; its scale."""
    loudest = parts[0].abs()
    for part in parts[1:]:
        loudest = loudest.most(part.abs())
    step = loudest.largest() / LEVELS
    divisor = (step > 0.0).choose(step, 1.0)
    for number, part in enumerate(parts):
        whole = (part / f.spread(divisor, LANES)).rounded().to(I32)
        fours = (whole if target.signed else whole + ZERO).to(I8).as_bits(_fours())
        for four in range(LANES // TOGETHER):
            out[lane + (number * (LANES // TOGETHER) + four) * LANES] = fours.lane(four)
    return step


def _fours() -> ir.VectorType:
    return ir.VectorType(I32, LANES // TOGETHER)


def write_hearing(module: ir.Module, target: Target, rounding: Function) -> Function:
    """rounding: of rows, by blocks of HEAD_WIDTH."""
    f = operation(module, "hear")
    op = f.array("op")
    laid, out = (f.array_at(op[place], F32) for place in (Op.LAID, Op.OUT))
    count, heads, queries = op[Op.KEY_COUNT], op[Op.HEADS], op[Op.QUERY_COUNT]
    blocks, tiles = _blocks(count), (queries + (TILE - 1)) // TILE
    units, width = tiles * heads, blocks * LANES
    scores = f.array_at(op[Op.OWN] + op[Op.OWN_BYTES] * f["thread"], F32)
    steps = scores.begin(width * TILE)
    sums = Array(f, steps.begin(TILE).address, I32)
    asked = Array(f, sums.begin(TILE).address, I8)
    begin, end = share(f, units)
    with f.loop(end, start=begin) as unit:
        head, first = unit // tiles, unit % tiles * TILE
        # The last of a head begin sooner, and some are done again.
        first = not_past(first, queries - TILE)
        source = f.array_at(op[Op.QUERIES], F32).begin(head * op[Op.QUERY_HEAD] + first * op[Op.QUERY_ROW])
        with f.loop(TILE) as row:
            query = source.begin(row * op[Op.QUERY_ROW])
            place = asked.begin(row * HEAD_WIDTH), steps.begin(row), sums.begin(row)
            f.call(rounding, query, query, query, *place, f.number(HEAD_WIDTH))
        with f.loop(blocks) as block, f.loop(TILE, step=AT_ONCE) as row:
            rows = asked.begin(row * HEAD_WIDTH), steps.begin(row), sums.begin(row)
            _score(f, target, rows, head * blocks + block, block, scores.begin(row * width))
        with f.loop(TILE) as row:
            shares = scores.begin(row * width)
            scale = f.number(1.0, F32) / kernels.exponentials(f, shares, blocks)
            with f.loop(width, step=LANES) as at:
                shares[at] = shares.vector(at, LANES) * scale
        with f.loop(PARTS) as part, f.loop(TILE, step=AT_ONCE) as row:
            totals = [f.variable(f.zeros(F32, LANES)) for _ in range(AT_ONCE)]
            values = laid.begin((head * PARTS + part) * width * LANES)
            with f.loop(count) as key:
                value = values.vector(key * LANES, LANES)
                for number, total in enumerate(totals):
                    total.value = value.fma(scores[(row + number) * width + key], total.value)
            for number, total in enumerate(totals):
                out[((first + row + number) * heads + head) * HEAD_WIDTH + part * LANES] = total.value
    f.end()
    return f


def _score(
    f: Function, target: Target, rows: tuple[Array, Array, Array], unit: Value, block: Value, scores: Array
) -> None:
    """Of AT_ONCE queries for a block of keys."""
    asked, steps, zeros = rows
    op, parts = f.array("op"), range(LANES // target.lanes)
    codes = f.array_at(op[Op.CODES], I8).begin(unit * (HEAD_WIDTH * LANES))
    places = [(number, part) for number in range(AT_ONCE) for part in parts]
    sums = {place: f.variable(f.zeros(I32, target.lanes)) for place in places}
    with f.loop(HEAD_WIDTH, step=4 * TOGETHER) as first:
        # As a product whose weights are keys.
        each = [asked.begin(number * HEAD_WIDTH) for number in range(AT_ONCE)]
        totals = {(number, 0, part): total for (number, part), total in sums.items()}
        kernels.sixteen_inputs(f, target, first, [codes], each, totals)
    count = op[Op.KEY_COUNT]
    width = _blocks(count) * LANES
    key_steps = f.array_at(op[Op.STEPS], F32).begin(unit * LANES)
    for number, part in places:
        whole = sums[number, part].value
        if not target.signed:
            whole = whole + zeros[number]
        at = block * LANES + part * target.lanes
        scale = key_steps.vector(part * target.lanes, target.lanes) * (steps[number] * HEAD_WIDTH**-0.5)
        there = (f.counting(target.lanes) + at) < count
        scores[width * number + at] = there.choose(whole.to(F32) * scale, -math.inf)


def _blocks(keys: Value) -> Value:
    return (keys + (LANES - 1)) // LANES
