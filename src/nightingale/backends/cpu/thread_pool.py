"""Threads that do a list of operations together, in machine code, and wait for each other by looking.

    crew = Crew(code, job, threads)
    crew.run()

An operation is a row of whole numbers: which it is (`Op.KIND`), and whatever it needs, addresses and sizes. A
job is one too: where its operations lie, what differs from run to run, and where the threads meet.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from enum import IntEnum, auto
from functools import partial
from typing import Final

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from nightingale.backends.shared.t3_inputs import zeros
from nightingale.backends.cpu.target import YIELD, Code, Target
from nightingale.backends.cpu.llvm_builder import I32, I64, Function, Value, Variable

LOOK_MS: Final = 0.1
"""Of looking at what does not change, before others are let in."""
LINE: Final = 64
"""Bytes that one core cannot write while another reads them."""


class Op(IntEnum):
    """Places in every operation."""

    KIND = 0
    CLAIMS = auto()
    """Of each thread, `Claim`; 0, if the operation has none."""
    FACTS = auto()
    """The first of its own."""


OP_LENGTH: Final = 3 * LINE // 8


class Claim(IntEnum):
    """Places in what has been taken of a thread's share; a line each, since others write there."""

    TAKEN = 0
    FROM_BEHIND = auto()


CLAIM_LENGTH: Final = LINE // 8


class Job(IntEnum):
    """Places in every job."""

    OPS = 0
    OP_COUNT = auto()
    THREADS = auto()
    FACTS = auto()
    """The first of its own."""
    ARRIVED = 3 * LINE // 8
    CLOCK = 4 * LINE // 8


JOB_LENGTH: Final = 5 * LINE // 8


class Call(IntEnum):
    """Places in how a thread is asked, a line each."""

    STATE = 0
    SLEPT = auto()
    """The state it was in when it was asked."""


CALL_LENGTH: Final = LINE // 8
ASLEEP, IDLE, ASKED = -1, 0, 1
"""States. Asking is one step up; taking a call, or falling asleep, one down."""


def write_crew(module: ir.Module, target: Target, kinds: Sequence[Function], *, stay_ms: float) -> None:
    """What runs operations. kinds: of each kind a function of the job, the operation and the thread. stay_ms:
    that a thread looks for the next run before it sleeps, since to wake it takes long."""
    let_in = ir.Function(module, ir.FunctionType(I32, []), YIELD)
    meet = _write_meeting(module, target, let_in)
    f = Function(module, "run", {"job": I64, "thread": I64}, arrays=("job",))
    job, thread = f.array("job"), f["thread"]
    ops, count = f.array_at(job[Job.OPS], I64), job[Job.OP_COUNT]
    with f.loop(count) as number:
        op = ops.begin(number * OP_LENGTH)
        kind = op[Op.KIND]
        for its, function in enumerate(kinds):
            with f.when(kind.equals(its)):
                f.call(function, job, op, thread)
        f.call(meet, job, op)
    f.end()
    _write_summons(module)
    _write_service(module, target, f, let_in, int(stay_ms * target.looks_a_ms))


def operation(module: ir.Module, name: str) -> Function:
    """A kind, to be written."""
    return Function(module, name, {"job": I64, "op": I64, "thread": I64}, arrays=("job", "op"))


def share(f: Function, count: Value, unit: int = 1) -> tuple[Value, Value]:
    """Where a thread's part of so many begins and ends."""
    units, threads = (count + (unit - 1)) // unit, f.array("job")[Job.THREADS]
    begin, end = units * f["thread"] // threads, units * (f["thread"] + 1) // threads
    return begin * unit, not_past(end * unit, count)


def not_past(value: Value, limit: Value) -> Value:
    return (value > limit).choose(limit, value)


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


def _write_service(
    module: ir.Module, target: Target, run: Function, let_in: ir.Function, most_looks: int
) -> None:
    """What a thread does that was asked: run after run, until none is asked for."""
    arguments = {"calls": I64, "job": I64, "thread": I64}
    f = Function(module, "serve", arguments, arrays=("calls", "job"))
    call = f.array("calls").begin(f["thread"] * CALL_LENGTH)
    with f.forever():
        f.call(run, f.array("job"), f["thread"])
        looks = f.variable(f.number(0))
        with f.forever():
            f.leave_if(call.seen(Call.STATE).equals(ASKED))
            f.leave_if(looks.value > most_looks)
            _look(f, target, looks, let_in)
        # Who was asked a moment ago takes the call, and who was not falls asleep: both are one step down.
        f.leave_if(call.add_at_once(Call.STATE, -1).equals(IDLE))
    f.end()


def _write_meeting(module: ir.Module, target: Target, let_in: ir.Function) -> Function:
    """Everybody waits until everybody is here; the last makes the operation ready for the next run."""
    f = Function(module, "meet", {"job": I64, "op": I64}, arrays=("job", "op"))
    job, op = f.array("job"), f.array("op")
    before = job.seen(Job.CLOCK)
    last = job.add_at_once(Job.ARRIVED, 1).equals(job[Job.THREADS] - 1)
    with f.either(last) as (i_am, i_am_not):
        with i_am:
            claims, taken = f.array_at(op[Op.CLAIMS], I64), op[Op.CLAIMS] > 0
            with f.when(taken), f.loop(job[Job.THREADS]) as thread:
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
        self._calls, self._threads = zeros((threads, CALL_LENGTH), np.int64), threads
        # Numbers, and what they point to: numpy takes as long to tell an address as an operation takes.
        self._held, self._addresses = job, (self._calls.ctypes.data, job.ctypes.data)
        self._calls[:, Call.STATE] = ASLEEP
        self._run, self._summon = code.function("run", 2), code.function("summon", 2)
        self._beds = [_Bed() for _ in range(1, threads)]
        for number, bed in enumerate(self._beds, 1):
            # Not a method: this object shall be let go when nobody else has it.
            wait = partial(_wait_in, bed, code, self._calls, job, number)
            threading.Thread(target=wait, name=f"nightingale-crew-{number}", daemon=True).start()
        self.close = weakref.finalize(self, _dismiss, self._beds)
        """The threads end; nothing can be run after it."""

    def run(self) -> None:
        """All operations, in their order."""
        calls, job = self._addresses
        self._summon(calls, self._threads)
        for number, bed in enumerate(self._beds, 1):
            if self._calls[number, Call.SLEPT] == ASLEEP:
                bed.woken.release()
        self._run(job, 0)


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
