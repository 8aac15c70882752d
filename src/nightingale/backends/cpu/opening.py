"""Check and open the int8 or int4 decoder and the int8 or bf16 renderer."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

import torch

from nightingale.backends.base import Decoder, ModelInfo, ModelSource, Renderer, Setup
from nightingale.backends.cpu import bf16, capabilities
from nightingale.backends.shared.packed_t3 import open_packed
from nightingale.backends.torch.decoder import pool_options
from nightingale.backends.torch.devices import use_threads
from nightingale.backends.torch.opening import renderer_for
from nightingale.backends.torch.weights import rendering_weights, t3_weights
from nightingale.clocks import CLOCKS
from nightingale.decoding.host_decoder import HostDecoder
from nightingale.decoding.kv_cache_size import KVCacheSize
from nightingale.models.chatterbox.build import Vocoder
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.flow import Flow

log = logging.getLogger(__name__)
MAX_VELOCITY_ERROR: Final = 0.05
"""Relative error of the flow's velocity in int8, by the weights that are loaded: with a larger one the flow is
left in float32. Random weights of full size have 0.02 to 0.03. Wren's flow has 0.016, and speech judged beside
float32's was as good (docs/wren.md)."""
CHECKED_FRAMES: Final = 48
MAX_SPECTRUM_ERROR: Final = 0.02
"""Relative error of the vocoder's last layer in int8, log magnitudes and phases, by the weights that are loaded."""
CHECKED_VOCODER_FRAMES: Final = 12
WEIGHT_BITS: Final = {"int8": 8, "int4": 4}
"""Bits of T3's weights by precision; the inputs of its products are int8."""


def decoder_unsupported_reason(model: ModelInfo, setup: Setup) -> str | None:
    if setup.precision not in WEIGHT_BITS:
        return f"its decoder has weights in {' or '.join(WEIGHT_BITS)}, not in {setup.precision}"
    return capabilities.unsupported_reason(model.preset.t3, WEIGHT_BITS[setup.precision])


def renderer_unsupported_reason(setup: Setup) -> str | None:
    """Say why flow and vocoder cannot be run here; a precision is the flow's."""
    if setup.precision == "bfloat16":
        return bf16.bf16_unsupported_reason(torch.get_num_threads())
    if setup.precision == "int8":
        return capabilities.layers_unsupported_reason()
    if setup.precision == "float32":
        return capabilities.vocoder_unsupported_reason(torch.get_num_threads())
    return f"its renderer computes in bfloat16, int8 and float32, not in {setup.precision}"


def open_decoder(source: ModelSource, setup: Setup) -> Decoder:
    from nightingale.backends.cpu.int8_layout import TiledFormat
    from nightingale.backends.cpu.runner import Int8Runner

    load = partial(t3_weights, source, "cpu", "float32")
    t3, packed = open_packed(source, TiledFormat(WEIGHT_BITS[setup.precision]), load)
    runner = Int8Runner(t3, packed, **pool_options(source, setup), threads=setup.threads)
    kv_cache_size = KVCacheSize(source.info.preset.t3, itemsize=2)
    on_start = None if setup.threads is None else partial(use_threads, setup.threads)
    return HostDecoder(runner, kv_cache_size, on_start=on_start)


def open_renderer(source: ModelSource, setup: Setup) -> Renderer:
    convert = {"bfloat16": _to_bf16, "int8": _to_int8, "float32": _to_float32}[setup.precision]
    flow, hift = rendering_weights(source, setup.machine.device, convert, f"cpu-{setup.precision}")
    return renderer_for(source, setup, flow, hift)


def _to_bf16(flow: Flow, vocoder: Vocoder) -> tuple[Flow, Vocoder]:
    return bf16.bf16_flow(flow), bf16.bf16_vocoder(vocoder) if isinstance(vocoder, Hift) else vocoder


def _to_int8(flow: Flow, vocoder: Vocoder) -> tuple[Flow, Vocoder]:
    return _int8_flow(flow), _int8_vocoder(vocoder) if isinstance(vocoder, Hift) else vocoder


def _int8_flow(flow: Flow) -> Flow:
    """Return the flow in int8, or as it is if the error would be too large."""
    from nightingale.backends.cpu.int8_networks import int8_flow

    rounded = int8_flow(flow)
    error = velocity_error(rounded, flow)
    if not error <= MAX_VELOCITY_ERROR:
        log.warning(
            "the flow is rendered in float32: in int8 its velocity would differ by %.0f %%", 100 * error
        )
        return flow
    return rounded


def _int8_vocoder(hift: Hift) -> Hift:
    """Return HiFT in int8, or in float32 if the error would be too large."""
    from nightingale.backends.cpu.winograd_networks import int8_vocoder, winograd_vocoder

    rounded_hift = int8_vocoder(hift)
    error = spectrum_error(rounded_hift, hift)
    if not error <= MAX_SPECTRUM_ERROR:
        log.warning(
            "the vocoder computes in float32: in int8 its spectrum would differ by %.0f %%", 100 * error
        )
        return winograd_vocoder(hift)
    return rounded_hift


@torch.inference_mode()
def spectrum_error(hift: Hift, reference: Hift) -> float:
    """Return how much log magnitudes and phases differ, relative to the reference's, on random inputs."""
    random = torch.Generator().manual_seed(0)
    mel = torch.randn(1, hift.config.mel_bands, CHECKED_VOCODER_FRAMES, generator=random)
    source = 0.1 * torch.randn(1, 1, CLOCKS.samples_per_frame * CHECKED_VOCODER_FRAMES, generator=random)
    ours, theirs = (one.log_spectrum(mel, source) for one in (hift, reference))
    return float((ours - theirs).norm() / theirs.norm())


@torch.inference_mode()
def velocity_error(flow: Flow, reference: Flow) -> float:
    """Return how much the velocity of one evaluation differs, relative to the reference's, on random inputs."""
    config, random = flow.config, torch.Generator().manual_seed(0)
    x, mu, cond = torch.randn(3, 1, config.mel_bands, CHECKED_FRAMES, generator=random)
    inputs = {"mu": mu, "cond": cond, "speaker": torch.randn(1, config.mel_bands, generator=random)}
    times = {"t": torch.full((1,), 0.5), "r": torch.ones(1) if config.meanflow else None}
    ours, theirs = (one.decoder["estimator"](x, **inputs, **times) for one in (flow, reference))
    return float((ours - theirs).norm() / theirs.norm())


def _to_float32(flow: Flow, vocoder: Vocoder) -> tuple[Flow, Vocoder]:
    from nightingale.backends.cpu.winograd_networks import winograd_vocoder

    return flow, winograd_vocoder(vocoder) if isinstance(vocoder, Hift) else vocoder
