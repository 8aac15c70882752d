"""Weights of a model as MLX arrays: read from safetensors, and checked to be used, each and all.

A network takes its tensors one by one from `NetworkWeights`, which notes what is missing, misshapen or not
finite; `finish` then raises one error that also lists what no layer took. So no weight can stay random, and none
can be forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np

from nightingale.backends.base import ModelSource
from nightingale.errors import CheckpointError
from nightingale.install import install_command
from nightingale.models.chatterbox.t3.config import UNUSED_BY_T3

SCALE: Final = ".scale"
GAIN: Final = ".parametrizations.weight.original0"
DIRECTION: Final = ".parametrizations.weight.original1"
NAMES_SHOWN: Final = 6


class NetworkWeights:
    """The tensors of one network, which it takes by name and shape."""

    def __init__(
        self, tensors: Mapping[str, mx.array], source: Path | None, *, unused: frozenset[str] = frozenset()
    ) -> None:
        """source: the file; None for a network that a program holds in memory, whose values are not checked."""
        self._tensors, self._source = tensors, source
        self.dtype: mx.Dtype = mx.float32
        """The type of what is taken."""
        self._left = set(tensors) - unused
        self._faults: dict[str, list[str]] = {"missing": [], "misshapen": [], "not finite": []}

    def take(self, name: str, *shape: int) -> mx.array:
        """Return a tensor; zeros of its shape stand in for one at fault, until `finish` raises."""
        found = self._tensors.get(name)
        self._left.discard(name)
        if found is None:
            self._faults["missing"].append(name)
        elif found.shape != shape:
            self._faults["misshapen"].append(f"{name} {found.shape} instead of {shape}")
        else:
            return found.astype(self.dtype)
        return mx.zeros(shape, self.dtype)

    def finish(self, arrays: Mapping[str, mx.array]) -> None:
        """Evaluate a network's arrays; raise CheckpointError unless every tensor was used, and is finite."""
        checked = {} if self._source is None else arrays
        finite = {name: mx.isfinite(array).all() for name, array in checked.items()}
        mx.eval(list(arrays.values()), list(finite.values()))
        self._faults["not finite"] = [name for name, good in finite.items() if not good.item()]
        self._faults["extra"] = sorted(self._left)
        if not any(self._faults.values()):
            return
        told = [
            f"{len(names)} {kind} ({', '.join(names[:NAMES_SHOWN])}{', …' * (len(names) > NAMES_SHOWN)})"
            for kind, names in self._faults.items()
            if names
        ]
        raise CheckpointError(
            "the weights do not fit the network",
            got=f"{self._source or 'a network in memory'} with {'; '.join(told)}",
            allowed="exactly the tensors of this network, all finite",
            fix="Check that the file belongs to this model and its variant, or pull it again.",
        )


def t3_weights(source: ModelSource) -> NetworkWeights:
    if (t3 := source.loaded("t3")) is not None:
        return NetworkWeights(_state(t3), None)
    path = source.files["t3"]
    return NetworkWeights(read_tensors(path, packed=source.packed), path, unused=UNUSED_BY_T3)


def flow_weights(source: ModelSource) -> NetworkWeights:
    if (networks := source.loaded("s3gen")) is not None:
        return NetworkWeights(_state(networks[0]), None)
    path = source.files["s3gen"]
    return NetworkWeights(read_tensors(path, "flow.", packed=source.packed), path)


def vocoder_weights(source: ModelSource) -> NetworkWeights:
    if (networks := source.loaded("s3gen")) is not None:
        return NetworkWeights(_state(networks[1]), None)
    path = source.files["s3gen"]
    tensors = fold_weight_norm(read_tensors(path, "mel2wav.", packed=source.packed))
    return NetworkWeights(tensors, path)


def read_tensors(path: Path, prefix: str = "", *, packed: bool = False) -> dict[str, mx.array]:
    """Return the tensors under a prefix, without the prefix; MLX reads each from the file when it is used.

    packed: the file is in wren's compact format (models/compact.py), and is unpacked to float32.
    """
    if path.suffix != ".safetensors":
        return _read_pickled(path, prefix)
    try:
        loaded: Any = mx.load(str(path))
    except Exception as error:  # a damaged file may raise anything
        raise CheckpointError(
            "a weight file cannot be read",
            got=f"{path}: {error}",
            allowed="a whole .safetensors file",
            fix="The file is truncated or of another kind: fetch it again with `nightingale models pull`.",
        ) from error
    stored = {name.removeprefix(prefix): t for name, t in loaded.items() if name.startswith(prefix)}
    return unpack(stored) if packed else stored


def _read_pickled(path: Path, prefix: str) -> dict[str, mx.array]:
    """Read a .pt file, which needs PyTorch."""
    try:
        from nightingale.models.checkpoint import part, read_tensors
    except ImportError as error:
        raise CheckpointError(
            "a weight file needs PyTorch to be read",
            got=str(path),
            allowed="a .safetensors file",
            fix=f"Install PyTorch: {install_command('torch')}",
        ) from error
    return {name: _to_mlx(t) for name, t in part(read_tensors(path), prefix).items()}


def unpack(tensors: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Return tensors of the compact format in float32; integers that are not weights stay as they are."""
    scales = {name + SCALE for name, value in tensors.items() if value.dtype == mx.int8}
    if missing := sorted(scales - tensors.keys()):
        raise CheckpointError(
            "packed weights without their scales",
            got=", ".join(missing[:NAMES_SHOWN]),
            allowed=f"a tensor named …{SCALE} beside each int8 one",
            fix="The file is damaged: install the package again.",
        )

    def to_float32(name: str, value: mx.array) -> mx.array:
        if value.dtype != mx.int8:
            return value
        scale = tensors[name + SCALE].astype(mx.float32)
        return value.astype(mx.float32) * scale.reshape(-1, *[1] * (value.ndim - 1))

    return {name: to_float32(name, value) for name, value in tensors.items() if name not in scales}


def fold_weight_norm(tensors: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Replace each (g, v) pair of weight normalization by the weight g·v/‖v‖, the norm over all axes but the first."""
    folded = {name: t for name, t in tensors.items() if not name.endswith((GAIN, DIRECTION))}
    for name, g in tensors.items():
        v = tensors.get(name.removesuffix(GAIN) + DIRECTION) if name.endswith(GAIN) else None
        if v is not None:
            norm = mx.sqrt(mx.square(v).sum(axis=tuple(range(1, v.ndim)), keepdims=True))
            folded[name.removesuffix(GAIN) + ".weight"] = v * (g / norm)
    return folded


def _state(network: Any) -> dict[str, mx.array]:
    """Return the tensors of a PyTorch network that a program holds in memory."""
    return {name: _to_mlx(value) for name, value in network.state_dict().items()}


def _to_mlx(tensor: Any) -> mx.array:
    """Copy a PyTorch tensor in row-major order; MLX would keep another order, and round its products differently.

    Engines on a CPU reorder the weights of the networks that they share.
    """
    return mx.array(np.ascontiguousarray(tensor.detach().float().cpu().numpy()))
