"""Run Core ML packages without Core ML, to compare what was written with the engine on any system.

Core ML itself runs on Apple's systems only. This reads a saved package and runs its operations one by one in
PyTorch. An operation is computed in float32 and rounded to the type of its result, so float16 values are those that
a processor has that adds in float32. It is for checks: it is slow, and has the operations of our exports only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

DTYPES: Final = {
    "fp16": torch.float16,
    "fp32": torch.float32,
    "int32": torch.int32,
    "int16": torch.int16,
    "uint16": torch.int32,
    "bool": torch.bool,
}
WEIGHTS: Final = Path("Data", "com.apple.CoreML", "weights")
State = dict[str, Tensor]


class CoremlFunction:
    """One function of a saved package."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._steps = [op for op in function.operations if op.op_type != "const"]
        self.inputs = {name: tuple(value.shape) for name, value in function.inputs.items()}
        self.outputs = [value.name for value in function.outputs]

    @property
    def operations(self) -> list[tuple[str, str]]:
        """Return the type of every operation and that of its first result: ("conv", "fp16")."""
        return [(op.op_type, _dtype_name(op.outputs[0])) for op in self._steps]

    @property
    def states(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the states by name."""
        read = [op.inputs["input"] for op in self._steps if op.op_type == "read_state"]
        return {value.name: tuple(value.shape) for value in read}

    def new_state(self) -> State:
        """Return states of zeros, as Core ML makes them."""
        return {name: torch.zeros(shape, dtype=torch.float16) for name, shape in self.states.items()}

    def __call__(self, inputs: Mapping[str, Tensor], state: State | None = None) -> dict[str, Tensor]:
        """Return the outputs by name, and update the state."""
        values: dict[str, Tensor] = dict(inputs)

        def value(variable: Any) -> Any:
            if isinstance(variable, Sequence):
                return [value(one) for one in variable]
            if variable.name in values:
                return values[variable.name]
            known = variable.val
            return torch.from_numpy(np.ascontiguousarray(known)) if isinstance(known, np.ndarray) else known

        for op in self._steps:
            results = op.outputs
            result = results[0]
            if op.op_type == "read_state":
                assert state is not None
                values[result.name] = state[op.inputs["input"].name].clone()
                continue
            given = {name: value(one) for name, one in op.inputs.items() if one is not None}
            if op.op_type == "coreml_update_state":
                assert state is not None
                state[op.inputs["state"].name] = given["value"].clone()
                values[result.name] = given["value"]
                continue
            wide = {
                name: one.float() if isinstance(one, Tensor) and one.dtype == torch.float16 else one
                for name, one in given.items()
            }
            computed = OPERATIONS[op.op_type](wide)
            for result, one in zip(results, computed if len(results) > 1 else [computed], strict=True):
                assert tuple(one.shape) == tuple(result.shape), (op.op_type, one.shape, result.shape)
                values[result.name] = one.to(DTYPES[_dtype_name(result)])
        return {name: values[name] for name in self.outputs}


def load_package(path: Path) -> dict[str, CoremlFunction]:
    """Return the functions of a saved package by name."""
    import coremltools
    from coremltools.converters.mil.frontend.milproto.load import load

    spec = coremltools.utils.load_spec(str(path))
    program = load(spec, spec.specificationVersion, str(path / WEIGHTS))
    return {name: CoremlFunction(function) for name, function in program.functions.items()}


def _dtype_name(variable: Any) -> str:
    from coremltools.converters.mil.mil import types

    return str(types.builtin_to_string(variable.dtype))


def _slices(given: Mapping[str, Any]) -> tuple[Any, ...]:
    rank = given["x"].dim()
    squeezed, from_start, to_end = (
        [bool(one) for one in given.get(mask, [False] * rank)]
        for mask in ("squeeze_mask", "begin_mask", "end_mask")
    )
    begin, end = (given[name].tolist() for name in ("begin", "end"))
    stride = given["stride"].tolist() if "stride" in given else [1] * rank
    return tuple(
        begin[axis]
        if squeezed[axis]
        else slice(
            None if from_start[axis] else begin[axis], None if to_end[axis] else end[axis], stride[axis]
        )
        for axis in range(rank)
    )


def _slice_update(given: Mapping[str, Any]) -> Tensor:
    updated: Tensor = given["x"].clone()
    updated[_slices(given)] = given["update"]
    return updated


def _conv(given: Mapping[str, Any]) -> Tensor:
    assert given["pad_type"] == "valid"
    assert given["groups"] == given["strides"] == given["dilations"] == 1
    return F.conv1d(given["x"], given["weight"], given.get("bias"))


def _matmul(given: Mapping[str, Any]) -> Tensor:
    x, y = given["x"], given["y"]
    return torch.matmul(x.mT if given["transpose_x"] else x, y.mT if given["transpose_y"] else y)


def _layer_norm(given: Mapping[str, Any]) -> Tensor:
    x = given["x"]
    assert given["axes"].tolist() in ([-1], [x.dim() - 1])
    return F.layer_norm(x, x.shape[-1:], given["gamma"], given.get("beta"), float(given["epsilon"]))


def _concat(given: Mapping[str, Any]) -> Tensor:
    assert not given["interleave"]
    values = [torch.as_tensor(one) for one in given["values"]]
    if all(one.is_floating_point() for one in values):
        values = [one.float() for one in values]
    return torch.cat(values, dim=int(given["axis"]))


def _expand_dims(given: Mapping[str, Any]) -> Tensor:
    x = torch.as_tensor(given["x"])
    for axis in given["axes"].tolist():
        x = x.unsqueeze(axis)
    return x


def _pad(given: Mapping[str, Any]) -> Tensor:
    """MIL lists both sides of each axis from the first one, PyTorch from the last one."""
    assert given["mode"] == "constant"
    sides = given["pad"].view(-1, 2).flip(0).flatten().tolist()
    return F.pad(given["x"], sides, value=float(given["constant_val"]))


def _split(given: Mapping[str, Any]) -> tuple[Tensor, ...]:
    x, axis = given["x"], int(given["axis"])
    if (sizes := given.get("split_sizes")) is not None:
        return x.split(sizes.tolist(), axis)
    return x.chunk(int(given["num_splits"]), axis)


def _select(given: Mapping[str, Any]) -> Tensor:
    return torch.where(given["cond"], given["a"], given["b"])


def _gather(given: Mapping[str, Any]) -> Tensor:
    assert given["batch_dims"] == 0
    return given["x"].index_select(int(given["axis"]), given["indices"].to(torch.int64))


OPERATIONS: Final[dict[str, Callable[[Mapping[str, Any]], Any]]] = {
    "abs": lambda v: v["x"].abs(),
    "add": lambda v: v["x"] + v["y"],
    "cast": lambda v: torch.as_tensor(v["x"]),
    "clip": lambda v: v["x"].clamp(float(v["alpha"]), float(v["beta"])),
    "concat": _concat,
    "conv": _conv,
    "cos": lambda v: v["x"].cos(),
    "cumsum": lambda v: v["x"].cumsum(int(v["axis"])),
    "elu": lambda v: F.elu(v["x"], float(v["alpha"])),
    "exp": lambda v: v["x"].exp(),
    "expand_dims": _expand_dims,
    "fill_like": lambda v: torch.full_like(v["ref_tensor"], v["value"]),
    "floor": lambda v: v["x"].floor(),
    "floor_div": lambda v: v["x"] // v["y"],
    "gather": _gather,
    "gelu": lambda v: F.gelu(v["x"]),
    "greater": lambda v: v["x"] > v["y"],
    "greater_equal": lambda v: v["x"] >= v["y"],
    "inverse": lambda v: 1 / (v["x"] + float(v["epsilon"])),
    "layer_norm": _layer_norm,
    "leaky_relu": lambda v: F.leaky_relu(v["x"], float(v["alpha"])),
    "less": lambda v: v["x"] < v["y"],
    "linear": lambda v: F.linear(v["x"], v["weight"], v["bias"]),
    "log": lambda v: (v["x"] + float(v["epsilon"])).log(),
    "matmul": _matmul,
    "mul": lambda v: v["x"] * v["y"],
    "pad": _pad,
    "real_div": lambda v: v["x"] / v["y"],
    "reshape": lambda v: v["x"].reshape(v["shape"].tolist()),
    "round": lambda v: v["x"].round(),
    "select": _select,
    "sign": lambda v: v["x"].sign(),
    "silu": lambda v: F.silu(v["x"]),
    "sin": lambda v: v["x"].sin(),
    "slice_by_index": lambda v: v["x"][_slices(v)],
    "slice_update": _slice_update,
    "softmax": lambda v: v["x"].softmax(int(v["axis"])),
    "softplus": lambda v: F.softplus(v["x"]),
    "split": _split,
    "squeeze": lambda v: v["x"].squeeze(v["axes"].tolist()),
    "stack": lambda v: torch.stack([one.float() for one in v["values"]], dim=int(v["axis"])),
    "sub": lambda v: v["x"] - v["y"],
    "tanh": lambda v: v["x"].tanh(),
    "tile": lambda v: v["x"].tile(v["reps"].tolist()),
    "transpose": lambda v: v["x"].permute(v["perm"].tolist()),
}
"""Operations by their name in Core ML's MIL, with their arguments by name."""
