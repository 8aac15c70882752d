"""The renderer of the MLX backend."""

from __future__ import annotations

from nightingale.backends.base import ModelSource, Renderer, Setup


def open_renderer(source: ModelSource, setup: Setup) -> Renderer:
    raise NotImplementedError
