"""Loading of weights into networks: strict, and without a second copy in memory.

A network is built on the meta device and then adopts the file's tensors as they are mapped from disk. One
error lists every missing, extra and misshapen tensor.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nightingale.errors import CheckpointError

Net = TypeVar("Net", bound=nn.Module)
NAMES_SHOWN = 6


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a .safetensors or .pt file, mapped from disk where the format allows."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # Files from before 2020 are not zip archives and cannot be mapped.
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        # Old T3 files nest their tensors once more.
        if isinstance(found, dict) and isinstance(found.get("model"), list | tuple):
            found = found["model"][0]
    except Exception as error:  # a damaged archive or pickle may raise anything
        raise CheckpointError(
            "a weight file cannot be read",
            got=f"{path}: {error}",
            allowed="a whole .safetensors file, or a .pt file that holds tensors only",
            fix="The file is truncated or of another kind: fetch it again with `nightingale models pull`.",
        ) from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()
    ):
        raise CheckpointError(
            "a weight file holds something else",
            got=f"{path} with a {type(found).__name__}",
            allowed="a flat mapping of names to tensors",
            fix="Check that this file belongs to the model.",
        )
    return found


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors under a prefix, without the prefix."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def fold_weight_norm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace each (g, v) pair of weight normalization by the weight g·v/‖v‖."""
    gain, direction = ".parametrizations.weight.original0", ".parametrizations.weight.original1"
    folded = {name: t for name, t in tensors.items() if not name.endswith((gain, direction))}
    for name, g in tensors.items():
        v = tensors.get(name.removesuffix(gain) + direction) if name.endswith(gain) else None
        if v is not None:
            # The norm is over every axis but the first, which for a transposed convolution is the input's.
            folded[name.removesuffix(gain) + ".weight"] = torch._weight_norm(v, g, 0)
    return folded


class SkipInit(TorchFunctionMode):
    """Skips the random initialization of layers.

    On the meta device it has no effect, but makes torch import its compiler, which takes seconds.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def load(
    build: Callable[[], Net],
    tensors: Mapping[str, Tensor],
    *,
    source: Path,
    unused: frozenset[str] = frozenset(),
    unread: Callable[[str], bool] = lambda _: False,
) -> Net:
    """Return a network in evaluation mode that holds exactly `tensors`, which came from the file `source`.

    `unused` names may be present and are ignored. Of `unread` names only the shapes are checked; they stay on
    the meta device, because a backend computes with its own copy.

    Raises:
        CheckpointError: Tensors are missing, extra, misshapen or not finite.
    """
    with torch.device("meta"), SkipInit():
        net = build()
    expected = net.state_dict()
    missing = sorted(expected.keys() - tensors.keys())
    extra = sorted(tensors.keys() - expected.keys() - unused)
    misshapen = [
        f"{name} {tuple(tensors[name].shape)} instead of {tuple(expected[name].shape)}"
        for name in sorted(expected.keys() & tensors.keys())
        if tensors[name].shape != expected[name].shape
    ]
    read = [name for name in sorted(expected.keys() & tensors.keys()) if not unread(name)]
    broken = [name for name in read if not _finite(tensors[name])]
    faults = {"missing": missing, "extra": extra, "misshapen": misshapen, "not finite": broken}
    if any(faults.values()):
        raise CheckpointError(
            f"the weights do not fit {type(net).__name__}",
            got=f"{source} with {'; '.join(_list(*fault) for fault in faults.items() if fault[1])}",
            allowed="exactly the tensors of this network, all finite",
            fix="Check that the file belongs to this model and its variant, or pull it again.",
        )
    net.load_state_dict({name: tensors[name] for name in read}, assign=True, strict=False)
    return net.eval().requires_grad_(False)


def _finite(t: Tensor) -> bool:
    # A sum is fast, and finite only if every value is. It may overflow; then minimum and maximum decide.
    if not t.is_floating_point() or not t.numel() or math.isfinite(t.sum().item()):
        return True
    return all(bool(torch.isfinite(x)) for x in t.aminmax())


def _list(kind: str, names: list[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    return f"{len(names)} {kind} ({shown}{', …' if len(names) > NAMES_SHOWN else ''})"
