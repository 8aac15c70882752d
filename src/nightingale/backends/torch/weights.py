"""Load the networks for PyTorch-based backends, once per device and precision.

Objects that tests or programs loaded themselves stand in `ModelSource` under the keys of `in_memory`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from nightingale.backends.base import ModelInfo, ModelSource
from nightingale.backends.torch.devices import DTYPES
from nightingale.models.chatterbox.build import Vocoder, VoiceEncoders, load_encoders, load_s3gen, load_t3
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.compact import unpack
from nightingale.models.layers.weight_layout import pack_for_rendering


def in_memory(
    info: ModelInfo, *, t3: T3, flow: Flow, vocoder: Vocoder, encoders: VoiceEncoders | None = None
) -> ModelSource:
    """Return the source of a model whose networks exist already."""
    loaded: dict[str, Any] = {"t3": t3, "s3gen": (flow, vocoder)}
    if encoders is not None:
        loaded["encoders"] = encoders
    return ModelSource(info, {}, loaded=loaded)


def unpacker(source: ModelSource) -> Callable[..., Any]:
    return unpack if source.packed else dict


def t3_weights(source: ModelSource, device: str, precision: str, *, owned: bool = False) -> T3:
    """Return T3 on a device. owned: a copy that the caller may change in place."""
    dtype = DTYPES[precision]

    def make() -> T3:
        given: T3 | None = source.loaded("t3")
        if given is not None:
            weight = given.speech_head.weight
            if not owned and weight.dtype == dtype and weight.device == torch.device(device):
                return given
            return copy.deepcopy(given).to(device, dtype)
        return load_t3(source.info.preset.t3, source.files["t3"], unpacker(source)).to(device, dtype)

    return make() if owned else source.shared(f"t3@{device}/{precision}", make)


def rendering_weights(
    source: ModelSource,
    device: str,
    convert: Callable[[Flow, Vocoder], tuple[Flow, Vocoder]] | None = None,
    key: str = "",
) -> tuple[Flow, Vocoder]:
    """Return the flow and the vocoder in float32 on a device, or as `convert` makes them (under `key`).

    Conversion happens before the layout, so that weights are never held in both precisions.
    """

    def make() -> tuple[Flow, Vocoder]:
        flow, vocoder = (_on(net, device) for net in load_rendering(source))
        if convert is not None:
            flow, vocoder = convert(flow, vocoder)
        if device == "cpu":
            pack_for_rendering(flow)
            pack_for_rendering(vocoder)
        return flow, vocoder

    return source.shared(f"s3gen@{device}/{key}", make)


def load_rendering(source: ModelSource) -> tuple[Flow, Vocoder]:
    """Return the flow and the vocoder in float32 as they are stored."""
    if (networks := source.loaded("s3gen")) is not None:
        flow, vocoder = networks
        return flow, vocoder
    flow, vocoder = load_s3gen(source.info.preset, source.files["s3gen"], unpacker(source))
    return flow.to(torch.float32), vocoder.to(torch.float32)


def load_voice_encoders(source: ModelSource) -> VoiceEncoders:
    def make() -> VoiceEncoders:
        return load_encoders(source.info.preset, source.files, unpacker(source))

    return source.shared("encoders", make)


def _on(net: Any, device: str) -> Any:
    weight = next(net.parameters())
    if weight.device == torch.device(device):
        return net
    moved: nn.Module = copy.deepcopy(net).to(device)
    return moved
