"""Sizes of the flow, and constants of speech tokens. This file is free of torch."""

from __future__ import annotations

from dataclasses import dataclass

SPEECH_CODES = 6561
"""3^8 codes of the speech tokenizer. Ids from here on are control ids and never reach the flow."""
LOOKAHEAD_TOKENS = 3
"""Tokens after a block that the token encoder needs to render it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowConfig:
    """Sizes of the token encoder and the estimator; the defaults are the official ones."""

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
    """The flow generates (mel - mel_mean) / mel_std; the official one does not normalize the mel."""
    meanflow: bool = False
    """Predict the average velocity over a step: two steps without guidance replace twenty passes."""
    block_causal: bool = False
    """Attend to no later streaming block, so that a stream equals the whole."""
    left_context: int | None = None
    """The positions before its own block that a block-causal flow attends to; None is all of them. With a
    limit the cost of a block does not grow with the utterance."""
    noise_scale: float = 1.0
    """The scale of the initial noise: less is clearer, and less varied."""

    @property
    def step_counts(self) -> range:
        """The numbers of solver steps that may be asked for. Without noise, the steps were trained as two."""
        if not self.noise_scale:
            return range(2, 3)
        return range(1, 11) if self.meanflow else range(1, 51)
