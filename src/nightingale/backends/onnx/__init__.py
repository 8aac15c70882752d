"""The ONNX Runtime backend: all of wren without PyTorch, and T3's decode step of the other models."""

from __future__ import annotations

from nightingale.backends.base import (
    Backend,
    Decoder,
    Encoders,
    ModelInfo,
    ModelSource,
    Renderer,
    Role,
    Setup,
)
from nightingale.backends.shared.capability_checks import available_cores
from nightingale.backends.shared.pipeline import CoreShares


class OnnxBackend(Backend):
    name = "onnx"
    description = "graphs of ONNX Runtime, for wren without PyTorch"
    device_kinds: tuple[str, ...] = ("cpu",)

    def unsupported_reason(self, role: Role, model: ModelInfo, setup: Setup) -> str | None:
        if model.synthetic:
            return "the model has no weights"
        from nightingale.backends.onnx import capabilities

        if role == "renderer":
            return capabilities.renderer_unsupported_reason(model, setup)
        return capabilities.decoder_unsupported_reason(model, setup)

    def decoder_threads(self) -> int:
        return CoreShares.of(available_cores(), available_cores()).decoder

    def open_decoder(self, source: ModelSource, setup: Setup) -> Decoder:
        from nightingale.backends.onnx.opening import open_decoder

        return open_decoder(source, setup)

    def open_renderer(self, source: ModelSource, setup: Setup) -> Renderer:
        from nightingale.backends.onnx.opening import open_renderer

        return open_renderer(source, setup)

    def open_encoders(self, source: ModelSource, setup: Setup) -> Encoders | None:  # noqa: ARG002
        from nightingale.backends.onnx.opening import open_encoders

        return open_encoders(source)
