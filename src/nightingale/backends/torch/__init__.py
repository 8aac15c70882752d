"""The reference backend: PyTorch in float32 or bfloat16, on any device that PyTorch has."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from nightingale.backends.base import (
    TORCH_MISSING,
    Backend,
    Decoder,
    Encoders,
    Machine,
    ModelInfo,
    ModelSource,
    Renderer,
    Role,
    Setup,
)


class TorchBackend(Backend):
    name = "torch"
    description = "PyTorch, the reference"
    device_kinds: tuple[str, ...] = ()

    def probe(self, device: str) -> Machine | None:
        # Importing PyTorch takes seconds, so it is not asked where there can be no GPU.
        if importlib.util.find_spec("torch") is None or (
            device in ("auto", "cpu") and not has_nvidia_driver()
        ):
            return None
        from nightingale.backends.torch.devices import describe

        return describe(device)

    def unsupported_reason(self, role: Role, model: ModelInfo, setup: Setup) -> str | None:  # noqa: ARG002
        if importlib.util.find_spec("torch") is None:
            return TORCH_MISSING
        if model.synthetic:
            return "the model has no weights"
        if setup.precision not in ("float32", "bfloat16"):
            return f"it computes in float32 and bfloat16, not in {setup.precision}"
        return None

    def open_decoder(self, source: ModelSource, setup: Setup) -> Decoder:
        from nightingale.backends.torch.decoder import open_decoder

        return open_decoder(source, setup)

    def open_renderer(self, source: ModelSource, setup: Setup) -> Renderer:
        from nightingale.backends.torch.opening import open_renderer

        return open_renderer(source, setup)

    def open_encoders(self, source: ModelSource, setup: Setup) -> Encoders | None:
        from nightingale.backends.torch.encoders import TorchEncoders
        from nightingale.backends.torch.weights import load_voice_encoders

        del setup
        return TorchEncoders(load_voice_encoders(source))


def has_nvidia_driver() -> bool:
    """Return True if this machine may have an NVIDIA GPU: on Linux, if the driver's files exist."""
    files = ("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version", "/usr/lib/wsl/lib/libcuda.so.1")
    return sys.platform != "linux" or any(Path(file).exists() for file in files)
