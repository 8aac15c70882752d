"""Open the PyTorch renderer, pipelined over threads where that pays."""

from __future__ import annotations

from nightingale.backends.base import ModelSource, Renderer, Setup
from nightingale.backends.torch.pipelined import PipelinedRenderer, share_cores
from nightingale.backends.torch.renderer import TorchRenderer
from nightingale.backends.torch.weights import rendering_weights
from nightingale.models.chatterbox.build import Vocoder
from nightingale.models.chatterbox.s3gen.flow import Flow


def open_renderer(source: ModelSource, setup: Setup) -> Renderer:
    """Open the renderer in float32."""
    flow, vocoder = rendering_weights(source, setup.machine.device)
    return renderer_for(source, setup, flow, vocoder)


def renderer_for(source: ModelSource, setup: Setup, flow: Flow, vocoder: Vocoder) -> Renderer:
    """Return the renderer of networks that PyTorch runs, whatever their layers are."""
    flow = flow.with_steps(setup.profile.flow_steps)
    renderer = TorchRenderer(flow, vocoder, streaming=setup.profile.in_blocks)
    if not setup.profile.in_blocks or setup.machine.kind != "cpu":
        return renderer
    shares = share_cores(source.info.preset.t3.backbone.parameters)
    return renderer if shares is None else PipelinedRenderer(renderer, shares)
