"""Sizes of the flow."""

from __future__ import annotations

from dataclasses import dataclass

SPEECH_CODES = 6561
"""3^8 codes of the speech tokenizer; ids from here on are control ids and never reach the flow."""
LOOKAHEAD_TOKENS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowConfig:
    """Token encoder and flow estimator. Defaults are the official model's."""

    mel_bands: int = 80
    speaker_width: int = 192

    encoder_width: int = 512
    encoder_heads: int = 8
    encoder_blocks: int = 6
    encoder_up_blocks: int = 4
    encoder_ffn: int = 2048

    estimator_width: int = 256
    estimator_heads: int = 8
    estimator_mid_stages: int = 12
    estimator_stage_blocks: int = 4

    mel_mean: float = 0.0
    mel_std: float = 1.0
    """The flow moves noise to (mel - mel_mean) / mel_std; the official one works on the mel as it is."""
    meanflow: bool = False
    """Predicts the average velocity over a step: two steps without guidance do the work of twenty passes."""
    block_causal: bool = False
    """Attention never looks past the current streaming block, so a stream equals the whole."""
    remembered: int | None = None
    """How many positions before its block an attention layer of a block-causal flow looks back to, so that a
    block costs the same however long the utterance is; None is all of them."""
    noise_scale: float = 1.0
    """How much of the noise it starts from: less is calmer and clearer, and less varied."""
