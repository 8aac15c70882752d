"""A function of fixed tensors, recorded once as a CUDA graph and replayed.

Why it helps here. A step of T3 is some five hundred small kernels, a guided flow eight thousand. Launched one
by one from Python they keep the GPU waiting; a graph is launched as one.

What it asks. The same shapes each time, and nothing in the function that the host must wait for. So inputs
are copied into buffers that never move, and another shape is refused in words, never recomputed silently.

The twin. `how="eager"` calls the same function on the same buffers, on any device: whatever a graph is used
for can be run, and tested, without a GPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from nightingale.errors import ConfigError, DeviceError

Result = TypeVar("Result")
How = Literal["graph", "eager"]
WARMUPS = 2
"""Runs before the recording: libraries make their handles and plans, and compilers compile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReport:
    """What was done for one function."""

    name: str
    how: How
    shapes: Mapping[str, tuple[int, ...]]
    seconds: float
    """What the warm-up and the recording took."""


def how_on(device: torch.device) -> How:
    """Graphs where there are any."""
    return "graph" if device.type == "cuda" else "eager"


RENDERING, RECORDING = -1, -2
"""Priorities of streams, lower is sooner; what T3 runs on has 0. RenderStream goes first: its kernels are small
and many, and each would wait for one of T3's, which fill the GPU. Nothing runs on what only records."""
POOL = 32
"""So many streams of a priority there are; torch hands them out in turn, and again."""
_CHOOSING = threading.RLock()


class OwnStream:
    """A stream, for as long as this is held.

    Not the stream itself is watched by a weak reference: those of torch.cuda.Stream are not cleared when it
    ends (pytorch/pytorch#183403, torch 2.9 to 2.11), and the next sweep of Python's garbage, or the end of
    the process, follows them into freed memory.
    """

    __slots__ = ("__weakref__", "stream")

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream


_OWNED: WeakValueDictionary[int, OwnStream] = WeakValueDictionary()


def own_stream(device: torch.device, priority: int) -> OwnStream:
    """One that nobody else was given, for as long as it is held.

    Why it must be: libraries keep a workspace for each stream, and a graph goes on using that of the stream
    it was recorded on, wherever it is replayed. Two graphs of one such stream, replayed at the same time,
    would write their partial sums over each other. So what may run beside something else records on its own
    stream, and holds it for as long as it lives.
    """
    with _CHOOSING:
        for _ in range(POOL):
            held = OwnStream(torch.cuda.Stream(device, priority=priority))  # type: ignore[no-untyped-call]
            if _OWNED.setdefault(held.stream.cuda_stream, held) is held:
                return held
    raise DeviceError(
        "no CUDA stream is left",
        got=f"{POOL} that are in use",
        allowed="one for each engine",
        fix="Close some of the engines in this process.",
    )


@contextmanager
def reproducible() -> Iterator[None]:
    """In here cuDNN is asked only for algorithms that add up in one order.

    Of a transposed convolution it has some that add by atomics, in whatever order blocks happen to end: for
    the same input, HiFT's graphs gave other last bits from time to time. A graph keeps the algorithms it was
    recorded with, so this is needed while it is recorded. The switch is the process's: it is put back, one
    thread at a time, and whoever convolves meanwhile gets the same promise.
    """
    with _CHOOSING:
        before = torch.backends.cudnn.deterministic
        torch.backends.cudnn.deterministic = True
        try:
            yield
        finally:
            torch.backends.cudnn.deterministic = before


def send(values: Tensor, device: torch.device) -> Tensor:
    """To the device, without waiting for what it does: the copy is made in its turn."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


class Replay(Generic[Result]):
    """`function` over buffers of its own: call it with fresh inputs, of the shapes it was made with.

    What it gives lives in buffers too, and is overwritten by the next call: use it, or copy it, before.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Result],
        inputs: Mapping[str, Tensor],
        *,
        how: How,
        device: torch.device,
        pool: Any = None,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """inputs: examples, whose values the warm-up sees. pool: graphs that never run at the same time may
        share the memory of their intermediate values (`torch.cuda.graph_pool_handle`). stream: which records;
        None is the current one. What may run at the same time needs two (`own_stream`)."""
        if how == "graph" and (device.type != "cuda" or not torch.cuda.is_available()):
            raise DeviceError(
                f"{name!r} cannot be recorded as a CUDA graph",
                got=f"the device {str(device)!r}",
                allowed="a CUDA device that this build of torch sees",
                fix="Use the eager twin, or another profile.",
            )
        self.name = name
        self._function = function
        self._graph: torch.cuda.CUDAGraph | None = None
        self._held: OwnStream | None = None
        self._result: Result | None = None
        started = time.perf_counter()
        with torch.inference_mode():
            self._buffers = {key: value.to(device, copy=True) for key, value in inputs.items()}
            if how == "graph":
                self._record(device, pool, stream)
        self.report = GraphReport(
            name=name,
            how=how,
            shapes={key: tuple(value.shape) for key, value in self._buffers.items()},
            seconds=time.perf_counter() - started,
        )

    def _record(self, device: torch.device, pool: Any, stream: torch.cuda.Stream | None) -> None:
        current = torch.cuda.current_stream(device)
        if stream is None:
            # The default stream cannot record.
            default = torch.cuda.default_stream(device)
            if current == default:
                self._held = own_stream(device, RECORDING)  # so that nobody else is given it
            stream = self._held.stream if self._held else current
        stream.wait_stream(current)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream), reproducible():
            for _ in range(WARMUPS):
                self._function(**self._buffers)
            torch.cuda.synchronize(device)
            # Not `torch.cuda.graph`, which sweeps the process's memory each time: there are many graphs.
            # Other threads may go on using the device, as when a voice is made while a graph is recorded.
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self._result = self._function(**self._buffers)
            finally:
                self._graph.capture_end()
        current.wait_stream(stream)

    @torch.inference_mode()
    def __call__(self, **inputs: Tensor) -> Result:
        """Inputs that are left out keep the values they had.

        Hand-over: copies in, the graph, and whatever the caller does with the result are all launched on the
        caller's current stream, and so happen in that order. Nothing is read or written by the host. A caller
        who always comes on the same stream can neither overwrite inputs that are still read nor results that
        are still copied; one who changes streams must make the later one wait.
        """
        for key, value in inputs.items():
            self._buffer(key, value).copy_(value, non_blocking=True)
        if self._graph is None:
            return self._function(**self._buffers)
        self._graph.replay()
        return self._result  # type: ignore[return-value]

    def _buffer(self, key: str, value: Tensor) -> Tensor:
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            raise ConfigError(
                f"{self.name!r} was recorded for other inputs",
                got=f"{key} {_spoken(value)}",
                allowed=", ".join(f"{name} {_spoken(b)}" for name, b in self._buffers.items()) or "none",
                fix="Pad the input to these shapes, or record it for the new ones.",
            )
        return buffer


def _spoken(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def bucket_for(wanted: int, buckets: tuple[int, ...], *, what: str) -> int:
    """The smallest bucket that holds so many; more than the largest is refused."""
    for bucket in buckets:
        if wanted <= bucket:
            return bucket
    raise ConfigError(
        f"more {what} than the graphs were made for",
        got=str(wanted),
        allowed=f"at most {buckets[-1]}",
        fix="Use the plain path for this one, or plan larger buckets.",
    )
