"""Saving of averaged weights."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


def save_float16(tensors: dict[str, Tensor], path: Path) -> None:
    """Write float16 copies, which are smaller to transfer."""
    partial = path.with_name(path.name + ".partial")
    save_file(
        {name: t.detach().to("cpu", torch.float16).contiguous() for name, t in tensors.items()}, partial
    )
    partial.replace(path)
