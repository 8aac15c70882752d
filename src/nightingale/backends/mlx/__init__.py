"""The MLX backend: T3, the flow and the vocoder on Apple silicon, without PyTorch.

MLX also runs on Linux, on the CPU: that is how this backend is tested against PyTorch, and is asked for by
`device="mlx"`. Weights and results are evaluated in the thread that makes them, because MLX's streams belong to
one thread each: an array may cross threads only once it has been evaluated.
"""

from __future__ import annotations

from nightingale.backends.base import (
    Backend,
    Decoder,
    Machine,
    ModelInfo,
    ModelSource,
    Renderer,
    Role,
    Setup,
)


class MlxBackend(Backend):
    name = "mlx"
    description = "MLX, for the GPU of Apple silicon"
    device_kinds: tuple[str, ...] = ("mlx",)

    def probe(self, device: str) -> Machine | None:
        from nightingale.backends.mlx import capabilities

        return capabilities.probe(device)

    def unsupported_reason(self, role: Role, model: ModelInfo, setup: Setup) -> str | None:
        from nightingale.backends.mlx import capabilities

        return capabilities.unsupported_reason(role, model, setup)

    def open_decoder(self, source: ModelSource, setup: Setup) -> Decoder:
        from nightingale.backends.mlx.decoder import open_decoder

        return open_decoder(source, setup)

    def open_renderer(self, source: ModelSource, setup: Setup) -> Renderer:
        from nightingale.backends.mlx.renderer import open_renderer

        return open_renderer(source, setup)
