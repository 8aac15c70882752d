"""The CPU backend: int8 and bf16 kernels, generated for this processor when a model is loaded.

See docs/internals/kernels.md. The networks around the kernels are PyTorch modules.
"""

from __future__ import annotations

import importlib.util
import sys

from nightingale.backends.base import (
    TORCH_MISSING,
    Backend,
    Decoder,
    ModelInfo,
    ModelSource,
    Renderer,
    Role,
    Setup,
)
from nightingale.backends.shared.capability_checks import SMALL_MODEL_WEIGHTS, weight_count


class CpuBackend(Backend):
    name = "cpu"
    description = "int8 and bf16 kernels generated for this processor"
    device_kinds: tuple[str, ...] = ("cpu",)

    def unsupported_reason(self, role: Role, model: ModelInfo, setup: Setup) -> str | None:
        if importlib.util.find_spec("torch") is None:
            return TORCH_MISSING
        if model.synthetic:
            return "the model has no weights"
        if sys.platform == "darwin":
            return "its kernels have not been measured on macOS"
        if role == "decoder" and weight_count(model.preset.t3) <= SMALL_MODEL_WEIGHTS:
            return "onnxruntime starts sooner with such a small model"  # and PyTorch need not be imported
        from nightingale.backends.cpu import opening

        if role == "decoder":
            return opening.decoder_unsupported_reason(model, setup)
        return opening.renderer_unsupported_reason(setup)

    def open_decoder(self, source: ModelSource, setup: Setup) -> Decoder:
        from nightingale.backends.cpu.opening import open_decoder

        return open_decoder(source, setup)

    def open_renderer(self, source: ModelSource, setup: Setup) -> Renderer:
        from nightingale.backends.cpu.opening import open_renderer

        return open_renderer(source, setup)
