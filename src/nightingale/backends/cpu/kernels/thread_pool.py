"""A pool of threads that run a table of operations together in machine code.

A *job* is a list of operations that all threads run in the same order, with a barrier after each one:

    run(job, thread):
        for op in job.ops:
            operations[op.OPCODE](job, op, thread)     # every thread computes its share
            barrier(job, op)

Jobs and operations are rows of 64-bit words in numpy arrays, addressed through the enums below: a few words
that the pool itself reads, then arguments, from `FIRST_ARG` on. An argument is an integer or an address.
The calling thread is thread 0. The others wait in `worker_loop`, where they spin for the next run for some
time and then park in Python on a lock.

Why it is fast: a step of T3 is many short operations. Between two of them a thread waits by spinning on one
cache line; neither Python nor the operating system is involved. docs/internals/cpu-kernels.md describes who
writes which word, and with which memory ordering.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from enum import IntEnum
from functools import partial
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from nightingale.backends.cpu.kernels.jit import YIELD_SYMBOL, CompiledModule
from nightingale.backends.cpu.kernels.llvm_builder import I32, I64, Function, IRType, Pointer, Value, Variable
from nightingale.backends.cpu.kernels.target import Target
from nightingale.backends.shared.aligned_arrays import page_aligned_zeros

SPIN_MS_BEFORE_YIELD: Final = 0.1
"""A thread that has spun for so long yields its core before each further look."""
LINE_WORDS: Final = 8
"""64-bit words of a cache line. Words that different threads write lie in different lines."""
FIRST_ARG: Final = 3
OP_WORDS: Final = 3 * LINE_WORDS
JOB_WORDS: Final = 5 * LINE_WORDS
CLAIM_WORDS: Final = LINE_WORDS
WORKER_WORDS: Final = LINE_WORDS


class OpField(IntEnum):
    """Words of an operation that the pool reads."""

    OPCODE = 0
    CLAIMS = 1
    """Address of (threads, CLAIM_WORDS) counters, or 0 if the operation needs none."""


class JobField(IntEnum):
    """Words of a job that the pool reads."""

    OPS = 0
    OP_COUNT = 1
    THREADS = 2
    ARRIVED = 3 * LINE_WORDS
    """Threads that have reached the current barrier."""
    PHASE = 4 * LINE_WORDS
    """Barriers that all threads have passed."""


class ClaimField(IntEnum):
    """Words of a thread's counters of claimed work, a cache line each; the barrier sets them to zero."""

    TAKEN = 0
    """Units of the thread's share that were claimed, by itself or by others."""
    STOLEN = 1
    """Those of them that others claimed, from the end of the share."""


class WorkerField(IntEnum):
    """Words of a worker, a cache line each."""

    STATE = 0
    STATE_BEFORE = 1
    """The state in which the latest `wake` found it."""


class WorkerState(IntEnum):
    """A request adds one; a worker subtracts one when it accepts a request or parks."""

    PARKED = -1
    SPINNING = 0
    REQUESTED = 1


class Arg(IntEnum):
    """Base of the enums of arguments: members are numbered from FIRST_ARG on and declared by their type.

    I64 declares an integer, any other type a pointer to elements of it.
    """

    element: IRType

    def __new__(cls, element: IRType) -> Arg:
        index = FIRST_ARG + len(cls.__members__)
        member = int.__new__(cls, index)
        member._value_, member.element = index, element
        return member


class OpArg(Arg):
    """Base of the enums of an operation's arguments."""


class JobArg(Arg):
    """Base of the enums of a job's arguments."""


class Operation(Function):
    """An operation while it is being emitted: a function of the job, the operation and the thread's number."""

    def __init__(self, module: ir.Module, name: str) -> None:
        super().__init__(module, name, {"job": I64, "op": I64, "thread": I64}, tables=("job", "op"))

    @property
    def threads(self) -> Value:
        return self.pointer("job")[JobField.THREADS]

    @property
    def claims(self) -> Pointer:
        return self.pointer_at(self.pointer("op")[OpField.CLAIMS], I64)

    def arg(self, name: Arg) -> Value:
        """Load an argument; a pointer is loaded as the integer that it is."""
        return self.pointer("job" if isinstance(name, JobArg) else "op")[name]

    def arg_pointer(self, name: Arg) -> Pointer:
        return self.pointer_at(self.arg(name), name.element)

    def thread_range(self, count: Value, unit: int = 1) -> tuple[Value, Value]:
        """Return begin and end of this thread's share of `count`, in whole units."""
        units, threads = (count + (unit - 1)) // unit, self.threads
        begin, end = units * self["thread"] // threads, units * (self["thread"] + 1) // threads
        return begin * unit, (end * unit).min(count)


def emit_thread_pool(
    module: ir.Module, target: Target, operations: Mapping[int, Operation], *, spin_ms: float
) -> None:
    """Emit the functions that `ThreadPool` calls.

    Args:
        module: The module of the operations.
        target: The machine to emit for.
        operations: By opcode. An unknown opcode does nothing.
        spin_ms: How long a thread spins for the next run before it parks; to wake it takes much longer.
    """
    yield_core = ir.Function(module, ir.FunctionType(I32, []), YIELD_SYMBOL)
    barrier = _emit_barrier(module, target, yield_core)
    f = Function(module, "run", {"job": I64, "thread": I64}, tables=("job",))
    job, thread = f.pointer("job"), f["thread"]
    ops, count = f.pointer_at(job[JobField.OPS], I64), job[JobField.OP_COUNT]
    with f.loop(count) as number:
        op = ops.offset(number * OP_WORDS)
        opcode = op[OpField.OPCODE]
        for known, operation in operations.items():
            with f.if_then(opcode.equals(known)):
                f.call(operation, job, op, thread)
        f.call(barrier, job, op)
    f.ret()
    _emit_wake(module)
    _emit_worker_loop(module, target, f, yield_core, int(spin_ms * target.spins_per_ms))


def _emit_spin(f: Function, target: Target, spins: Variable, yield_core: ir.Function) -> None:
    spins.value += 1
    target.emit_pause(f)
    with f.if_then(spins.value > int(SPIN_MS_BEFORE_YIELD * target.spins_per_ms)):
        f.builder.call(yield_core, [])


def _emit_wake(module: ir.Module) -> None:
    """Emit wake(workers, threads): request a run of every worker, and note which of them were parked."""
    f = Function(module, "wake", {"workers": I64, "threads": I64}, tables=("workers",))
    with f.loop(f["threads"], start=1) as thread:
        worker = f.pointer("workers").offset(thread * WORKER_WORDS)
        worker[WorkerField.STATE_BEFORE] = worker.fetch_add(WorkerField.STATE, 1)
    f.ret()


def _emit_worker_loop(
    module: ir.Module, target: Target, run: Function, yield_core: ir.Function, max_spins: int
) -> None:
    """Emit worker_loop(workers, job, thread): run, spin for the next request, and return in order to park."""
    params = {"workers": I64, "job": I64, "thread": I64}
    f = Function(module, "worker_loop", params, tables=("workers", "job"))
    worker = f.pointer("workers").offset(f["thread"] * WORKER_WORDS)
    with f.loop_forever():
        f.call(run, f.pointer("job"), f["thread"])
        spins = f.variable(f.const(0))
        with f.loop_forever():
            f.break_if(worker.load_acquire(WorkerField.STATE).equals(WorkerState.REQUESTED))
            f.break_if(spins.value > max_spins)
            _emit_spin(f, target, spins, yield_core)
        # One subtraction either accepts a request, even one that came after the last look, or parks.
        f.break_if(worker.fetch_add(WorkerField.STATE, -1).equals(WorkerState.SPINNING))
    f.ret()


def _emit_barrier(module: ir.Module, target: Target, yield_core: ir.Function) -> Function:
    """Emit barrier(job, op): wait for all threads; the last one resets the operation for the next run."""
    f = Function(module, "barrier", {"job": I64, "op": I64}, tables=("job", "op"))
    job, op = f.pointer("job"), f.pointer("op")
    phase = job.load_acquire(JobField.PHASE)
    is_last = job.fetch_add(JobField.ARRIVED, 1).equals(job[JobField.THREADS] - 1)
    with f.if_else(is_last) as (last, others):
        with last:
            claims, has_claims = f.pointer_at(op[OpField.CLAIMS], I64), op[OpField.CLAIMS] > 0
            with f.if_then(has_claims), f.loop(job[JobField.THREADS]) as thread:
                for field in ClaimField:
                    claims[thread * CLAIM_WORDS + field] = f.const(0)
            job[JobField.ARRIVED] = f.const(0)
            job.exchange_release(JobField.PHASE, phase + 1)
        with others:
            spins = f.variable(f.const(0))
            with f.loop_forever():
                f.break_if(job.load_acquire(JobField.PHASE) > phase)
                _emit_spin(f, target, spins, yield_core)
    f.ret()
    return f


class ThreadPool:
    """Threads that run a job together; the caller of `run` is one of them."""

    def __init__(self, module: CompiledModule, job: NDArray[np.int64], threads: int) -> None:
        self._workers, self._threads = page_aligned_zeros((threads, WORKER_WORDS), np.int64), threads
        self._workers[:, WorkerField.STATE] = WorkerState.PARKED
        # Addresses are kept: numpy takes as long to return one as an operation takes.
        self._job, self._addresses = job, (address_of(self._workers), address_of(job))
        self._run, self._wake = module.function("run", 2), module.function("wake", 2)
        self._parked = [_ParkedThread() for _ in range(1, threads)]
        for number, parked in enumerate(self._parked, 1):
            # Not a method: a reference to this object would keep it from being collected.
            work = partial(_work, parked, module, self._workers, job, number)
            threading.Thread(target=work, name=f"nightingale-kernel-{number}", daemon=True).start()
        self.close = weakref.finalize(self, _stop, self._parked)
        """End the threads. Nothing can be run afterwards."""

    def run(self) -> None:
        """Run all operations of the job in their order."""
        workers, job = self._addresses
        self._wake(workers, self._threads)
        for number, parked in enumerate(self._parked, 1):
            if self._workers[number, WorkerField.STATE_BEFORE] == WorkerState.PARKED:
                parked.wake.release()
        self._run(job, 0)


class _ParkedThread:
    """What a worker waits on while it is parked: a lock that is released to wake it."""

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
        self.stopped = False


def _work(
    parked: _ParkedThread,
    module: CompiledModule,
    workers: NDArray[np.int64],
    job: NDArray[np.int64],
    number: int,
) -> None:
    worker_loop = module.function("worker_loop", 3)
    while True:
        parked.wake.acquire()
        if parked.stopped:
            return
        worker_loop(address_of(workers), address_of(job), number)


def _stop(threads: list[_ParkedThread]) -> None:
    for parked in threads:
        parked.stopped = True
        parked.wake.release()


def address_of(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


def write_fields(row: NDArray[np.int64], values: Mapping[Any, int]) -> None:
    """Write words of a job or an operation, by their enums."""
    for field, value in values.items():
        row[field] = value
