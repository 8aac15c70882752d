"""Record wren's first greedy tokens, so that tests detect a change of any of them.

    python tools/wren_golden.py     # after a training: writes tests/lab/bench/wren_golden.json

tests/lab/bench/test_wren_golden.py compares. Other processors and other versions of torch round differently,
and one different token changes all that follow: there, each token is predicted from the recorded ones.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from nightingale import wren
from nightingale_lab import reference
from nightingale_lab.bench.speed.bench_texts import TEXTS
from nightingale_lab.bench.verify.subject import GREEDY_TEMPERATURE, EngineSubject

GOLDEN = Path(__file__).parents[1] / "tests" / "lab" / "bench" / "wren_golden.json"
COUNT = 60
SENTENCES = {"short": TEXTS["short"], "long": TEXTS["medium"]}


def open_subject(folder: Path) -> EngineSubject:
    return EngineSubject(reference.load(folder), "exact", device="cpu")


def here() -> dict[str, str]:
    """Return where the tokens must be the same to the last one."""
    return {"arch": platform.machine(), "torch": torch.__version__.split("+")[0]}


def weights(folder: Path) -> str:
    """Return a digest of the tensors that does not depend on their order in the file."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / wren.FILES["t3"]).items()):
        digest.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def greedy_tokens(subject: EngineSubject, text: str) -> list[int]:
    return subject.tokens(text, seed=1, temperature=GREEDY_TEMPERATURE)[:COUNT]


@torch.inference_mode()
def predicted_tokens(subject: EngineSubject, text: str, golden: Sequence[int]) -> list[int]:
    """Return the greedy token after each prefix of the recorded tokens."""
    t3 = reference.networks_of(subject.model).t3
    x = reference.prompt_embeddings(subject.model, t3, reference.decoding_of(subject.model, text))
    kv_cache = t3.new_kv_cache(rows=len(x), capacity=x.shape[1] + len(golden))
    chosen = []
    for number, token in enumerate(golden, start=1):
        chosen.append(int(t3.next_logits(x, kv_cache)[0].argmax()))  # logits: (rows, vocab)
        x = t3.embed_speech(torch.full((len(x), 1), token), number)
    return chosen


def main(folder: Path) -> None:
    subject = open_subject(folder)
    tokens = {name: greedy_tokens(subject, text) for name, text in SENTENCES.items()}
    golden = {"weights": weights(folder), "made": here(), "tokens": tokens}
    GOLDEN.write_text(json.dumps(golden) + "\n", encoding="utf-8")
    print(f"wrote {GOLDEN}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else wren.folder())
