"""Where a model is computed, and in which precision, from a user's words."""

from __future__ import annotations

import torch

from nightingale.engine.plan import DTYPES
from nightingale.errors import ConfigError, DeviceError


def choose_device(asked: str) -> torch.device:
    """The device asked for, or the best one there is."""
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise DeviceError(
            "the device cannot be used",
            got=f"{asked!r} ({str(error).splitlines()[0]})",
            allowed="auto, cpu, or a device this build of torch sees",
            fix="See `nightingale doctor`.",
        ) from error
    return device


def choose_dtype(asked: str) -> torch.dtype:
    """T3's precision. The flow and the vocoder stay in float32: their error is heard directly."""
    if asked == "auto":
        return torch.float32
    if asked not in DTYPES:
        raise ConfigError(
            "unknown dtype", got=repr(asked), allowed=", ".join(["auto", *DTYPES]), fix="Pick one of these."
        )
    return DTYPES[asked]
