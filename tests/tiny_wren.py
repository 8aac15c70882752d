"""Wren at a hundredth of its size: the same shape of every network, quick to build and to run."""

from __future__ import annotations

from dataclasses import replace

from nightingale.models.chatterbox.encoders.config import SpeechTokenizerConfig
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.presets import PRESETS, Preset
from nightingale.models.chatterbox.t3.config import LlamaConfig

WREN = PRESETS["wren"]
TINY = Preset(
    t3=replace(
        WREN.t3,
        backbone=LlamaConfig(layers=1, width=32, heads=2, ffn=32, rope_theta=10_000.0, rope_scaling=False),
    ),
    flow=replace(
        WREN.flow,
        encoder_width=32,
        encoder_heads=2,
        encoder_blocks=1,
        encoder_up_blocks=1,
        encoder_ffn=32,
        estimator_width=32,
        estimator_heads=1,
        estimator_mid_stages=1,
        estimator_stage_blocks=1,
    ),
    hift=HiftConfig(
        base_channels=64,
        resblock_kernels=(3,),
        source_kernels=(3, 3, 3),
        f0_channels=48,
        harmonics=12,
        in_phase=True,
        causal=True,
    ),
    speech_tokenizer=SpeechTokenizerConfig(width=64, heads=1, blocks=1),
    xvector=None,
)
