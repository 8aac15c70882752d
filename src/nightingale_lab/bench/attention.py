"""Measure the attention of T3's heads and write the table for windowed KV caches (decoding/kv_retention.py).

    python -m nightingale_lab.bench.attention [--model wren] [--sentences 30] [--out FILE]

Each sentence is decoded, then run through T3 once more while the attention of every head is recorded: its
share on speech positions, and its entropy over them. The last sentences of the list are used, so that the
first ones remain for evaluating the table. The last line is JSON: the share of attention that windows from
the table would lose, and what equal windows or the best positions for each query would lose.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nightingale.decoding.kv_retention import AttentionTable, table_paths
from nightingale.engine.load import Model
from nightingale_lab import reference
from nightingale_lab.bench.sentences import sentences
from nightingale_lab.train.hidden_states import decode_text

FEWEST = 16
"""A query counts only after this many speech positions."""


class RecordingCache:
    """A KV cache of one whole sequence that records the attention of each head."""

    def __init__(self, prompt: int) -> None:
        self._prompt = prompt
        self.shares = torch.zeros(0)
        """(heads, queries, speech positions), for the speech queries."""

    def positions(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1], device=x.device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q.float() @ k.float().mT * q.shape[-1] ** -0.5
        later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        shares = logits.masked_fill(later, -torch.inf).softmax(-1)
        spoken = shares[:, :, self._prompt :, self._prompt :]
        self.shares = spoken.mean(0) if len(spoken) == 1 else spoken.transpose(0, 1).flatten(1, 2)
        attended: Tensor = shares @ v.float()
        return attended.to(q.dtype)

    def rewind(self, position: int) -> None:
        """Do nothing: the sequence is read once."""


@torch.inference_mode()
def record(model: Model, text: str, seed: int, device: str) -> list[Tensor]:
    """Return the attention of each layer for one sentence: (heads, queries, speech positions)."""
    t3 = reference.networks_of(model, device).t3
    one = decode_text(model, text, voice=None, seed=seed, device=device)
    layers = [RecordingCache(one.prompt_length) for _ in range(t3.config.backbone.layers)]
    t3.tfmr(one.inputs, layers)
    return [layer.shares for layer in layers]


def measure(
    model: Model, texts: Sequence[str], device: str = "cpu"
) -> tuple[AttentionTable, list[list[Tensor]]]:
    """Return the table, and the recorded attention by sentence and layer."""
    seen = [record(model, text, seed, device) for seed, text in enumerate(texts)]
    entropy, spoken = [], []
    for layer in range(len(seen[0])):
        nats, masses = [], []
        for sentence in seen:
            shares = sentence[layer][:, _counted(sentence[layer])]
            mass = shares.sum(-1)  # (heads, queries)
            even = shares / mass.clamp(min=1e-9)[..., None]
            nats.append(-(even * even.clamp(min=1e-12).log()).sum(-1))
            masses.append(mass)
        weight = torch.cat(masses, dim=1)
        spread = (torch.cat(nats, dim=1) * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        entropy.append(tuple(spread.tolist()))
        spoken.append(tuple(weight.mean(1).tolist()))
    table = AttentionTable(
        model=model.name,
        tokens=round(sum(sentence[0].shape[2] for sentence in seen) / len(seen)),
        sentences=len(texts),
        entropy=tuple(entropy),
        spoken=tuple(spoken),
    )
    return table, seen


def _counted(shares: Tensor) -> Tensor:
    """Return which queries have enough positions before them. With CFG, the rows follow each other."""
    length = shares.shape[2]
    return torch.arange(shares.shape[1]) % length >= min(FEWEST, length - 1)


def lost(seen: list[list[Tensor]], windows: Sequence[Sequence[int]], *, best: bool = False) -> float:
    """Return the share of all attention that goes to speech positions outside of these windows.

    best: outside of as many positions, chosen for each query.
    """
    outside, queries = 0.0, 0
    for sentence in seen:
        for shares, layer in zip(sentence, windows, strict=True):
            length = shares.shape[2]
            at = torch.arange(shares.shape[1]) % length
            for head, window in zip(shares, layer, strict=True):
                if best:
                    kept = head.topk(min(window, length), dim=-1).values.sum(-1)
                else:
                    near = torch.arange(length) > (at - window)[:, None]
                    kept = (head * near).sum(-1)
                outside += float((head.sum(-1) - kept).sum())
                queries += len(head)
    return outside / queries


def save(table: AttentionTable, path: Path) -> None:
    rounded = asdict(table) | {
        name: [[round(value, 4) for value in layer] for layer in getattr(table, name)]
        for name in ("entropy", "spoken")
    }
    path.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")


def summary(table: AttentionTable, seen: list[list[Tensor]]) -> dict[str, Any]:
    heads = len(table.entropy[0])
    rows: dict[str, Any] = {"model": table.model, "tokens": table.tokens, "sentences": table.sentences}
    for percent in (50, 25):
        windows = table.windows(percent)
        equal = [[round(table.tokens * percent / 100)] * heads] * len(windows)
        rows[f"lost_at_{percent}"] = {
            "table": round(lost(seen, windows), 5),
            "equal": round(lost(seen, equal), 5),
            "best": round(lost(seen, windows, best=True), 5),
        }
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="nightingale_lab.bench.attention", description=__doc__)
    parser.add_argument("--model", help="a name or a folder; default: the model in the package")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sentences", type=int, default=30)
    parser.add_argument("--texts", type=Path, help="a file with one sentence per line")
    parser.add_argument("--out", type=Path, help="default: in the user's cache")
    options = parser.parse_args(argv)
    model = reference.load(options.model)
    texts = options.texts.read_text(encoding="utf-8").splitlines() if options.texts else sentences("wren_200")
    texts = [text for text in texts if text.strip()][-options.sentences :]
    table, seen = measure(model, texts, options.device)
    out = options.out or table_paths(model.name, None)[-1]
    out.parent.mkdir(parents=True, exist_ok=True)
    save(table, out)
    sys.stdout.write(f"{out}\n{json.dumps(summary(table, seen))}\n")


if __name__ == "__main__":
    main()
