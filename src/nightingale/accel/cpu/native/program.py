"""A whole step in one call: a list of operations, done by threads that wait for each other by looking.

    crew = Crew(code, job, threads)
    crew.run()

An operation is a row of whole numbers: addresses and sizes (`Op`). A job is one too (`Job`): what differs
from step to step, and where the threads meet. Of a product's groups of outputs each thread has a stretch,
which it reads from front to back, as memory is read fastest; who has done helps the others from behind, so
that one that is held up is waited for less. Heads are taken as they come.
"""

from __future__ import annotations

import threading
import weakref
from enum import IntEnum, auto
from functools import partial
from typing import Final

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from nightingale.accel.cpu.inputs import zeros
from nightingale.accel.cpu.native import kernels
from nightingale.accel.cpu.native.kernels import BLOCK, PER_GROUP, ROWS
from nightingale.accel.cpu.native.target import YIELD, Code, Target
from nightingale.accel.cpu.native.writing import F16, F32, I8, I32, I64, Function, Variable

TOKENS_AT_ONCE: Final = 64
"""Of a prompt: as many as have room in a core's cache."""
LOOK_MS: Final = 0.1
"""Of looking at what does not change, before others are let in."""
STAY_MS: Final = 2.0
"""That a thread looks for the next step before it sleeps. To wake it takes longer than to draw a token."""
LINE: Final = 64
"""Bytes that one core cannot write while another reads them."""


class Op(IntEnum):
    """Places in an operation."""

    KIND = 0
    CLAIMS = auto()
    """Of each thread's stretch, `Claim`."""
    COUNT = auto()
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


OP_LENGTH: Final = 3 * LINE // 8


class Claim(IntEnum):
    """Places in what has been taken of a stretch; a line each, since others write there."""

    TAKEN = 0
    FROM_BEHIND = auto()


CLAIM_LENGTH: Final = LINE // 8


class Job(IntEnum):
    """Places in a job."""

    TOKENS = 0
    ASKED = auto()
    """Of them, the last so many are scored."""
    ROWS = auto()
    """Utterances' rows that take part."""
    SPANS = auto()
    """Of each row three numbers, `Span`."""
    OPS = auto()
    OP_COUNT = auto()
    THREADS = auto()
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
    ARRIVED = 2 * LINE // 8
    CLOCK = 3 * LINE // 8


JOB_LENGTH: Final = 4 * LINE // 8


class Call(IntEnum):
    """Places in how a thread is asked, a line each."""

    STATE = 0
    SLEPT = auto()
    """The state it was in when it was asked."""


CALL_LENGTH: Final = LINE // 8
ASLEEP, IDLE, ASKED = -1, 0, 1
"""States. Asking is one step up; taking a call, or falling asleep, one down."""


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


def scratch_bytes(widest: int, positions: int) -> int:
    """Of a thread, for so many inputs and remembered positions at most."""
    rounded = TOKENS_AT_ONCE * (widest + 8 * widest // BLOCK)
    return -(-(rounded + 4 * TOKENS_AT_ONCE * PER_GROUP + 4 * positions) // 4096) * 4096


def write_step(target: Target, *, head_width: int, rotary: bool) -> ir.Module:
    module = ir.Module("t3")
    linear = _write_linear(module, target)
    attend = _write_attend(module, head_width=head_width, rotary=rotary)
    let_in = ir.Function(module, ir.FunctionType(I32, []), YIELD)
    meet = _write_meeting(module, target, let_in)
    f = Function(module, "step", {"job": I64, "thread": I64}, arrays=("job",))
    job, thread = f.array("job"), f["thread"]
    ops, count = f.array_at(job[Job.OPS], I64), job[Job.OP_COUNT]
    with f.loop(count) as number:
        op = ops.begin(number * OP_LENGTH)
        with f.either(op[Op.KIND].equals(LINEAR)) as (product, attention):
            with product:
                f.call(linear, job, op, thread)
            with attention:
                f.call(attend, job, op, thread)
        f.call(meet, job, op)
    f.end()
    _write_summons(module)
    _write_service(module, target, f, let_in)
    return module


def _look(f: Function, target: Target, looks: Variable, let_in: ir.Function) -> None:
    """In vain."""
    looks.value += 1
    target.breathe(f)
    with f.when(looks.value > int(LOOK_MS * target.looks_a_ms)):
        f.builder.call(let_in, [])


def _write_summons(module: ir.Module) -> None:
    """Ask every thread but the first; note whom Python must wake."""
    f = Function(module, "summon", {"calls": I64, "threads": I64}, arrays=("calls",))
    with f.loop(f["threads"], start=1) as thread:
        call = f.array("calls").begin(thread * CALL_LENGTH)
        call[Call.SLEPT] = call.add_at_once(Call.STATE, 1)
    f.end()


def _write_service(module: ir.Module, target: Target, step: Function, let_in: ir.Function) -> None:
    """What a thread does that was asked: step after step, until none is asked for."""
    arguments = {"calls": I64, "job": I64, "thread": I64}
    f = Function(module, "serve", arguments, arrays=("calls", "job"))
    call = f.array("calls").begin(f["thread"] * CALL_LENGTH)
    with f.forever():
        f.call(step, f.array("job"), f["thread"])
        looks = f.variable(f.number(0))
        with f.forever():
            f.leave_if(call.seen(Call.STATE).equals(ASKED))
            f.leave_if(looks.value > int(STAY_MS * target.looks_a_ms))
            _look(f, target, looks, let_in)
        # Who was asked a moment ago takes the call, and who was not falls asleep: both are one step down.
        f.leave_if(call.add_at_once(Call.STATE, -1).equals(IDLE))
    f.end()


def _write_linear(module: ir.Module, target: Target) -> Function:
    roundings = [kernels.write_rounding(module, target, norm) for norm in range(3)]
    products = {rows: kernels.write_product(module, target, rows) for rows in ROWS}
    finishes = [kernels.write_finish(module, how) for how in range(4)]
    f = Function(module, "linear", {"job": I64, "op": I64, "thread": I64}, arrays=("job", "op"))
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
        done = f.variable(f.number(0))
        for several, function in products.items():
            with f.forever():
                row = done.value
                f.leave_if(row + several > rows)
                f.call(
                    function, group_codes, group_scales, codes.begin(row * width), steps.begin(row * blocks),
                    zeros.begin(row * blocks), product.begin(row * PER_GROUP), width,
                )  # fmt: skip
                done.value = row + several
        own_bias, own_out = all_bias.begin(group * PER_GROUP), out.begin(group * outputs)
        for number, finish in enumerate(finishes):
            with f.when(how.equals(number)):
                f.call(finish, product, own_bias, own_out, rows, stride)
    f.end()
    return f


def _write_attend(module: ir.Module, *, head_width: int, rotary: bool) -> Function:
    attention = kernels.write_attention(module, head_width=head_width, rotary=rotary)
    f = Function(module, "attend", {"job": I64, "op": I64, "thread": I64}, arrays=("job", "op"))
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


def _write_meeting(module: ir.Module, target: Target, let_in: ir.Function) -> Function:
    """Everybody waits until everybody is here; the last makes the operation ready for the next step."""
    f = Function(module, "meet", {"job": I64, "op": I64}, arrays=("job", "op"))
    job, op = f.array("job"), f.array("op")
    before = job.seen(Job.CLOCK)
    last = job.add_at_once(Job.ARRIVED, 1).equals(job[Job.THREADS] - 1)
    with f.either(last) as (i_am, i_am_not):
        with i_am:
            claims = f.array_at(op[Op.CLAIMS], I64)
            with f.loop(job[Job.THREADS]) as thread:
                for place in Claim:
                    claims[thread * CLAIM_LENGTH + place] = f.number(0)
            job[Job.ARRIVED] = f.number(0)
            job.show(Job.CLOCK, before + 1)
        with i_am_not:
            looks = f.variable(f.number(0))
            with f.forever():
                f.leave_if(job.seen(Job.CLOCK) > before)
                _look(f, target, looks, let_in)
    f.end()
    return f


class Crew:
    """Threads that do a job together; the one that asks is one of them."""

    def __init__(self, code: Code, job: NDArray[np.int64], threads: int) -> None:
        self._job, self._threads = job, threads
        self._calls = zeros((threads, CALL_LENGTH), np.int64)
        self._calls[:, Call.STATE] = ASLEEP
        self._step, self._summon = code.function("step", 2), code.function("summon", 2)
        self._beds = [_Bed() for _ in range(1, threads)]
        for number, bed in enumerate(self._beds, 1):
            # Not a method: this object shall be let go when nobody else has it.
            wait = partial(_wait_in, bed, code, self._calls, job, number)
            threading.Thread(target=wait, name=f"nightingale-t3-{number}", daemon=True).start()
        self.close = weakref.finalize(self, _dismiss, self._beds)
        """The threads end; no step can follow."""

    def run(self) -> None:
        """A step, whole."""
        self._summon(self._calls.ctypes.data, self._threads)
        for number, bed in enumerate(self._beds, 1):
            if self._calls[number, Call.SLEPT] == ASLEEP:
                bed.woken.release()
        self._step(self._job.ctypes.data, 0)


class _Bed:
    """Where a thread sleeps."""

    def __init__(self) -> None:
        self.woken = threading.Lock()
        self.woken.acquire()
        self.dismissed = False


def _wait_in(bed: _Bed, code: Code, calls: NDArray[np.int64], job: NDArray[np.int64], number: int) -> None:
    serve = code.function("serve", 3)
    while True:
        bed.woken.acquire()
        if bed.dismissed:
            return
        serve(calls.ctypes.data, job.ctypes.data, number)


def _dismiss(beds: list[_Bed]) -> None:
    for bed in beds:
        bed.dismissed = True
        bed.woken.release()
