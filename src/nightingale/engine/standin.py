"""A stand-in of the real architecture, a thousand times smaller, with seeded random weights.

It says nothing understandable, and says so. It exists so that an installation can be tried, and the whole
path from text to samples tested, without a download.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.engine.model import Model, Once
from nightingale.models.chatterbox.build import VoiceEncoders, Networks
from nightingale.models.chatterbox.encoders.config import SpeechTokenizerConfig, VoiceEncoderConfig
from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer
from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.presets import Preset
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES, FlowConfig
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.text.frontend import Frontend
from nightingale.voices.voice import Voice

Net = TypeVar("Net", bound=nn.Module)

NOTICE = "the model 'noise' has random weights: its sound is noise, not speech."

NOISE = Preset(
    t3=T3Config(
        backbone=LlamaConfig(layers=2, width=32, heads=2, ffn=64, rope_scaling=None),
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
    hift=HiftConfig(base_channels=32, resblock_kernels=(3,), source_kernels=(3, 3, 3), f0_channels=16),
    speech_tokenizer=SpeechTokenizerConfig(width=64, heads=1, blocks=1),
    voice_encoder=VoiceEncoderConfig(width=16, layers=1, embedding=16),
    xvector=None,
)


class ByteTokenizer:
    """Each byte is an id; 0 and 255, which UTF-8 text never holds, start and stop a text."""

    vocab_size = 256

    def encode(self, text: str, language: str | None = None) -> list[int]:  # noqa: ARG002, a protocol
        return list(text.encode("utf-8", "ignore"))


def load_noise() -> Model:
    """The stand-in, the same on every machine."""
    rng = torch.Generator().manual_seed(0)
    # torch fills new layers from the process's generator, which is not ours to move.
    with torch.random.fork_rng(devices=[]):
        networks = Networks(
            t3=seeded(T3(NOISE.t3), rng),
            flow=seeded(Flow(NOISE.flow), rng),
            hift=seeded(Hift(NOISE.hift), rng),
        )
        encoders = VoiceEncoders(
            speech_tokenizer=seeded(SpeechTokenizer(NOISE.speech_tokenizer), rng),
            voice_encoder=seeded(VoiceEncoder(NOISE.voice_encoder), rng),
            xvector=None,
        )
    voice = Voice.checked(
        name="noise",
        family="wren",
        speaker=torch.randn(16, generator=rng),
        prompt_ids=torch.randint(SPEECH_CODES, (16,), generator=rng),
        flow_prompt_ids=torch.randint(SPEECH_CODES, (8,), generator=rng),
        flow_prompt_mel=torch.randn(16, 80, generator=rng),
        flow_speaker=torch.randn(16, generator=rng),
        provenance="random numbers",
    )
    return Model(
        name="noise",
        voice_family="wren",
        frontend=Frontend(tokenizer=ByteTokenizer()),
        networks=networks,
        encoders=Once(lambda: encoders),
        defaults=MODEL_DEFAULTS["noise"],
        default_voice=voice,
        fingerprint="noise",
        voices=Path(__file__).with_name("standin_voices"),  # which is not there: wren's are not for it
        notice=NOTICE,
    )


def seeded(net: Net, rng: torch.Generator) -> Net:
    """Every weight drawn from `rng`, scaled by its fan-in; biases zero; gains as they were built."""
    for name, weight in net.named_parameters():
        if weight.dim() > 1:
            weight.data.copy_(torch.randn(weight.shape, generator=rng) / weight[0].numel() ** 0.5)
        elif name.endswith("bias") or "bias_" in name:
            weight.data.zero_()
    return net.eval().requires_grad_(False)
