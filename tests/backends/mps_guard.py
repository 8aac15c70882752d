"""A device that refuses what MPS, Apple's GPU in PyTorch, cannot do, for tests on other machines.

Under `MpsGuard`, tensors that were moved to MPS are tensors of the CPU that say they are on MPS. What is computed
with them is checked, operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

MPS, CPU = torch.device("mps"), torch.device("cpu")
LARGEST_CONVOLUTION = 65_536
DEVICES = ("cpu", "mps")
WITHOUT_TENSORS = ("device", "_parse_to", "_has_compatible_shallow_copy_type")
"""Functions that compute nothing."""
TAKES_BOTH_DEVICES = (Tensor.to, Tensor.copy_, Tensor.__setitem__, Tensor.__getitem__, Tensor.type_as)


class MpsTensor(Tensor):
    """A tensor that says it is on MPS."""


class MpsRefusal(AssertionError):
    """An operation that MPS cannot compute, or computes wrongly."""


class OperationGuard(TorchDispatchMode):
    """Refuse operations whose results MPS cannot hold."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in tree_flatten(result)[0]:
            if isinstance(x, Tensor) and x.dtype == torch.float64:
                raise MpsRefusal(f"{func} in float64")
            if func._schema.name == "aten::convolution" and max(x.shape) > LARGEST_CONVOLUTION:
                raise MpsRefusal(f"a convolution with outputs {tuple(x.shape)}")
        return result


class MpsGuard(TorchFunctionMode):
    """Compute on the CPU what is on MPS, and refuse what MPS cannot do."""

    def __enter__(self) -> Any:
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
        super().__exit__(*error)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__self__", None) is Tensor.device:
            return _device_of(args[0])
        if func is Tensor.__iter__:
            return iter(args[0].unbind())
        if func is Tensor.to and isinstance(args[1], Tensor):
            args = (args[0], _device_of(args[1]), args[1].dtype)
        flat, spec = tree_flatten((args, kwargs))
        tensors = [x for x in flat if isinstance(x, Tensor)]
        moved = any(isinstance(x, MpsTensor) for x in tensors)
        targets = [torch.device(x) for x in flat if isinstance(x, str | torch.device) and str(x) in DEVICES]
        on_mps = targets[0] == MPS if targets else moved and func is not Tensor.cpu
        if func.__name__ in WITHOUT_TENSORS or not (moved or on_mps):
            return func(*args, **kwargs)
        mixed = any(x.ndim and not isinstance(x, MpsTensor) for x in tensors)
        if moved and mixed and func not in TAKES_BOTH_DEVICES:
            raise MpsRefusal(f"{func} with tensors of two devices")
        if func is Tensor.numpy:
            raise MpsRefusal("numpy() of a tensor on the device")
        if func is F.scaled_dot_product_attention and not all(x.is_contiguous() for x in args[:3]):
            raise MpsRefusal("attention over permuted inputs")
        args, kwargs = tree_unflatten([_on_cpu(x) for x in flat], spec)
        with OperationGuard() if on_mps else nullcontext():
            result = func(*args, **kwargs)
        if not on_mps:
            return result
        return tree_map(lambda x: x.as_subclass(MpsTensor) if isinstance(x, Tensor) else x, result)


def _device_of(x: Tensor) -> torch.device:
    return MPS if isinstance(x, MpsTensor) else CPU


def _on_cpu(x: Any) -> Any:
    if isinstance(x, str | torch.device) and str(x) == "mps":
        return CPU
    return x.as_subclass(Tensor) if isinstance(x, MpsTensor) else x
