"""A pool of threads that run a table of operations together in machine code.

A *job* is a list of operations that all threads run in the same order, with a barrier after each one:

    run(job, thread):
        for op in job.OPS:
            operations[op.OPCODE](job, op, thread)     # every thread computes its share
            barrier(job, op)

Jobs and operations are rows of 64-bit words in numpy arrays, addressed through the enums below: some words
that the pool itself reads, then arguments from FIRST_ARG on, which are integers or addresses. The calling
thread is thread 0. The others wait in `worker_loop`, where they spin for the next run for some time and then
park in Python.

Why it is fast: a step of T3 is many short operations. Between two of them a thread waits by spinning on one
cache line; neither Python nor the operating system is involved. docs/internals/kernels.md describes who
writes which word, and with which memory ordering.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from nightingale.backends.cpu.kernels.jit import YIELD_SYMBOL, CompiledModule
from nightingale.backends.cpu.kernels.llvm_builder import I32, I64, WORDS, Function, Pointer, Value, Variable
from nightingale.backends.cpu.kernels.target import Target
from nightingale.models.layers.aligned_arrays import page_aligned_zeros

Words = NDArray[np.int64]
SPIN_MS_BEFORE_YIELD: Final = 0.1
LINE: Final = 8
"""Words of a cache line. Words that different threads write lie in different lines."""
OP_WORDS, JOB_WORDS = 4 * LINE, 5 * LINE
FIRST_ARG: Final = 5


class OpField(IntEnum):
    """Words of an operation that the pool reads."""

    OPCODE = 0
    CLAIMS = 1
    """Address of (threads, LINE) words: the counters of claimed work."""


class JobField(IntEnum):
    """Words of a job that the pool reads."""

    OPS = 0
    OP_COUNT = 1
    THREADS = 2
    SCRATCH = 3
    """Address of (threads, SCRATCH_BYTES) bytes that only the thread itself uses."""
    SCRATCH_BYTES = 4
    ARRIVED = 3 * LINE
    """Threads that have reached the current barrier."""
    PHASE = 4 * LINE
    """Barriers that all threads have passed."""


class ClaimField(IntEnum):
    """Words of a thread's counters of claimed work; the barrier sets them to zero."""

    TAKEN = 0
    """Units of the thread's share that were claimed, by itself or by others."""
    STOLEN = 1
    """Those of them that others claimed, from the end of the share."""


class WorkerField(IntEnum):
    """Words of a worker."""

    STATE = 0
    STATE_BEFORE = 1
    """The state in which the latest `wake` found it."""


class WorkerState(IntEnum):
    """A request adds one; a worker subtracts one when it accepts a request or parks."""

    PARKED = -1
    SPINNING = 0
    REQUESTED = 1


class Arg(IntEnum):
    """Base of the enums of the arguments of an operation or a job: members are numbered from FIRST_ARG on.

    I64 declares an integer, WORDS a pointer to 64-bit words, any other type a pointer to elements of it.
    """

    element: Any

    def __new__(cls, element: Any) -> Arg:
        member = int.__new__(cls, FIRST_ARG + len(cls.__members__))
        member._value_, member.element = int(member), element
        return member


class Operation(Function):
    """A function of the job, the operation and the thread's number, while it is being emitted."""

    def __init__(self, module: ir.Module, name: str) -> None:
        super().__init__(module, name, {"job": WORDS, "op": WORDS, "thread": I64})
        self.job, self.op, self.thread = self.params
        self.threads: Value = self.job[JobField.THREADS]

    @property
    def claims(self) -> Pointer:
        return self.pointer_at(self.op[OpField.CLAIMS], I64)

    @property
    def scratch(self) -> Pointer:
        """Memory that only this thread uses."""
        address = self.job[JobField.SCRATCH] + self.job[JobField.SCRATCH_BYTES] * self.thread
        return self.pointer_at(address, I32)

    def args(self, names: type[Arg], words: Pointer | None = None) -> SimpleNamespace:
        """Load the arguments of the operation, or those in `words`; their names are in lower case."""
        return load_args(self, names, words or self.op)

    def thread_range(self, count: Value, unit: int = 1) -> tuple[Value, Value]:
        """Return begin and end of this thread's share of `count`, in whole units."""
        units = (count + (unit - 1)) // unit
        begin, end = units * self.thread // self.threads, units * (self.thread + 1) // self.threads
        return begin * unit, (end * unit).min(count)


def load_args(f: Function, names: type[Arg], words: Pointer) -> SimpleNamespace:
    """Load the arguments in the words of an operation; their names are in lower case."""
    loaded: dict[str, Value | Pointer] = {}
    for arg in names:
        value = words[arg]
        element = I64 if arg.element is WORDS else arg.element
        loaded[arg.name.lower()] = value if arg.element == I64 else f.pointer_at(value, element)
    return SimpleNamespace(**loaded)


def emit_thread_pool(
    module: ir.Module, target: Target, operations: Mapping[Any, Operation], *, spin_ms: float
) -> None:
    """Emit the functions that `ThreadPool` calls, for operations by opcode. Workers park after `spin_ms`."""
    ir.Function(module, ir.FunctionType(I32, []), YIELD_SYMBOL)
    barrier = _emit_barrier(module, target)
    f = Function(module, "run", {"job": WORDS, "thread": I64})
    job, thread = f.params
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
    _emit_worker_loop(module, target, f, max_spins=int(spin_ms * target.spins_per_ms))


def _emit_spin(f: Function, target: Target, spins: Variable) -> None:
    spins.value += 1
    target.emit_pause(f)
    with f.if_then(spins.value > int(SPIN_MS_BEFORE_YIELD * target.spins_per_ms)):
        f.builder.call(f.module.get_global(YIELD_SYMBOL), [])


def _emit_wake(module: ir.Module) -> None:
    """Emit wake(workers, threads): request a run of every worker, and note which of them were parked."""
    f = Function(module, "wake", {"workers": WORDS, "threads": I64})
    workers, threads = f.params
    with f.loop(threads, start=1) as thread:
        worker = workers.offset(thread * LINE)
        worker[WorkerField.STATE_BEFORE] = worker.fetch_add(WorkerField.STATE, 1)
    f.ret()


def _emit_worker_loop(module: ir.Module, target: Target, run: Function, *, max_spins: int) -> None:
    """Emit worker_loop(workers, job, thread): run, spin for the next request, and return in order to park."""
    f = Function(module, "worker_loop", {"workers": WORDS, "job": WORDS, "thread": I64})
    workers, job, thread = f.params
    worker = workers.offset(thread * LINE)
    with f.loop_forever():
        f.call(run, job, thread)
        spins = f.variable(f.const(0))
        with f.loop_forever():
            f.break_if(worker.load_acquire(WorkerField.STATE).equals(WorkerState.REQUESTED))
            f.break_if(spins.value > max_spins)
            _emit_spin(f, target, spins)
        # One subtraction either accepts a request, even one that came after the last look, or parks.
        f.break_if(worker.fetch_add(WorkerField.STATE, -1).equals(WorkerState.SPINNING))
    f.ret()


def _emit_barrier(module: ir.Module, target: Target) -> Function:
    """Emit barrier(job, op): wait for all threads; the last one resets the operation for the next run."""
    f = Function(module, "barrier", {"job": WORDS, "op": WORDS})
    job, op = f.params
    phase = job.load_acquire(JobField.PHASE)
    is_last = job.fetch_add(JobField.ARRIVED, 1).equals(job[JobField.THREADS] - 1)
    with f.if_else(is_last) as (last, others):
        with last:
            claims = f.pointer_at(op[OpField.CLAIMS], I64)
            with f.loop(job[JobField.THREADS]) as thread:
                for field in ClaimField:
                    claims[thread * LINE + field] = f.const(0)
            job[JobField.ARRIVED] = f.const(0)
            job.exchange_release(JobField.PHASE, phase + 1)
        with others:
            spins = f.variable(f.const(0))
            with f.loop_forever():
                f.break_if(job.load_acquire(JobField.PHASE) > phase)
                _emit_spin(f, target, spins)
    return f.ret()


class ThreadPool:
    """A job with its operations, and the threads that run it; the caller of `run` is one of them."""

    def __init__(self, module: CompiledModule, threads: int, *, max_ops: int) -> None:
        """Start `threads` - 1 parked threads."""
        shapes = (JOB_WORDS,), (max_ops, OP_WORDS), (max_ops, threads, LINE), (threads, LINE)
        self.job, self._ops, self._claims, self._workers = (
            page_aligned_zeros(shape, np.int64) for shape in shapes
        )
        self.job[JobField.OPS], self.job[JobField.THREADS] = address_of(self._ops), threads
        self._ops[:, OpField.CLAIMS] = [address_of(own) for own in self._claims]
        self._workers[:, WorkerField.STATE] = WorkerState.PARKED
        self._threads, self._scratch = threads, np.empty(0, np.int8)
        # Addresses and views are kept, because numpy takes as long to return one as an operation takes.
        self._addresses = address_of(self._workers), address_of(self.job)
        self._op_views = [row.data for row in self._ops]
        self._run, self._wake = module.function("run", 2), module.function("wake", 2)
        self._parked: list[SimpleQueue[bool]] = [SimpleQueue() for _ in range(1, threads)]
        for number, parked in enumerate(self._parked, 1):
            # Not a method: a reference to this object would keep it from being collected.
            work = partial(_work, parked, module, self._workers, self.job, number)
            threading.Thread(target=work, name=f"nightingale-kernel-{number}", daemon=True).start()
            weakref.finalize(self, parked.put, False)

    def set_operations(self, *operations: tuple[int, Mapping[Any, Any]]) -> None:
        """Write opcodes and arguments for the next runs; words that are not named keep their values."""
        for row, (opcode, args) in zip(self._op_views, operations, strict=False):
            row[OpField.OPCODE] = opcode
            write_words(row, args)
        self.job[JobField.OP_COUNT] = len(operations)

    def set_table(self, table: Words) -> None:
        """Write operations from `operation_table` for the next runs."""
        count = len(table)
        self._ops[:count, OpField.OPCODE] = table[:, OpField.OPCODE]
        self._ops[:count, FIRST_ARG:] = table[:, FIRST_ARG:]
        self.job[JobField.OP_COUNT] = count

    def reserve_scratch(self, thread_bytes: int) -> None:
        """Give each thread at least so many bytes of scratch memory, in pages of its own."""
        if self.job[JobField.SCRATCH_BYTES] < thread_bytes:
            pages = -(-2 * thread_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            self._scratch = page_aligned_zeros((self._threads, pages), np.int8)
            self.job[JobField.SCRATCH], self.job[JobField.SCRATCH_BYTES] = address_of(self._scratch), pages

    def run(self, operations: range | None = None) -> None:
        """Run all operations in their order; or those at consecutive places, to which later runs keep."""
        workers, job = self._addresses
        if operations is not None:
            self.job[JobField.OPS] = address_of(self._ops[operations.start :])
            self.job[JobField.OP_COUNT] = len(operations)
        self._wake(workers, self._threads)
        for number, parked in enumerate(self._parked, 1):
            if self._workers[number, WorkerField.STATE_BEFORE] == WorkerState.PARKED:
                parked.put(True)
        self._run(job, 0)


def _work(parked: SimpleQueue[bool], module: CompiledModule, workers: Words, job: Words, number: int) -> None:
    """Park until True arrives, work until `worker_loop` returns, and repeat; end when False arrives."""
    worker_loop = module.function("worker_loop", 3)
    while parked.get():
        worker_loop(address_of(workers), address_of(job), number)


def write_words(row: Words | memoryview, words: Mapping[Any, Any]) -> None:
    """Write integers, and the addresses of arrays and tensors, into a job or an operation."""
    for field, value in words.items():
        if isinstance(value, int):
            row[field] = value
        else:
            row[field] = address_of(value) if isinstance(value, np.ndarray) else value.data_ptr()


def operation_table(operations: Sequence[tuple[int, Mapping[Any, Any]]]) -> Words:
    """Return opcodes and arguments as (operations, OP_WORDS) words, to be written many times by `set_table`."""
    table = np.zeros((len(operations), OP_WORDS), np.int64)
    for row, (opcode, args) in zip(table, operations, strict=True):
        row[OpField.OPCODE] = opcode
        write_words(row, args)
    return table


def address_of(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)
