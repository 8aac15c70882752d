"""Sessions of ONNX Runtime: their options, and the state of streaming networks between two blocks.

    state = session.start()                       # of one stream
    outputs, [state] = session.run(inputs, [state])

Rows of a batch are streams. Their states are joined for the pass and divided after it, unless there is one
row: then the outputs of a block are the inputs of the next, and nothing is copied. Streams of a batch may have
cached different numbers of positions; the shorter caches are padded at their beginning, and `mask` hides that.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from nightingale.backends.onnx.network_graph import NEW, Cache, NetworkGraph
from nightingale.backends.onnx.numpy_weights import Floats

State = tuple[Any, ...]
"""The caches of one stream, in the order of `StreamingSession.caches`. They are never written to."""
MASKED = np.float32(-1e9)
"""Added to the scores of positions that a row does not have. Not -inf: ONNX Runtime subtracts maxima."""


def create_session(graph: NetworkGraph | Path, threads: int) -> onnxruntime.InferenceSession:
    """Create a session over a graph, or over a file, whose weights lie beside it and are mapped.

    ONNX Runtime copies the weights of a graph into its own layout.
    """
    options = session_options(threads, changing_shapes=not isinstance(graph, Path))
    if isinstance(graph, Path):
        return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    names = list(graph.initializers)
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(graph.initializers[name]) for name in names]
    options.add_external_initializers(names, values)
    return onnxruntime.InferenceSession(graph.model(), options, providers=["CPUExecutionProvider"])


def session_options(threads: int, *, changing_shapes: bool = True) -> onnxruntime.SessionOptions:
    """Return the options of all sessions.

    Args:
        threads: Of the session.
        changing_shapes: Blocks have different lengths, so that no plan for memory is made.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    # Its threads wait for the next operation by spinning, but not for the next step: others need the cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if changing_shapes:
        # Planning the reuse of buffers takes longer than all the rest of loading.
        options.enable_mem_reuse = False
        options.enable_mem_pattern = False
    return options


class Binding:
    """Arrays that are bound to a session's inputs and outputs once, and then only written and read."""

    def __init__(
        self, session: Any, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]
    ) -> None:
        self._session, self._binding = session, session.io_binding()
        self.arrays = {**inputs, **outputs}
        for bind, values in ((self._binding.bind_input, inputs), (self._binding.bind_output, outputs)):
            for name, value in values.items():
                bind(name, "cpu", 0, value.dtype.type, value.shape, value.ctypes.data)

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)


def return_freed_memory() -> None:
    """Return what loading has freed to the system: a quarter of the process's memory (glibc keeps it)."""
    if sys.platform == "linux":
        with suppress(AttributeError, TypeError):  # another C library, or none
            ctypes.CDLL(None).malloc_trim(0)


class StreamingSession:
    """A network that is run block by block. It holds weights; states belong to streams."""

    def __init__(self, graph: NetworkGraph, threads: int) -> None:
        self.caches: list[Cache] = graph.caches
        self.session = create_session(graph, threads)
        self._outputs = [
            output.name for output in self.session.get_outputs() if not output.name.startswith(NEW)
        ]

    def start(self) -> State:
        """Return the state of a stream that begins."""
        return tuple(
            onnxruntime.OrtValue.ortvalue_from_numpy(np.full(cache.shape, cache.fill, np.float32))
            for cache in self.caches
        )

    def run(
        self, inputs: Mapping[str, NDArray[Any]], states: Sequence[State], *, tokens: int = 0
    ) -> tuple[list[Floats], list[State]]:
        """Run a block of each stream; return the outputs and the states after it.

        tokens: of each block, for networks whose caches grow.
        """
        feeds = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in inputs.items()}
        joined = states[0] if len(states) == 1 else self._join(states)
        feeds |= {cache.name: value for cache, value in zip(self.caches, joined, strict=True)}
        names = [*self._outputs, *(NEW + cache.name for cache in self.caches)]
        results = self.session.run_with_ort_values(names, feeds)
        outputs = [value.numpy() for value in results[: len(self._outputs)]]
        after = tuple(results[len(self._outputs) :])
        return outputs, [after] if len(states) == 1 else self._divide(after, states, tokens)

    def _join(self, states: Sequence[State]) -> State:
        """Concatenate rows; pad caches that grow to the longest."""
        joined = []
        for cache, *values in zip(self.caches, *states, strict=True):
            arrays = [value.numpy() for value in values]
            longest = max(array.shape[cache.axis] for array in arrays)
            joined.append(np.concatenate([_pad_start(array, cache.axis, longest) for array in arrays]))
        return tuple(onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in joined)

    def _divide(self, after: State, before: Sequence[State], tokens: int) -> list[State]:
        """Return each row's caches, without the padding of those that grow."""
        rows: list[list[Any]] = [[] for _ in before]
        for number, (cache, value) in enumerate(zip(self.caches, after, strict=True)):
            array = value.numpy()
            for row, state in enumerate(before):
                own = array[row : row + 1]
                if cache.positions_per_token:
                    known = state[number].shape()[cache.axis] + cache.positions_per_token * tokens
                    own = own[..., -min(known, array.shape[cache.axis]) :, :]
                rows[row].append(onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(own)))
        return [tuple(row) for row in rows]

    def mask(self, cache: str, states: Sequence[State], positions: int) -> Floats:
        """Return what hides the padding of a cache: (rows, 1, positions, cached + positions).

        positions: of the block, all of which attend to each other.
        """
        number = [known.name for known in self.caches].index(cache)
        cached = [state[number].shape()[self.caches[number].axis] for state in states]
        mask = np.zeros((len(states), 1, positions, max(cached) + positions), np.float32)
        for row, known in enumerate(cached):
            mask[row, :, :, : max(cached) - known] = MASKED
        return mask


def _pad_start(array: Floats, axis: int, size: int) -> Floats:
    widths = [(0, 0)] * array.ndim
    widths[axis] = (size - array.shape[axis], 0)
    return np.pad(array, widths)
