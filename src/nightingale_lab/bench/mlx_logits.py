"""Errors of wren's logits in MLX's lower precisions; `mlx_precisions.py` prints them and the wrong words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

import mlx.core as mx
import numpy as np

from nightingale.backends.mlx.arrays import runs_on_gpu
from nightingale.backends.mlx.t3.t3_network import MlxT3
from nightingale.backends.mlx.t3.transformer import Precision
from nightingale.backends.mlx.weight_files import t3_weights
from nightingale.decoding.decoding import Prompt
from nightingale.engine.load import Model, load_model

SENTENCE: Final = "The birds were singing before anyone in the house was awake."
TOKENS: Final = 12
"""Speech tokens after which logits are compared."""


def wren_t3(precision: Precision) -> tuple[Model, MlxT3]:
    model = load_model("wren", offline=True, options={})
    return model, MlxT3(model.info.preset.t3, t3_weights(model.source), precision)


def logits_after(model: Model, t3: MlxT3, tokens: Sequence[int]) -> np.ndarray:
    """Return the logits (1 + tokens, vocab) after a sentence and after each of its speech tokens."""
    assert model.default_voice is not None
    text_ids = model.frontend.encode(SENTENCE, None)
    prompt = Prompt(
        text=SENTENCE, text_ids=text_ids, voice=model.default_voice, exaggeration=0.0, guided=False
    )
    x = t3.embed_prompt(prompt, max_new_tokens=100)
    if tokens:
        count = len(tokens)
        x = mx.concatenate([x, t3.embed_speech(mx.array(list(tokens)), mx.arange(count))[None]], axis=1)
    hidden, _ = t3.backbone.read(x, t3.backbone.new_caches(1, 256))
    logits: np.ndarray = np.array(t3.head(hidden[:, -(1 + len(tokens)) :]).astype(mx.float32))[0]
    return logits


@cache
def exact_logits() -> tuple[np.ndarray, tuple[int, ...]]:
    """Return the logits in float32, and the first speech tokens of the sentence, the most likely ones."""
    model, t3 = wren_t3(Precision(mx.float32))
    tokens: list[int] = []
    for _ in range(TOKENS):
        tokens.append(int(logits_after(model, t3, tokens)[-1].argmax()))
    return logits_after(model, t3, tokens), tuple(tokens)


def logit_error(precision: str) -> float:
    """Return the RMS error of wren's logits against float32, over their spread, while it speaks a sentence."""
    exact, tokens = exact_logits()
    error = logits_after(*wren_t3(Precision.named(precision, gpu=runs_on_gpu())), tokens) - exact
    return float(np.sqrt(np.square(error).mean()) / exact.std())
