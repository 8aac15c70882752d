"""A function of fixed tensors, recorded once as a CUDA graph and replayed.

Why it helps here. A step of T3 is some five hundred small kernels, a guided flow eight thousand. Launched one
by one from Python they keep the GPU waiting; a graph is launched as one.

What it asks. The same shapes each time, and nothing in the function that the host must wait for. So inputs
are copied into buffers that never move, and another shape is refused in words, never recomputed silently.

The twin. `how="eager"` calls the same function on the same buffers, on any device: whatever a graph is used
for can be run, and tested, without a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

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


def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """For what runs on the default stream, which cannot record. Of the other priority: torch hands out a few
    streams of each in turn, and this one must not be among those that other things run on."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


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
        None is the current one. Libraries keep a workspace for each stream, which a graph goes on using: so
        what may run at the same time must not have been recorded on the same stream."""
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
            stream = recording_stream(device) if current == torch.cuda.default_stream(device) else current
        stream.wait_stream(current)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
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
        """Inputs that are left out keep the values they had."""
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
