"""A fast BLAS for MLX on Linux, where its wheel brings only the reference one: products take 14 times as long.

A library whose symbols are global before MLX is loaded takes precedence over the one in the wheel. PyTorch's
wheels for ARM bring OpenBLAS; systems may have it as a package.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from ctypes.util import find_library
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def load_fast_blas() -> str | None:
    """Load OpenBLAS for MLX, if there is one and MLX is not loaded yet; return its path or name."""
    if sys.platform != "linux" or "mlx.core" in sys.modules:
        return None
    for library in _candidates():
        with suppress(OSError):
            if hasattr(ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL), "cblas_sgemm"):
                return library
    return None


def _candidates() -> list[str]:
    spec = find_spec("torch")
    folder = Path(spec.origin).parent / "lib" if spec is not None and spec.origin else None
    found = [] if folder is None else [str(path) for path in sorted(folder.glob("libopenblas.so*"))]
    system = find_library("openblas")
    return [*found, *([system] if system else [])]
