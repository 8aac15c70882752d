"""The price of MLX's lower precisions for wren: errors of T3's logits, and words that recognizers get wrong.

    python -m nightingale_lab.bench.mlx_precisions [--sentences 100] [--recognizers tiny,moonshine]

T3 decodes on MLX in each precision. The renderer is ONNX Runtime's, unless its precision is the subject. Needs the
judges (`make judges`); `--sentences 0` measures logits only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import mlx.core as mx
import numpy as np

from nightingale.backends.mlx.arrays import runs_on_gpu
from nightingale.backends.mlx.t3.t3_network import MlxT3
from nightingale.backends.mlx.t3.transformer import Precision
from nightingale.backends.mlx.weight_files import t3_weights
from nightingale.backends.profiles import PROFILES, Preference
from nightingale.decoding.decoding import Prompt
from nightingale.engine.load import Model, load_model
from nightingale.engine.tts import TTS
from nightingale_lab.bench.judges.client import judges_python
from nightingale_lab.bench.quality import ask_with, measure
from nightingale_lab.bench.sentences import sentences
from nightingale_lab.bench.wren import render

LIMITS: Final = {"int8": 0.02, "int4": 0.15}
"""Largest RMS error of the logits over their spread."""
SENTENCE: Final = "The birds were singing before anyone in the house was awake."
TOKENS: Final = 12
"""Speech tokens after which logits are compared."""
SPOKEN: Final = {
    "float32": ("float32", Preference("onnx", "int8")),
    "int8": ("int8", Preference("onnx", "int8")),
    "int4": ("int4", Preference("onnx", "int8")),
    "float32, renderer in float16": ("float32", Preference("mlx", "float16")),
}


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


def word_errors(name: str, lines: list[str], recognizers: list[str], folder: Path) -> dict[str, float]:
    """Return the share of wrong words, in percent, by recognizer."""
    decoder, renderer = SPOKEN[name]
    profile = replace(
        PROFILES["balanced"], name=name, decoder=(Preference("mlx", decoder),), renderer=(renderer,)
    )
    with TTS.over(load_model("wren", offline=True, options={}), profile, device="mlx") as tts:
        used = [(choice.backend.name, choice.precision) for choice in tts.plan.choices]
        assert used == [("mlx", decoder), (renderer.backend, renderer.precision)], used
        clips, _ = render(tts, lines, folder)
    quality = measure(clips, ask_with(judges_python()), recognizers)
    return {one: 100 * (quality.wer(one) or 0.0) for one in recognizers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--recognizers", default="tiny,moonshine")
    parser.add_argument("--only", nargs="*", default=list(SPOKEN), choices=list(SPOKEN))
    asked = parser.parse_args()
    for precision, limit in LIMITS.items():
        error = 100 * logit_error(precision)
        _tell(f"logits in {precision}: {error:.2f} % of their spread, at most {100 * limit:g} %")
    lines, recognizers = sentences("wren_200")[: asked.sentences], asked.recognizers.split(",")
    reference: dict[str, float] = {}
    for name in asked.only if lines else ():
        with tempfile.TemporaryDirectory() as folder:
            rates = word_errors(name, lines, recognizers, Path(folder))
        reference = reference or rates
        told = (f"{one} {rates[one]:.2f} % ({rates[one] - reference[one]:+.2f})" for one in recognizers)
        _tell(f"wrong words, {len(lines)} sentences, {name}: {', '.join(told)}")


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
