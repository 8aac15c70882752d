"""The ONNX Runtime backend: T3's decode step as one graph, in float32 or int8."""

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
    description = "T3's step as one graph of ONNX Runtime"
    device_kinds: tuple[str, ...] = ("cpu",)

    def probe(self, device: str) -> Machine | None:  # noqa: ARG002, a protocol
        return None

    def unsupported_reason(self, role: Role, model: ModelInfo, setup: Setup) -> str | None:
        if role != "decoder":
            return "it does not render yet"
        if importlib.util.find_spec("torch") is None:
            return "PyTorch is not installed (pip install 'nightingale-tts[torch]')"
        if model.synthetic:
            return "the model has no weights"
        from nightingale.backends.onnx.opening import unsupported_reason

        return unsupported_reason(model, setup)

    def open_decoder(self, source: ModelSource, setup: Setup) -> Decoder:
        from nightingale.backends.onnx.opening import open_decoder

        return open_decoder(source, setup)

    def open_renderer(self, source: ModelSource, setup: Setup) -> Renderer:
        raise NotImplementedError("`unsupported_reason` refuses this role")

    def open_encoders(self, source: ModelSource, setup: Setup) -> Encoders | None:  # noqa: ARG002
        return None
