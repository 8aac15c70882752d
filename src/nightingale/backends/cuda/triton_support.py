"""Choice between Triton kernels and library calls, and the fallback where Triton cannot be used.

Nothing here imports Triton: it may be missing, or its compiler may fail on this machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

import torch

from nightingale.errors import ConfigError

log = logging.getLogger(__name__)
Result = TypeVar("Result")
KernelChoice = Literal["auto", "library", "triton"]
"""Library calls of torch, or our Triton kernels. auto: the kernels on a GPU, if they can be used."""


class Tuning(NamedTuple):
    """Launch parameters of T3's matrix-vector kernel. benchmarks/gpu.py times several (--tunings)."""

    block_out: int = 8
    block_in: int = 256
    """With 8 values per thread a warp loads 256 at once; then no sum crosses warps."""
    warps: int = 4
    pdl: bool = False
    """Programmatic dependent launch: the next kernel starts, and loads its weights, while this one ends."""


def supports_pdl(device: torch.device) -> bool:
    """Return whether the GPU has programmatic dependent launch: Hopper and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def load_kernels(
    choice: KernelChoice, load: Callable[[], Result], *, what: str, default: bool
) -> Result | None:
    """Return what `load` makes of the Triton kernels, or None if library calls are to be used.

    Args:
        choice: With "triton", a failure is an error; with "auto", it is logged.
        load: Imports, and perhaps tries, the kernels.
        what: The part of the model, for messages.
        default: Whether "auto" means the kernels here.

    Raises:
        ConfigError: The kernels were asked for and cannot be used.
    """
    if choice == "library" or (choice == "auto" and not default):
        return None
    try:
        return load()
    except Exception as error:  # an import or a compiler may fail in many ways
        if choice == "triton":
            raise ConfigError(
                f"the kernels of {what} need Triton",
                got=f"{type(error).__name__}: {error}",
                fix="Install Triton and a C compiler, or use library calls.",
            ) from error
        log_fallback(what, error)
        return None


def log_fallback(what: str, error: Exception) -> None:
    log.warning("%s runs by library calls, more slowly: %s", what, error)
