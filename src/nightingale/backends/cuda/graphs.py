"""Functions of fixed tensors, captured once as CUDA graphs and replayed.

A T3 step is about five hundred small kernels, a guided flow eight thousand. Launched one by one from Python
they leave the GPU idle; a graph is one launch. It needs the same shapes each time and nothing that the host
has to wait for. So inputs are copied into buffers that never move, and other shapes are refused.

With mode "eager" the same function is called on the same buffers, on any device: whatever uses a graph runs,
and is tested, without a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Literal, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from nightingale.errors import ConfigError, DeviceError

Result = TypeVar("Result")
GraphMode = Literal["graph", "eager"]
WARMUP_RUNS = 2
"""Runs before the capture: libraries create handles and plans, and compilers compile."""
RENDER_PRIORITY, CAPTURE_PRIORITY = -1, -2
"""Priorities of streams, lower is sooner; T3 runs at 0. Rendering goes first: its kernels are small and many,
and each would wait for one of T3's, which fill the GPU. Nothing runs on a stream that only captures."""
STREAMS_PER_PRIORITY = 32
"""torch has so many streams of each priority and hands them out in turn."""
_LOCK = threading.RLock()


def default_mode(device: torch.device) -> GraphMode:
    return "graph" if device.type == "cuda" else "eager"


def graph_pool(mode: GraphMode) -> Any:
    """Return a new memory pool for graphs that never run at the same time."""
    return torch.cuda.graph_pool_handle() if mode == "graph" else None


class ReservedStream:
    """A stream that is reserved for as long as this object lives.

    A weak reference to the stream itself would not do: those to torch.cuda.Stream are not cleared when it is
    freed (pytorch/pytorch#183403, torch 2.9 to 2.11), and the garbage collector follows them into freed
    memory.
    """

    __slots__ = ("__weakref__", "stream")

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream


_RESERVED: WeakValueDictionary[int, ReservedStream] = WeakValueDictionary()


def reserve_stream(device: torch.device, priority: int) -> ReservedStream:
    """Return a stream that no other caller is given while it is held.

    Libraries keep a workspace per stream, and a graph uses the workspace of the stream it was captured on,
    wherever it is replayed. Two graphs of one such stream, replayed at the same time, would overwrite each
    other's partial sums. So work that may run concurrently is captured on reserved streams.
    """
    with _LOCK:
        for _ in range(STREAMS_PER_PRIORITY):
            reserved = ReservedStream(torch.cuda.Stream(device, priority=priority))  # type: ignore[no-untyped-call]
            if _RESERVED.setdefault(reserved.stream.cuda_stream, reserved) is reserved:
                return reserved
    raise DeviceError(
        "no CUDA stream is left",
        got=f"{STREAMS_PER_PRIORITY} that are in use",
        fix="Close some of the engines in this process.",
    )


@contextmanager
def deterministic_cudnn() -> Iterator[None]:
    """Restrict cuDNN to deterministic algorithms.

    Some of its transposed convolutions add by atomics, in any order, and HiFT's graphs then differed in their
    last bits from run to run. A graph keeps the algorithms it was captured with, so this is needed during the
    capture only. The switch belongs to the process; it is restored, under a lock.
    """
    with _LOCK:
        before = torch.backends.cudnn.deterministic
        torch.backends.cudnn.deterministic = True
        try:
            yield
        finally:
            torch.backends.cudnn.deterministic = before


def copy_async(values: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting for the work that was launched there."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


class GraphedFunction(Generic[Result]):
    """A function over buffers of its own. Call it with new inputs of the shapes it was made with.

    The result lives in buffers too and is overwritten by the next call.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Result],
        inputs: Mapping[str, Tensor],
        *,
        mode: GraphMode,
        device: torch.device,
        pool: Any = None,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """Capture the function, or only keep it in eager mode.

        Args:
            name: For messages and traces.
            function: Takes the inputs by name.
            inputs: Examples; the warm-up runs use their values.
            mode: Graph or eager.
            device: Where the buffers are.
            pool: Graphs that never run at the same time may share the memory of their intermediate values.
            stream: The stream to capture on, by default the current one; see `reserve_stream`.
        """
        if mode == "graph" and (device.type != "cuda" or not torch.cuda.is_available()):
            raise DeviceError(
                f"{name!r} cannot be captured as a CUDA graph",
                got=f"the device {str(device)!r}",
                allowed="a CUDA device that this build of torch sees",
                fix="Use the eager mode, or another profile.",
            )
        self.name, self.mode = name, mode
        self._function = function
        self._graph: torch.cuda.CUDAGraph | None = None
        self._reserved: ReservedStream | None = None
        self._result: Result | None = None
        with torch.inference_mode():
            self._buffers = {key: value.to(device, copy=True) for key, value in inputs.items()}
            if mode == "graph":
                self._capture(device, pool, stream)

    def _capture(self, device: torch.device, pool: Any, stream: torch.cuda.Stream | None) -> None:
        current = torch.cuda.current_stream(device)
        if stream is None:
            if current == torch.cuda.default_stream(device):  # which cannot capture
                self._reserved = reserve_stream(device, CAPTURE_PRIORITY)
            stream = self._reserved.stream if self._reserved else current
        stream.wait_stream(current)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream), deterministic_cudnn():
            for _ in range(WARMUP_RUNS):
                self._function(**self._buffers)
            torch.cuda.synchronize(device)
            # Not `torch.cuda.graph`, which collects garbage each time: there are many graphs. Other threads
            # may use the device meanwhile, as when a voice is cloned during a capture.
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self._result = self._function(**self._buffers)
            finally:
                self._graph.capture_end()
        current.wait_stream(stream)

    @torch.inference_mode()
    def __call__(self, **inputs: Tensor) -> Result:
        """Run with new inputs. One that is left out keeps its value, and so do rows beyond those that are
        given: a smaller batch computes stale rows, which the caller drops.

        The copies of the inputs, the graph and the caller's use of the result are launched on the caller's
        current stream and happen in that order; the host reads and writes nothing. A caller that always uses
        one stream can neither overwrite inputs that are still read nor results that are still copied.
        """
        for key, value in inputs.items():
            self._buffer(key, value).copy_(value, non_blocking=True)
        if self._graph is None:
            return self._function(**self._buffers)
        self._graph.replay()
        return self._result  # type: ignore[return-value]

    def _buffer(self, key: str, value: Tensor) -> Tensor:
        buffer = self._buffers.get(key)
        same = buffer is not None and buffer.dtype == value.dtype and buffer.shape[1:] == value.shape[1:]
        if buffer is None or not same or len(value) > len(buffer):
            raise ConfigError(
                f"{self.name!r} was captured for other inputs",
                got=f"{key} {_describe(value)}",
                allowed=", ".join(f"{name} {_describe(b)}" for name, b in self._buffers.items()) or "none",
                fix="Pad the input to these shapes.",
            )
        return buffer[: len(value)]


def _describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def bucket_for(size: int, buckets: tuple[int, ...], *, what: str) -> int:
    """Return the smallest bucket that holds `size`; raise ConfigError if there is none."""
    for bucket in buckets:
        if size <= bucket:
            return bucket
    raise ConfigError(
        f"more {what} than the graphs were captured for",
        got=str(size),
        allowed=f"at most {buckets[-1]}",
        fix="Use the torch backend for this one, or plan larger buckets.",
    )
