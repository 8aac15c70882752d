"""The parts of the model "noise": no weights, test signals only (backends/noise)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nightingale.backends.base import ModelInfo
from nightingale.models.chatterbox.presets import ENGLISH
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES
from nightingale.models.chatterbox.t3.config import LlamaConfig
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.voices.voice import Voice

NOTICE = "the model 'noise' has no weights: its output is a test signal, not speech."
SPEAKER_WIDTH = PROMPT_TOKENS = 16
NOISE = ModelInfo(
    name="noise",
    # Sizes that requests and voices are checked against; no network has them.
    preset=replace(
        ENGLISH,
        t3=replace(
            ENGLISH.t3,
            backbone=LlamaConfig(layers=2, width=32, heads=2, ffn=64, rope_scaling=False),
            alignment_heads=((0, 0),),
            text_vocab=256,
            speech_vocab=SPEECH_CODES + 2,
            prompt_tokens=PROMPT_TOKENS,
            speaker_width=SPEAKER_WIDTH,
        ),
        flow=replace(ENGLISH.flow, speaker_width=SPEAKER_WIDTH),
    ),
    defaults=MODEL_DEFAULTS["noise"],
    synthetic=True,
)


class ByteTokenizer:
    """Each byte is an id; 0 and 255, which UTF-8 text never holds, start and stop a text."""

    vocab_size = 256

    def encode(self, text: str, language: str | None = None) -> list[int]:  # noqa: ARG002, a protocol
        return list(text.encode("utf-8", "ignore"))

    def encode_words(self, text: str, language: str | None = None) -> list[tuple[str, int]]:
        first, *rest = text.split(" ")
        return [
            (first, len(self.encode(first, language))),
            *((word, len(self.encode(" " + word))) for word in rest),
        ]


def noise_voice() -> Voice:
    """Return a voice of random numbers, the same on every machine."""
    rng = np.random.Generator(np.random.PCG64(0))
    return Voice.checked(
        name="noise",
        family="wren",
        speaker=rng.normal(size=SPEAKER_WIDTH),
        prompt_ids=rng.integers(SPEECH_CODES, size=PROMPT_TOKENS),
        flow_prompt_ids=rng.integers(SPEECH_CODES, size=8),
        flow_prompt_mel=rng.normal(size=(16, NOISE.preset.flow.mel_bands)),
        flow_speaker=rng.normal(size=SPEAKER_WIDTH),
        provenance="random numbers",
    )
