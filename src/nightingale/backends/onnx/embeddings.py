"""Embed prompts and speech tokens in numpy, for Llama models whose prompt is only embedded, such as wren.

Prompts of the other models pass through layers that are written in PyTorch; torch_model.py embeds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from nightingale.backends.onnx.numpy_weights import Floats, PackedWeights, dequantize, take_rows
from nightingale.decoding.decoding import Prompt
from nightingale.models.chatterbox.t3.config import START_SPEECH, LlamaConfig, T3Config


def torch_reason(config: T3Config) -> str | None:
    """Return why a T3's prompts must be embedded by PyTorch, or None if numpy is enough."""
    if not isinstance(config.backbone, LlamaConfig) or config.backbone.rope_scaling:
        return "its backbone is not a plain Llama"
    if config.perceiver or config.learned_positions is not None or config.head_bias:
        return "its prompt needs layers that are written in PyTorch"
    return None


class Embeddings(Protocol):
    """Embeds prompts and speech tokens of one T3."""

    absolute: Floats | None
    """GPT-2's position embeddings (positions, width), which are added to everything; None elsewhere."""

    def prompt(self, prompt: Prompt) -> Floats:
        """Return the embeddings (rows, time, width) of everything before the first speech token."""

    def speech(self, tokens: Sequence[int], positions: Sequence[int]) -> Floats:
        """Return the embeddings (n, width) of speech tokens at positions after the start token."""

    def rotary_tables(self, positions: int) -> dict[str, Floats]:
        """Return "cos" and "sin", (positions, head_dim / 2), which both halves of a head share; or nothing."""


class NumpyEmbeddings:
    """Embeddings from weights, without PyTorch."""

    absolute: Floats | None = None

    def __init__(self, config: T3Config, weights: PackedWeights) -> None:
        self.config = config
        self._text, self._speech = weights["text_emb.weight"], weights["speech_emb.weight"]
        self._speaker = dequantize(weights["cond_enc.spkr_enc.weight"])
        self._speaker_bias = weights["cond_enc.spkr_enc.bias"]

    def prompt(self, prompt: Prompt) -> Floats:
        """Return  speaker ‖ the clip's tokens ‖ text ‖ start;  the row without text has zeros in its place."""
        voice = prompt.voice
        text = take_rows(self._text, self.config.frame_text(prompt.text_ids))
        before = [
            (self._speaker @ voice.speaker + self._speaker_bias)[None],
            take_rows(self._speech, voice.prompt_ids[: self.config.prompt_tokens]),
        ]
        start = take_rows(self._speech, [START_SPEECH] * self.config.starts)
        texts = [text, np.zeros_like(text)][: prompt.rows]
        return np.stack([np.concatenate([*before, own, start]) for own in texts]).astype(np.float32)

    def speech(self, tokens: Sequence[int], positions: Sequence[int]) -> Floats:  # noqa: ARG002, a protocol
        return take_rows(self._speech, list(tokens))

    def rotary_tables(self, positions: int) -> dict[str, Floats]:
        backbone = self.config.backbone
        assert isinstance(backbone, LlamaConfig)
        return rotary_tables(backbone.width // backbone.heads, positions, theta=backbone.rope_theta)


def rotary_tables(head_width: int, positions: int, *, theta: float) -> dict[str, Floats]:
    exponent = np.arange(0, head_width, 2, dtype=np.float32) / np.float32(head_width)
    inverse = np.float32(1.0) / np.float32(theta) ** exponent
    angle = np.arange(positions, dtype=np.float32)[:, None] * inverse
    return {"cos": np.cos(angle), "sin": np.sin(angle)}
