"""The ONNX Runtime backend: all of wren without PyTorch, and T3's decode step of the other models."""

from __future__ import annotations

import importlib.util

from nightingale.backends.base import (
    Decoder,
    Encoders,
    Machine,
    ModelInfo,
    ModelSource,
    Renderer,
    Role,
    Setup,
)


class OnnxBackend:
    name = "onnx"
    description = "graphs of ONNX Runtime, for wren without PyTorch"
    device_kinds: tuple[str, ...] = ("cpu",)

    def probe(self, device: str) -> Machine | None:  # noqa: ARG002, a protocol
        return None

    def unsupported_reason(self, role: Role, model: ModelInfo, setup: Setup) -> str | None:
        if model.synthetic:
            return "the model has no weights"
        from nightingale.backends.onnx import torch_free

        if role == "renderer":
            return torch_free.renderer_unsupported_reason(model, setup)
        reason = torch_free.decoder_unsupported_reason(model, setup)
        if reason is None or importlib.util.find_spec("torch") is None:
            return reason
        from nightingale.backends.onnx.opening import unsupported_reason

        return unsupported_reason(model, setup)

    def open_decoder(self, source: ModelSource, setup: Setup) -> Decoder:
        from nightingale.backends.onnx import torch_free

        if torch_free.decoder_unsupported_reason(source.info, setup) is None:
            return torch_free.open_decoder(source, setup)
        from nightingale.backends.onnx.opening import open_decoder

        return open_decoder(source, setup)

    def open_renderer(self, source: ModelSource, setup: Setup) -> Renderer:
        from nightingale.backends.onnx.torch_free import open_renderer

        return open_renderer(source, setup)

    def open_encoders(self, source: ModelSource, setup: Setup) -> Encoders | None:  # noqa: ARG002
        from nightingale.backends.onnx.torch_free import open_encoders

        return open_encoders(source)
