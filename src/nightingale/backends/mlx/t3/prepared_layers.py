"""T3's quantized layers on disk: written when weights are quantized first, and mapped from then on.

    <cache>/mlx/<digest>.safetensors

The name is a digest of what the content depends on. A file that does not fit is ignored and written again; where
none can be written, weights are quantized each time.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from typing import Final, cast

import mlx.core as mx

from nightingale.backends.base import ModelSource
from nightingale.backends.mlx.arrays import Linear
from nightingale.files import replace_file
from nightingale.voices.home import cache_folder

FORMAT_VERSION: Final = 1
"""Increase it with every change to what a file holds."""
PARTS: Final = ("weight", "scales", "offsets")


class PreparedLayers:
    """The quantized layers of one T3, in the order in which it takes them."""

    def __init__(self, path: Path) -> None:
        self._path, self._layers = path, list[Linear]()
        self._stored: dict[str, mx.array] = {}
        if path.is_file():
            with suppress(Exception):  # a damaged file may raise anything
                self._stored = dict(cast("dict[str, mx.array]", mx.load(str(path))))
        self._is_complete = bool(self._stored)

    @classmethod
    def of(cls, source: ModelSource, precision: str) -> PreparedLayers | None:
        """Return the layers of a model's file in a precision; None for weights that are not in a file."""
        if source.loaded("t3") is not None:
            return None
        file = source.files["t3"].resolve()
        state = file.stat()
        content = FORMAT_VERSION, version("mlx"), precision, str(file), state.st_size, state.st_mtime_ns
        digest = hashlib.sha256(repr((*content, source.info.preset.t3)).encode()).hexdigest()[:32]
        return cls(cache_folder().parent / "mlx" / f"{digest}.safetensors")

    def layer(self, fresh: Linear) -> Linear:
        """Return the next layer, which was quantized but not evaluated: the stored one, if there is one.

        Then the weights that it would be made of are never read.
        """
        number = len(self._layers)
        found = {name: self._stored.get(f"{number}.{name}") for name in PARTS}
        if all(_is_alike(found[name], getattr(fresh, name)) for name in PARTS):
            fresh = fresh._replace(**found)  # type: ignore[arg-type]
        else:
            self._is_complete = False
        self._layers.append(fresh)
        return fresh

    def save(self) -> None:
        """Write the layers, if they are not stored yet and can be."""
        if self._is_complete:
            return
        temporary = self._path.with_name(f".{token_hex(4)}{self._path.suffix}")
        named = {
            f"{number}.{name}": getattr(layer, name)
            for number, layer in enumerate(self._layers)
            for name in PARTS
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            mx.save_safetensors(str(temporary), named)
            replace_file(temporary, self._path)
        except (OSError, RuntimeError):  # no space, or no permission
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _is_alike(stored: mx.array | None, fresh: mx.array) -> bool:
    return stored is not None and (stored.shape, stored.dtype) == (fresh.shape, fresh.dtype)
