"""A whole step of T3 as one list of operations, `linear` and `attend`.

Of a product's groups of outputs each thread has a stretch, which it reads from front to back, as memory is
read fastest; who has done helps the others from behind, so that one that is held up is waited for less. Heads
are taken as they come.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Final

from llvmlite import ir

from nightingale.backends.cpu import thread_pool as crew
from nightingale.backends.cpu import t3_kernels as kernels
from nightingale.backends.cpu.thread_pool import CLAIM_LENGTH, Claim, operation, write_crew
from nightingale.backends.cpu.t3_kernels import BLOCK, PER_GROUP
from nightingale.backends.cpu.target import Target
from nightingale.backends.cpu.llvm_builder import F16, F32, I8, I32, I64, Function

STAY_MS: Final = 2.0
"""As long as it takes to draw a token, and longer."""
TOKENS_AT_ONCE: Final = 64
"""Of a prompt: as many as have room in a core's cache."""


class Op(IntEnum):
    """Places in an operation."""

    KIND = crew.Op.KIND
    CLAIMS = crew.Op.CLAIMS
    COUNT = crew.Op.FACTS
    """Of groups."""
    X = auto()
    NORM = auto()
    NORM_WEIGHT = auto()
    NORM_BIAS = auto()
    CODES = auto()
    SCALES = auto()
    BIAS = auto()
    OUT = auto()
    WIDTH = auto()
    """Of its inputs."""
    FINISH = auto()
    STRIDE = auto()
    """Floats between two rows of `OUT`."""
    ASKED_ONLY = auto()
    """Only for tokens whose scores are asked for."""
    KEYS = auto()
    VALUES = auto()


class Job(IntEnum):
    """Places in a job."""

    OPS = crew.Job.OPS
    OP_COUNT = crew.Job.OP_COUNT
    THREADS = crew.Job.THREADS
    TOKENS = crew.Job.FACTS
    ASKED = auto()
    """Of them, the last so many are scored."""
    ROWS = auto()
    """Utterances' rows that take part."""
    SPANS = auto()
    """Of each row, `Span`."""
    SCRATCH = auto()
    SCRATCH_BYTES = auto()
    """Of a thread."""
    HEARD = auto()
    COS = auto()
    SIN = auto()
    HEADS = auto()
    HEAD_LENGTH = auto()
    """Numbers that the keys of a head take, in one layer; its values take as many."""
    ROW_LENGTH = auto()
    """All heads, all layers."""


class Span(IntEnum):
    """Places in what is told of a row."""

    FIRST = 0
    """Its first token among those of the job."""
    TOKENS = auto()
    PLACE = auto()
    """Which row of the memory."""
    PAST = auto()
    """Positions that it remembers."""


LINEAR, ATTEND = range(2)
"""Kinds."""


def scratch_bytes(widest: int, positions: int) -> int:
    """Of a thread, for so many inputs and remembered positions at most."""
    rounded = TOKENS_AT_ONCE * (widest + 8 * widest // BLOCK)
    return -(-(rounded + 4 * TOKENS_AT_ONCE * PER_GROUP + 4 * positions) // 4096) * 4096


def write_step(target: Target, *, head_width: int, rotary: bool) -> ir.Module:
    module = ir.Module("t3")
    kinds = _write_linear(module, target), _write_attend(module, head_width=head_width, rotary=rotary)
    write_crew(module, target, kinds, stay_ms=STAY_MS)
    return module


def _write_linear(module: ir.Module, target: Target) -> Function:
    roundings = [kernels.write_rounding(module, target, norm) for norm in range(3)]
    products = kernels.Products(module, target)
    finishes = [kernels.write_finish(module, how) for how in range(4)]
    f = operation(module, "linear")
    job, op = f.array("job"), f.array("op")
    width, stride = op[Op.WIDTH], op[Op.STRIDE]
    blocks = width // BLOCK
    tokens = job[Job.TOKENS]
    rows = (op[Op.ASKED_ONLY] > 0).choose(job[Job.ASKED], tokens)
    x = f.array_at(op[Op.X], F32).begin((tokens - rows) * width)
    # What this thread alone sees: everybody rounds all inputs, which is sooner done than waited for.
    own = job[Job.SCRATCH] + job[Job.SCRATCH_BYTES] * f["thread"]
    codes = f.array_at(own, I8)
    steps = f.array_at(own + width * TOKENS_AT_ONCE, F32)
    zeros = f.array_at(own + (width + blocks * 4) * TOKENS_AT_ONCE, I32)
    product = f.array_at(own + (width + blocks * 8) * TOKENS_AT_ONCE, F32)
    norm = op[Op.NORM]
    weight, bias = f.array_at(op[Op.NORM_WEIGHT], F32), f.array_at(op[Op.NORM_BIAS], F32)
    for number, rounding in enumerate(roundings):
        with f.when(norm.equals(number)), f.loop(rows) as row:
            at = row * width, row * blocks
            f.call(
                rounding, x.begin(at[0]), weight, bias,
                codes.begin(at[0]), steps.begin(at[1]), zeros.begin(at[1]), width,
            )  # fmt: skip
    count, how, outputs = op[Op.COUNT], op[Op.FINISH], f.number(PER_GROUP)
    outputs = how.equals(kernels.GATED).choose(f.number(PER_GROUP // 2), outputs)
    all_codes, all_scales = f.array_at(op[Op.CODES], I8), f.array_at(op[Op.SCALES], F32)
    all_bias, out = f.array_at(op[Op.BIAS], F32), f.array_at(op[Op.OUT], F32)
    count = (rows > 0).choose(count, 0)
    threads, claims = job[Job.THREADS], f.array_at(op[Op.CLAIMS], I64)
    front, taken = f.variable(f.number(0)), f.variable(f.number(0))
    with f.loop(threads) as turn, f.forever():
        # Its own stretch first.
        whose = (f["thread"] + turn) % threads
        first, end = count * whose // threads, count * (whose + 1) // threads
        claim = claims.begin(whose * CLAIM_LENGTH)
        f.leave_if(claim.add_at_once(Claim.TAKEN, 1) >= end - first)
        with f.either(turn.equals(0)) as (mine, anothers):
            with mine:
                taken.value = first + front.value
                front.value += 1
            with anothers:
                taken.value = end - 1 - claim.add_at_once(Claim.FROM_BEHIND, 1)
        group = taken.value
        group_codes = all_codes.begin(group * width * PER_GROUP)
        group_scales = all_scales.begin(group * blocks * PER_GROUP)
        products.write(
            f, (group_codes, group_scales), (codes, steps, zeros), product,
            rows=rows, width=width, blocks=blocks,
        )  # fmt: skip
        own_bias, own_out = all_bias.begin(group * PER_GROUP), out.begin(group * outputs)
        for number, finish in enumerate(finishes):
            with f.when(how.equals(number)):
                f.call(finish, product, own_bias, own_out, rows, stride)
    f.end()
    return f


def _write_attend(module: ir.Module, *, head_width: int, rotary: bool) -> Function:
    attention = kernels.write_attention(module, head_width=head_width, rotary=rotary)
    f = operation(module, "attend")
    job, op = f.array("job"), f.array("op")
    qkv, heard = f.array_at(op[Op.X], F32), f.array_at(job[Job.HEARD], F32)
    keys, values = f.array_at(op[Op.KEYS], F16), f.array_at(op[Op.VALUES], F16)
    cos, sin = f.array_at(job[Job.COS], F32), f.array_at(job[Job.SIN], F32)
    spans, length, heads = f.array_at(job[Job.SPANS], I64), job[Job.HEAD_LENGTH], job[Job.HEADS]
    width, count = heads * head_width, job[Job.ROWS] * heads
    scores = f.array_at(job[Job.SCRATCH] + job[Job.SCRATCH_BYTES] * f["thread"], F32)
    claims = f.array_at(op[Op.CLAIMS], I64)
    with f.forever():
        number = claims.add_at_once(Claim.TAKEN, 1)
        f.leave_if(number >= count)
        span, head = spans.begin(number // heads * len(Span)), number % heads
        first, memory = span[Span.FIRST], span[Span.PLACE] * job[Job.ROW_LENGTH] + head * length
        f.call(
            attention, qkv.begin(first * width * 3 + head * head_width), keys.begin(memory),
            values.begin(memory), cos, sin, heard.begin(first * width + head * head_width), scores,
            span[Span.TOKENS], span[Span.PAST], width,
        )  # fmt: skip
    f.end()
    return f
