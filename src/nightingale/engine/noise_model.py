"""The model "noise": no weights, test signals only (backends/noise)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nightingale.backends.base import ModelInfo, ModelSource
from nightingale.engine.model import Model
from nightingale.models.chatterbox.encoders.config import SpeechTokenizerConfig, VoiceEncoderConfig
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.presets import Preset
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES, FlowConfig
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.text.frontend import Frontend
from nightingale.voices.voice import Voice

NOTICE = "the model 'noise' has no weights: its output is a test signal, not speech."
NOISE_PRESET = Preset(
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
    hift=HiftConfig(base_channels=32, resblock_kernels=(3,), source_kernels=(3, 3, 3), f0_channels=16),
    speech_tokenizer=SpeechTokenizerConfig(width=64, heads=1, blocks=1),
    voice_encoder=VoiceEncoderConfig(width=16, layers=1, embedding=16),
    xvector=None,
)
"""Sizes that requests and voices are checked against; no network has them."""
NOISE = ModelInfo(name="noise", preset=NOISE_PRESET, defaults=MODEL_DEFAULTS["noise"], synthetic=True)


class ByteTokenizer:
    """Each byte is an id; 0 and 255, which UTF-8 text never holds, start and stop a text."""

    vocab_size = 256

    def encode(self, text: str, language: str | None = None) -> list[int]:  # noqa: ARG002, a protocol
        return list(text.encode("utf-8", "ignore"))


def load_noise() -> Model:
    """Return the model, the same on every machine."""
    rng = np.random.Generator(np.random.PCG64(0))
    width, bands = NOISE_PRESET.t3.speaker_width, NOISE_PRESET.flow.mel_bands
    voice = Voice.checked(
        name="noise",
        family="wren",
        speaker=rng.normal(size=width),
        prompt_ids=rng.integers(SPEECH_CODES, size=16),
        flow_prompt_ids=rng.integers(SPEECH_CODES, size=8),
        flow_prompt_mel=rng.normal(size=(16, bands)),
        flow_speaker=rng.normal(size=width),
        provenance="random numbers",
    )
    return Model(
        voice_family="wren",
        frontend=Frontend(tokenizer=ByteTokenizer()),
        source=ModelSource(NOISE, {}),
        default_voice=voice,
        fingerprint="noise",
        voices=Path(__file__).with_name("noise_voices"),  # does not exist: wren's voices do not fit
        notice=NOTICE,
    )
