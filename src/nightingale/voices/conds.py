"""Read upstream's built-in voice, `conds.pt`, without PyTorch.

The file is a zip archive: `data.pkl` describes a dictionary of tensors, and each tensor's bytes are a member
of their own. Only the few classes that such a file needs are resolved, so the pickle cannot run code.
"""

from __future__ import annotations

import math
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DTYPES = {
    "FloatStorage": np.float32,
    "DoubleStorage": np.float64,
    "HalfStorage": np.float16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "BoolStorage": np.bool_,
}
MAX_STORAGE_BYTES = 64 << 20
"""A voice has less than one megabyte."""


class _Unpickler(pickle._Unpickler):
    """Unpickles tensors. In Python, because the memo of the C version takes gigabytes if a file asks for it."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(archive.open(f"{root}/data.pkl"))
        self._archive, self._root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a voice")

    def persistent_load(self, pid: Any) -> NDArray[Any]:
        _, dtype, key, _, _ = pid
        member = self._archive.getinfo(f"{self._root}/data/{key}")
        if member.file_size > MAX_STORAGE_BYTES:  # zipfile reads no more than this size
            raise ValueError(f"a tensor of {member.file_size} bytes")
        return np.frombuffer(self._archive.read(member), dtype)


def _tensor(
    storage: NDArray[Any], offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> NDArray[Any]:
    if math.prod(shape) > len(storage):
        raise ValueError("a tensor is larger than its storage")
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else 0
    if offset < 0 or min(stride, default=0) < 0 or last >= max(1, len(storage)):
        raise ValueError("a tensor reaches beyond its storage")
    strides = tuple(storage.itemsize * s for s in stride)
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, strides).copy()


def read_tensors(path: Path) -> Any:
    """Read a file that `torch.save` wrote: dictionaries of tensors, as numpy arrays.

    Raises:
        ValueError: The file is damaged, or holds other objects.
        OSError: The file cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            root = next(n for n in archive.namelist() if n.endswith("/data.pkl")).removesuffix("/data.pkl")
            return _Unpickler(archive, root).load()
    except (
        EOFError, RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, struct.error, LookupError,
        TypeError, AttributeError, AssertionError, ArithmeticError, MemoryError, StopIteration,
    ) as error:  # fmt: skip
        raise ValueError(f"{type(error).__name__}: {error}") from error
