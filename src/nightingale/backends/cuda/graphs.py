"""Functions of fixed tensors, captured once as CUDA graphs and replayed.

A T3 step is about five hundred small kernels, a guided flow eight thousand. Launched one by one from Python
they leave the GPU idle; a graph is one launch. It needs the same shapes each time and nothing that the host
has to wait for. So inputs are copied into buffers that never move, and other shapes are refused.

With mode "eager" the same function is called on the same buffers, on any device: whatever uses a graph runs,
and is tested, without a GPU.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Literal, TypeVar

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
_RESERVED: set[int] = set()


def graph_mode(device: torch.device, wanted: GraphMode | None = None) -> GraphMode:
    """Return the wanted mode; by default graphs on a GPU, eager elsewhere."""
    mode = wanted or ("graph" if device.type == "cuda" else "eager")
    if mode == "graph" and (device.type != "cuda" or not torch.cuda.is_available()):
        raise DeviceError(
            "CUDA graphs cannot be captured",
            got=f"the device {str(device)!r}",
            allowed="a CUDA device that this build of torch sees",
            fix="Use the eager mode, or another profile.",
        )
    return mode


def reserve_stream(device: torch.device, priority: int, owner: object) -> torch.cuda.Stream:
    """Return a stream that no other caller is given while its owner lives.

    Libraries keep a workspace per stream, and a graph uses the workspace of the stream it was captured on,
    wherever it is replayed. Two graphs of one such stream, replayed at the same time, would overwrite each
    other's partial sums. So work that may run concurrently is captured on reserved streams.

    The end of the stream itself cannot be observed: weak references to torch.cuda.Stream are not cleared when
    it is freed (pytorch/pytorch#183403, torch 2.9 to 2.11).
    """
    with _LOCK:
        for _ in range(STREAMS_PER_PRIORITY):
            stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
            number = stream.cuda_stream
            if number not in _RESERVED:
                _RESERVED.add(number)
                weakref.finalize(owner, _RESERVED.discard, number)
                return stream
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


class HostCopy:
    """A copy of a tensor on its way to the host."""

    def __init__(self, source: Tensor) -> None:
        on_gpu = source.device.type == "cuda"
        # Memory of its own: torch reuses pinned memory only after the copies that were launched to it.
        self._host = torch.empty(source.shape, dtype=source.dtype, pin_memory=on_gpu)
        self._host.copy_(source, non_blocking=True)
        self._event = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        if self._event is not None:
            self._event.record()

    def done(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def take(self) -> Tensor:
        """Wait for the copy and return it."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


class GraphedFunction(Generic[Result]):
    """A function over buffers of its own. Call it with new inputs of the shapes it was made with.

    The result lives in buffers too and is overwritten by the next call. inputs: examples by name, with which
    the warm-up runs; pool: graphs that never run at the same time may share the memory of their intermediate
    values; stream: to capture on, None is the eager mode, in which nothing is captured.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Result],
        inputs: Mapping[str, Tensor],
        *,
        device: torch.device,
        pool: Any = None,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self.name, self._function = name, function
        self.mode: GraphMode = "eager" if stream is None else "graph"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Result | None = None
        with torch.inference_mode():
            self.buffers = {key: value.to(device, copy=True) for key, value in inputs.items()}
            if stream is not None:
                self._capture(device, pool, stream)

    def _capture(self, device: torch.device, pool: Any, stream: torch.cuda.Stream) -> None:
        current = torch.cuda.current_stream(device)
        stream.wait_stream(current)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream), deterministic_cudnn():
            for _ in range(WARMUP_RUNS):
                self._function(**self.buffers)
            torch.cuda.synchronize(device)
            # Not `torch.cuda.graph`, which collects garbage each time: there are many graphs. Other threads
            # may use the device meanwhile, as when a voice is cloned during a capture.
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self._result = self._function(**self.buffers)
            finally:
                self._graph.capture_end()
        current.wait_stream(stream)

    @torch.inference_mode()
    def __call__(self, **inputs: Tensor) -> Result:
        """Run with new inputs. One that is left out keeps its value, and so do rows beyond those that are
        given: a smaller batch computes stale rows, which the caller drops.

        Copies of inputs and the graph run in order on the current stream. A caller that always uses one stream
        can neither overwrite inputs that are still read nor results that are still copied.
        """
        for key, value in inputs.items():
            self._buffer(key, value).copy_(value, non_blocking=True)
        if self._graph is None:
            return self._function(**self.buffers)
        self._graph.replay()
        return self._result  # type: ignore[return-value]

    def _buffer(self, key: str, value: Tensor) -> Tensor:
        buffer = self.buffers.get(key)
        same = buffer is not None and buffer.dtype == value.dtype and buffer.shape[1:] == value.shape[1:]
        if buffer is None or not same or len(value) > len(buffer):
            raise ConfigError(
                f"{self.name!r} was captured for other inputs",
                got=f"{key} {_describe(value)}",
                allowed=", ".join(f"{name} {_describe(b)}" for name, b in self.buffers.items()) or "none",
                fix="Pad the input to these shapes.",
            )
        return buffer[: len(value)]


class GraphCache(dict[Hashable, GraphedFunction[Result]]):
    """Graphs by their sizes. They never run at the same time, so they share a memory pool.

    They are captured on the current stream, or on a reserved one: if `reserved`, or if the current one is the
    default stream, which cannot capture.
    """

    def __init__(
        self, device: torch.device, mode: GraphMode | None = None, *, reserved: bool = False
    ) -> None:
        super().__init__()
        self.device, self.mode, self._reserve = device, graph_mode(device, mode), reserved
        self._pool = torch.cuda.graph_pool_handle() if self.mode == "graph" else None
        self._stream: torch.cuda.Stream | None = None

    def capture(
        self, size: Hashable, name: str, function: Callable[..., Result], inputs: Mapping[str, Tensor]
    ) -> None:
        stream = torch.cuda.current_stream(self.device) if self.mode == "graph" else None
        if stream is not None and (self._reserve or stream == torch.cuda.default_stream(self.device)):
            stream = self._stream = self._stream or reserve_stream(self.device, CAPTURE_PRIORITY, self)
        self[size] = GraphedFunction(
            name, function, inputs, device=self.device, pool=self._pool, stream=stream
        )


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
