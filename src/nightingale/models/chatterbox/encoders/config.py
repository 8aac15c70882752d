"""Sizes of the three encoders that turn a reference clip into a voice. This file is free of torch."""

from __future__ import annotations

from dataclasses import dataclass

FSQ_LEVELS = 3
"""Values that each digit of a speech code can have."""
FSQ_SCALE = 0.9990000128746033
"""Keeps tanh below 1, so that rounding gives only -1, 0 and 1."""
ROPE_THETA = 10_000.0
FRAMES_PER_TOKEN = 4
WINDOW_FRAMES = 3000
OVERLAP_FRAMES = 400
"""Clips over 30 s are read in windows of 30 s that overlap by 4 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechTokenizerConfig:
    """Sizes of the speech tokenizer; the defaults are the official ones."""

    mel_bands: int = 128
    width: int = 1280
    heads: int = 20
    blocks: int = 6
    memory_taps: int = 31
    code_digits: int = 8
    attention_reach: int | None = None
    """Tokens on either side that a token attends to; None is the whole clip, as in the official model. With a
    reach, the code of a sound does not depend on speech long before or after it."""

    @property
    def codes(self) -> int:
        return int(FSQ_LEVELS**self.code_digits)


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceEncoderConfig:
    """Sizes of the voice encoder; the defaults are the official ones."""

    mel_bands: int = 40
    width: int = 256
    layers: int = 3
    embedding: int = 256
    window_frames: int = 160
    step_frames: int = 77
    """1.3 windows a second: round(16000 / 1.3 / 160)."""
    min_coverage: float = 0.8
    """A partly filled last window counts if the clip covers at least this fraction of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XVectorConfig:
    """Sizes of the x-vector network; the defaults are the official ones."""

    mel_bands: int = 80
    front_channels: int = 32
    stem_channels: int = 128
    growth: int = 32
    bottleneck: int = 128
    depths: tuple[int, ...] = (12, 24, 16)
    dilations: tuple[int, ...] = (1, 2, 2)
    embedding: int = 192
