"""Building blocks that all networks on MLX share: compilation, the only read by the host, and layers.

Sequences are (batch, time, channels) everywhere, as MLX's convolutions take them.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from nightingale.backends.mlx.weight_files import NetworkWeights
from nightingale.errors import EngineFault

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
COMPILED_SHAPES = 32
"""Compiled functions that are kept for each network."""
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Return the function compiled by MLX, once for each set of shapes, where that pays."""
    return cast("Function", mx.compile(function)) if compiles() else function


def compiled_elementwise(function: Function) -> Function:
    """Return an elementwise function compiled to one kernel for all shapes, where that pays.

    Use it as a decorator, so that a function is traced once; MLX keeps a trace for each thread.
    """

    @wraps(function)
    def call(*arrays: mx.array) -> mx.array:
        return (fused if compiles() else function)(*arrays)

    fused = mx.compile(function, shapeless=True)
    return cast("Function", call)


@compiled_elementwise
def gelu(x: mx.array) -> mx.array:
    return 0.5 * x * (1 + mx.erf(x * math.sqrt(0.5)))


@compiled_elementwise
def elu(x: mx.array) -> mx.array:
    return mx.where(x > 0, x, mx.expm1(mx.minimum(x, 0)))


class CompiledFunctions:
    """Compile a function for each set of options and shapes; those that were not used for long are dropped."""

    def __init__(self, function: Callable[..., tuple[Any, Any]]) -> None:
        """function: takes options, then arrays in lists or dictionaries; returns arrays, and anything else."""
        self._function = function
        self._compiled: OrderedDict[Hashable, tuple[Callable[..., Any], list[Any]]] = OrderedDict()

    def __call__(self, options: Hashable, *arrays: Any) -> tuple[Any, Any]:
        """Return the function's arrays, and what else it returned when it was traced."""
        if not compiles():
            return self._function(options, *arrays)
        shapes = tuple((name, array.shape) for name, array in named_arrays(list(arrays)).items())
        key = options, shapes
        if key not in self._compiled:
            if len(self._compiled) >= COMPILED_SHAPES:
                self._compiled.popitem(last=False)
            self._compiled[key] = self._trace(options)
        self._compiled.move_to_end(key)
        call, others = self._compiled[key]
        return call(*arrays), others[0]

    def _trace(self, options: Hashable) -> tuple[Callable[..., Any], list[Any]]:
        others: list[Any] = []

        def run(*arrays: Any) -> Any:
            result, other = self._function(options, *arrays)
            others.append(other)
            return result

        return mx.compile(run), others


def compiles() -> bool:
    """Return whether functions are compiled: on a GPU.

    On a CPU, MLX would call a C++ compiler for each fused operation: a second each, or an error without one.
    """
    return runs_on_gpu()


def runs_on_gpu() -> bool:
    return bool(mx.default_device() == mx.gpu)


def read(array: mx.array) -> NDArray[Any]:
    """Copy an array to the host, which waits until it is computed. Decoding reads once for a block of tokens."""
    return np.array(array)


class _ThreadStreams:
    """Destroys a thread's MLX streams when the thread ends.

    Without it MLX 0.32 sometimes aborts the process at its exit, if threads that used MLX have ended before.
    """

    def __del__(self) -> None:
        mx.clear_streams()


_THREAD = threading.local()


class OwnThread:
    """The thread that computes with MLX: one for each engine. Arrays of others may not be evaluated in it."""

    def __init__(self) -> None:
        self._ident: int | None = None

    def enter(self) -> None:
        """Prepare the calling thread."""
        self._ident = threading.get_ident()
        if threading.current_thread() is not threading.main_thread():
            _THREAD.streams = _ThreadStreams()

    def check(self) -> None:
        """Raise EngineFault if another thread has entered; enter if none has."""
        if self._ident is None:
            self.enter()
        elif self._ident != threading.get_ident():
            raise EngineFault(
                "MLX was called from a second thread",
                got=threading.current_thread().name,
                allowed="the thread that made the first call, because MLX's streams belong to one thread each",
                fix="Open an engine of its own for each thread, or use TTS, which has a worker thread.",
            )


class Linear(NamedTuple):
    """A linear layer: (…, inputs) -> (…, outputs)."""

    weight: mx.array
    """(outputs, inputs); packed words if quantized."""
    bias: mx.array | None = None
    scales: mx.array | None = None
    """(outputs, groups), of a quantized weight."""
    offsets: mx.array | None = None
    """(outputs, groups): what the code zero stands for."""
    bits: int = 0
    group_size: int = 0

    def __call__(self, x: mx.array) -> mx.array:
        if self.scales is not None:
            y = mx.quantized_matmul(
                x,
                self.weight,
                scales=self.scales,
                biases=self.offsets,
                transpose=True,
                group_size=self.group_size,
                bits=self.bits,
            )
            return y if self.bias is None else y + self.bias
        return x @ self.weight.T if self.bias is None else mx.addmm(self.bias, x, self.weight.T)

    def cast(self, dtype: mx.Dtype) -> Linear:
        bias = None if self.bias is None else self.bias.astype(dtype)
        return self._replace(weight=self.weight.astype(dtype), bias=bias)

    def quantized(self, bits: int, group_size: int) -> Linear:
        """Return the layer with its weight in `bits` bits, one scale and one offset for each group of inputs."""
        weight, scales, offsets = mx.quantize(self.weight, group_size=group_size, bits=bits)
        return self._replace(weight=weight, scales=scales, offsets=offsets, bits=bits, group_size=group_size)


def take_linear(
    weights: NetworkWeights, name: str, inputs: int, outputs: int, *, bias: bool = True
) -> Linear:
    own = weights.take(f"{name}.weight", outputs, inputs)
    return Linear(own, weights.take(f"{name}.bias", outputs) if bias else None)


class LayerNorm(NamedTuple):
    weight: mx.array
    bias: mx.array
    eps: float

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.layer_norm(x, self.weight, self.bias, self.eps)


def take_norm(weights: NetworkWeights, name: str, width: int, eps: float = 1e-5) -> LayerNorm:
    return LayerNorm(weights.take(f"{name}.weight", width), weights.take(f"{name}.bias", width), eps)


def split_heads(x: mx.array, heads: int) -> mx.array:
    """(batch, time, heads · width) -> (batch, heads, time, width)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def join_heads(x: mx.array) -> mx.array:
    """(batch, heads, time, width) -> (batch, time, heads · width)."""
    x = x.swapaxes(1, 2)
    return x.reshape(*x.shape[:2], -1)


def named_arrays(tree: Any, name: str = "") -> dict[str, mx.array]:
    """Return the arrays of nested named tuples, lists and dictionaries by their paths."""
    if isinstance(tree, mx.array):
        return {name: tree}
    if isinstance(tree, tuple) and hasattr(tree, "_asdict"):
        tree = tree._asdict()
    items = (
        tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    )
    found: dict[str, mx.array] = {}
    for key, value in items:
        found |= named_arrays(value, f"{name}.{key}" if name else str(key))
    return found
