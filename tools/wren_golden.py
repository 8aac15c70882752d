"""Wren's first tokens at temperature 0, written down so that a change of any of them is noticed.

    python tools/wren_golden.py            # after wren was trained anew: writes tests/bench/wren_golden.json

tests/bench/test_wren_golden.py compares. Sums are rounded differently by other processors and other versions
of torch, and once a token differs all later ones may: there each token is asked for after the golden ones.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from nightingale import wren
from nightingale_lab.bench.speed.texts import TEXTS
from nightingale_lab.bench.verify.subject import GREEDY_TEMPERATURE, EngineSubject
from nightingale.decoding.decoding import prompt_of
from nightingale.engine.load import load_model

GOLDEN = Path(__file__).parents[1] / "tests" / "bench" / "wren_golden.json"
COUNT = 60
SENTENCES = {"short": TEXTS["short"], "long": TEXTS["medium"]}


def opened(folder: Path) -> EngineSubject:
    model = load_model(folder, device="cpu", dtype="float32", offline=True, options={})
    return EngineSubject(model, "exact")


def here() -> dict[str, str]:
    """Where tokens must be the same to the last."""
    return {"arch": platform.machine(), "torch": torch.__version__.split("+")[0]}


def weights(folder: Path) -> str:
    """Of the tensors, in whatever order a file has them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / wren.FILES["t3"]).items()):
        digest.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def spoken(subject: EngineSubject, text: str) -> list[int]:
    """What the engine draws."""
    return subject.tokens(text, seed=1, temperature=GREEDY_TEMPERATURE)[:COUNT]


@torch.inference_mode()
def told(subject: EngineSubject, text: str, golden: Sequence[int]) -> list[int]:
    """What would be drawn after each beginning of the golden tokens."""
    model: Any = subject.model
    t3, defaults = model.speakers.t3, model.defaults
    x = prompt_of(
        t3,
        model.frontend.encode(text, None),
        model.default_voice,
        defaults=defaults,
        sampling=defaults.sampling,
        exaggeration=defaults.exaggeration,
    )
    memory = t3.new_kv_cache(rows=len(x), capacity=x.shape[1] + len(golden))
    chosen = []
    for number, token in enumerate(golden, start=1):
        chosen.append(int(t3.next_logits(x, memory)[0].argmax()))  # of (rows, vocab)
        x = t3.embed_speech(torch.full((len(x), 1), token), number)
    return chosen


def main(folder: Path) -> None:
    subject = opened(folder)
    tokens = {name: spoken(subject, text) for name, text in SENTENCES.items()}
    golden = {"weights": weights(folder), "made": here(), "tokens": tokens}
    GOLDEN.write_text(json.dumps(golden) + "\n", encoding="utf-8")
    print(f"wrote {GOLDEN}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else wren.folder())
