"""Sizes of all networks of each model. This file is free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from nightingale.models.chatterbox.encoders.config import (
    SpeechTokenizerConfig,
    VoiceEncoderConfig,
    XVectorConfig,
)
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES, FlowConfig
from nightingale.models.chatterbox.t3 import config as t3
from nightingale.models.frame_vocoder.config import FrameVocoderConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Sizes of the networks of one model."""

    t3: t3.T3Config
    flow: FlowConfig = FlowConfig()
    vocoder: HiftConfig | FrameVocoderConfig = HiftConfig()
    speech_tokenizer: SpeechTokenizerConfig = SpeechTokenizerConfig()
    voice_encoder: VoiceEncoderConfig = VoiceEncoderConfig()
    xvector: XVectorConfig | None = XVectorConfig()
    """None: the flow uses the voice encoder's speaker vector."""


ENGLISH: Final = Preset(t3=t3.ENGLISH)
MULTILINGUAL: Final = Preset(t3=t3.MULTILINGUAL)
TURBO: Final = Preset(t3=t3.TURBO, flow=FlowConfig(meanflow=True))
NANO: Final = replace(TURBO, t3=t3.NANO)
WREN: Final = Preset(
    t3=t3.T3Config(
        backbone=t3.LlamaConfig(
            layers=9, width=320, heads=5, ffn=864, rope_theta=10_000.0, rope_scaling=False
        ),
        # The best of three that were trained to attend to the spoken word (nightingale_lab/bench/word_times.py).
        alignment_heads=((3, 2),),
        text_vocab=512,
        speech_vocab=SPEECH_CODES + 2,
        prompt_tokens=0,
        start_text=255,
        stop_text=0,
        starts=1,
        learned_positions=None,
        perceiver=False,
        head_bias=False,
    ),
    flow=FlowConfig(
        speaker_width=256,
        encoder_width=256,
        encoder_heads=4,
        encoder_blocks=4,
        encoder_up_blocks=2,
        encoder_ffn=512,
        estimator_width=192,
        estimator_heads=3,
        estimator_mid_stages=2,
        estimator_stage_blocks=2,
        mel_mean=-5.8,
        mel_std=2.6,
        meanflow=True,
        block_causal=True,
        # 7.7 s at the encoder's 25 positions a second, 3.8 s at 50: shorter than its training windows.
        left_context=192,
        # Trained as two steps from zeros (nightingale_lab/train/flow.py).
        noise_scale=0.0,
    ),
    vocoder=FrameVocoderConfig(),
    speech_tokenizer=SpeechTokenizerConfig(width=256, heads=4, blocks=4, memory_taps=5, attention_reach=6),
    xvector=None,
)
"""The model in the package, trained by this project (docs/training.md)."""

PRESETS: Final[Mapping[str, Preset]] = {
    "english": ENGLISH,
    "multilingual": MULTILINGUAL,
    "turbo": TURBO,
    "nano": NANO,
    "wren": WREN,
}
