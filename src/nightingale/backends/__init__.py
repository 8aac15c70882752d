"""The registry of backends, one line each.

A profile's preferences come first; where none of them fits, backends are tried from the last line up. Adding a
backend is a folder and a line here. Importing this module imports no PyTorch.
"""

from __future__ import annotations

from typing import Final

from nightingale.backends.base import Backend
from nightingale.backends.cpu import CpuBackend
from nightingale.backends.cuda import CudaBackend
from nightingale.backends.mlx import MlxBackend
from nightingale.backends.noise import NoiseBackend
from nightingale.backends.onnx import OnnxBackend
from nightingale.backends.torch import TorchBackend

BACKENDS: Final[tuple[Backend, ...]] = (
    CudaBackend(),
    MlxBackend(),
    CpuBackend(),
    OnnxBackend(),
    NoiseBackend(),
    TorchBackend(),
)
