"""Wren at a hundredth of its size: the same shape of every network, quick to build and to run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nightingale.models.chatterbox.encoders.config import SpeechTokenizerConfig
from nightingale.models.chatterbox.presets import PRESETS, Preset
from nightingale.models.chatterbox.t3.config import LlamaConfig
from nightingale.models.frame_vocoder.config import FrameVocoderConfig

WREN = PRESETS["wren"]
TINY_VOCODER = FrameVocoderConfig(width=32, hidden=48, blocks=2, pitch_width=32)
TINY_VOCODER_GRAPH = Path(__file__).parent / "backends" / "onnx" / "tiny_vocoder.onnx"
"""The tiny vocoder's graph, as `nightingale_lab.train.graphs.vocoder_graph` returns it. Write it again when the network
changes; tests/backends/onnx/test_vocoder.py compares it with the network."""
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
    vocoder=TINY_VOCODER,
    speech_tokenizer=SpeechTokenizerConfig(width=64, heads=1, blocks=1),
    xvector=None,
)
