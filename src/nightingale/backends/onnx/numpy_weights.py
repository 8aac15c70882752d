"""Weights of a model as numpy arrays: what the graphs are built from, without PyTorch.

Files are safetensors, in wren's compact format (models/compact.py) or plain. Networks that a program holds in
memory are read through `state_dict`, so this file works with them and never imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from nightingale.backends.base import ModelSource
from nightingale.backends.shared.int8_blocks import INT8_MAX, ZERO_POINT, block_size_for
from nightingale.errors import CheckpointError

Floats = NDArray[np.float32]
SCALE: Final = ".scale"


class RowQuantized(NamedTuple):
    """A matrix in the compact format: weight = codes · scales, one scale per row."""

    codes: NDArray[np.int8]
    scales: Floats
    """(rows,)."""

    def rows(self, indices: Any) -> Floats:
        """Return some rows in float32."""
        rows: Floats = self.codes[indices].astype(np.float32) * self.scales[indices][..., None]
        return rows


class BlockQuantized(NamedTuple):
    """A matrix as MatMulNBits reads it: codes (outputs, blocks, block), scales (outputs, blocks)."""

    codes: NDArray[np.uint8]
    """One byte each, of which ZERO_POINT stands for zero."""
    scales: Floats


def read_packed(path: Path, prefix: str = "") -> dict[str, Floats | RowQuantized]:
    """Return the tensors under a prefix, without the prefix; matrices of the compact format stay in int8."""
    try:
        with safe_open(path, framework="np") as file:
            stored: dict[str, NDArray[Any]] = {
                name.removeprefix(prefix): file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118, no mapping
                if name.startswith(prefix)
            }
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            "a weight file cannot be read",
            got=f"{path}: {error}",
            allowed="a whole .safetensors file",
            fix="Install the package again.",
        ) from error
    if broken := [
        n for n, value in stored.items() if value.dtype.kind == "f" and not np.isfinite(value).all()
    ]:
        raise CheckpointError(
            "a weight file has values that are not finite",
            got=f"{path}: {', '.join(broken[:6])}",
            fix="The file is damaged: install the package again.",
        )
    scales = {name + SCALE for name, value in stored.items() if value.dtype == np.int8}
    if missing := sorted(scales - stored.keys()):
        raise CheckpointError(
            "packed weights without their scales",
            got=", ".join(missing[:6]),
            allowed=f"a tensor named …{SCALE} beside each int8 one",
            fix="The file is damaged: install the package again.",
        )
    return {
        name: RowQuantized(value, stored[name + SCALE].astype(np.float32))
        if value.dtype == np.int8
        else value.astype(np.float32)
        for name, value in stored.items()
        if name not in scales
    }


@contextmanager
def fitting_weights(source: ModelSource) -> Iterator[None]:
    """Raise CheckpointError where a network is built from weights that are missing or have other shapes."""
    try:
        yield
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            "the weights do not fit the model",
            got=f"{type(error).__name__}: {error} in {', '.join(map(str, source.files.values())) or 'memory'}",
            allowed=f"the tensors of {source.info.name}",
            fix="Check that the files belong to this model, or install the package again.",
        ) from error


def unpack(packed: Mapping[str, Floats | RowQuantized]) -> dict[str, Floats]:
    """Return all tensors in float32."""
    return {name: dequantize(value) for name, value in packed.items()}


class LazyFloats:
    """Weights that are read, and converted to float32, when they are asked for."""

    def __init__(self, read: Callable[[str], Floats | RowQuantized]) -> None:
        self._read = read

    def __getitem__(self, name: str) -> Floats:
        return dequantize(self._read(name))


Weights = Mapping[str, Floats] | LazyFloats
PackedWeights = Mapping[str, Floats | RowQuantized] | Weights


def take_rows(table: Floats | RowQuantized, ids: Any) -> Floats:
    """Return some rows of a table in float32."""
    return table.rows(ids) if isinstance(table, RowQuantized) else table[ids]


def dequantize(value: Floats | RowQuantized) -> Floats:
    if not isinstance(value, RowQuantized):
        return value
    shape = (-1, *[1] * (value.codes.ndim - 1))
    return np.multiply(value.codes, value.scales.reshape(shape), dtype=np.float32)


def quantize_blocks(weight: Floats | RowQuantized) -> BlockQuantized:
    """Return a matrix in blocks, as backends/shared/quantize.py does; a compact one keeps its values."""
    outputs, inputs = (weight.codes if isinstance(weight, RowQuantized) else weight).shape
    block = block_size_for(inputs)
    shape = (outputs, inputs // block, block)
    if isinstance(weight, RowQuantized):
        codes = np.ascontiguousarray(weight.codes).view(np.uint8) ^ np.uint8(ZERO_POINT)
        return BlockQuantized(codes.reshape(shape), np.repeat(weight.scales[:, None], shape[1], axis=1))
    parts = weight.reshape(shape)
    scales = np.maximum(parts.max(axis=-1), -parts.min(axis=-1)) / np.float32(INT8_MAX)
    levels = parts / np.where(scales > 0, scales, np.float32(1))[..., None]
    np.rint(levels, out=levels)
    levels += ZERO_POINT
    return BlockQuantized(levels.astype(np.uint8), scales)


def flow_weights(source: ModelSource) -> dict[str, Floats | RowQuantized]:
    """Return the flow's tensors; the table of token embeddings stays in int8 where it is stored so."""
    if (networks := source.loaded("s3gen")) is not None:
        return {**network_weights(networks[0])}
    return read_packed(source.files["s3gen"], "flow.")


def vocoder_weights(source: ModelSource) -> dict[str, Floats]:
    """Return the vocoder's tensors in float32."""
    if (networks := source.loaded("s3gen")) is not None:
        return network_weights(networks[1])
    return unpack(read_packed(source.files["s3gen"], "mel2wav."))


def t3_weights(source: ModelSource) -> dict[str, Floats | RowQuantized]:
    if (t3 := source.loaded("t3")) is not None:
        return {**network_weights(t3)}
    return read_packed(source.files["t3"])


def encoder_weights(source: ModelSource, name: str) -> dict[str, Floats]:
    """Return the weights of "speech_tokenizer" or "voice_encoder"."""
    if (encoders := source.loaded("encoders")) is not None:
        return network_weights(getattr(encoders, name))
    if name == "voice_encoder":
        return unpack(read_packed(source.files["voice_encoder"]))
    return unpack(read_packed(source.files["s3gen"], "tokenizer."))


def network_weights(network: Any) -> dict[str, Floats]:
    """Return the tensors of a network that PyTorch holds."""
    return {name: np.asarray(value.detach(), np.float32) for name, value in network.state_dict().items()}
