"""A model of the real architecture, a thousand times smaller, with seeded random PyTorch weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from nightingale.backends.base import ModelInfo
from nightingale.backends.torch.weights import in_memory
from nightingale.engine.load import Model, load_noise
from nightingale.models.chatterbox.build import Vocoder, VoiceEncoders, new_vocoder
from nightingale.models.chatterbox.encoders.config import SpeechTokenizerConfig, VoiceEncoderConfig
from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer
from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.presets import Preset
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES, FlowConfig
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS

TINY_PRESET = Preset(
    t3=T3Config(
        backbone=LlamaConfig(layers=2, width=32, heads=2, ffn=64, rope_scaling=False),
        text_vocab=256,
        speech_vocab=SPEECH_CODES + 2,
        prompt_tokens=16,
        start_text=255,
        stop_text=0,
        starts=2,
        learned_positions=(2050, 1100),
        perceiver=True,
        head_bias=False,
        speaker_width=16,
    ),
    flow=FlowConfig(
        speaker_width=16,
        encoder_width=32,
        encoder_heads=2,
        encoder_blocks=1,
        encoder_up_blocks=1,
        encoder_ffn=64,
        estimator_width=32,
        estimator_heads=1,
        estimator_mid_stages=1,
        estimator_stage_blocks=1,
        meanflow=True,
    ),
    vocoder=HiftConfig(base_channels=32, resblock_kernels=(3,), source_kernels=(3, 3, 3), f0_channels=16),
    speech_tokenizer=SpeechTokenizerConfig(width=64, heads=1, blocks=1),
    voice_encoder=VoiceEncoderConfig(width=16, layers=1, embedding=16),
    xvector=None,
)

Net = TypeVar("Net", bound=nn.Module)


def load_tiny(preset: Preset = TINY_PRESET) -> Model:
    """Return the tiny model with its voice; the same on every machine."""
    rng = torch.Generator().manual_seed(0)
    # PyTorch fills new layers from the process's generator, which tests must not move.
    with torch.random.fork_rng(devices=[]):
        source = in_memory(
            ModelInfo(name="noise", preset=preset, defaults=MODEL_DEFAULTS["noise"]),
            t3=seeded(T3(preset.t3), rng),
            flow=seeded(Flow(preset.flow), rng),
            vocoder=seeded(new_vocoder(preset.vocoder), rng),
            encoders=VoiceEncoders(
                speech_tokenizer=seeded(SpeechTokenizer(preset.speech_tokenizer), rng),
                voice_encoder=seeded(VoiceEncoder(preset.voice_encoder), rng),
                xvector=None,
            ),
        )
    return replace(load_noise(), source=source, notice=None)


def t3_of(model: Model) -> T3:
    t3: T3 = model.source.shared("t3", _absent)
    return t3


def s3gen_of(model: Model) -> tuple[Flow, Vocoder]:
    pair: tuple[Flow, Vocoder] = model.source.shared("s3gen", _absent)
    return pair


def with_networks(
    model: Model, *, t3: T3 | None = None, flow: Flow | None = None, vocoder: Vocoder | None = None
) -> Model:
    """Return the model with other networks."""
    old_flow, old_vocoder = s3gen_of(model)
    source = in_memory(
        model.info, t3=t3 or t3_of(model), flow=flow or old_flow, vocoder=vocoder or old_vocoder
    )
    return replace(model, source=source)


def seeded(net: Net, rng: torch.Generator) -> Net:
    """Draw every weight from `rng`, scaled by its fan-in; biases are zero; gains stay as they were built."""
    for name, weight in net.named_parameters():
        if weight.dim() > 1:
            weight.data.copy_(torch.randn(weight.shape, generator=rng) / weight[0].numel() ** 0.5)
        elif name.endswith("bias") or "bias_" in name:
            weight.data.zero_()
    return net.eval().requires_grad_(False)


def voice_arrays(model: Model) -> dict[str, np.ndarray]:
    """Return the arrays of the model's voice by name."""
    voice = model.default_voice
    assert voice is not None
    names = ("speaker", "prompt_ids", "flow_prompt_ids", "flow_prompt_mel", "flow_speaker")
    return {name: getattr(voice, name) for name in names}


def _absent() -> None:
    raise AssertionError("the model has no networks in memory")
