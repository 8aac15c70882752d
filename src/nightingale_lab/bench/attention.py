"""Measures where T3's heads look, and writes the table by which a cache is cut (decoding/kv_retention.py).

    python -m nightingale_lab.bench.attention [--model wren] [--sentences 30] [--out FILE]

Each sentence is spoken, then read once more with every head watched: how much of its attention goes to what
was spoken, and over how many positions it is spread. The last sentences of the list are used, so that the
first ones are left for judging what the table is worth. The last line is JSON: the share of attention to
what was spoken that windows from the table would lose, and what equal windows, or the best positions
for each query, would.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nightingale.decoding.kv_retention import AttentionTable, table_paths
from nightingale.engine.load import load_model
from nightingale.engine.model import Model, default_model
from nightingale_lab.train.hidden_states import spoken

TEXTS = Path(__file__).parent / "texts" / "wren_200.txt"
FEWEST = 16
"""Spoken positions before a query is counted: with fewer, every head looks at few."""


class Watching:
    """A `KVCache` of one whole sequence that remembers what each head looked at."""

    def __init__(self, prompt: int) -> None:
        self._prompt = prompt
        self.shares = torch.zeros(0)
        """(heads, queries, spoken positions): of the queries that were spoken."""

    def positions(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1], device=x.device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        shares = scores.masked_fill(later, -torch.inf).softmax(-1)
        spoken = shares[:, :, self._prompt :, self._prompt :]
        self.shares = spoken.mean(0) if len(spoken) == 1 else spoken.transpose(0, 1).flatten(1, 2)
        heard: Tensor = shares @ v.float()
        return heard.to(q.dtype)

    def rewind(self, position: int) -> None:
        """It is read once."""


@torch.inference_mode()
def watch(model: Model, text: str, seed: int) -> list[Tensor]:
    """Of each layer: (heads, queries, spoken positions), for one sentence as the model speaks it."""
    t3, one = model.networks.t3, spoken(model, text, voice=None, seed=seed)
    layers = [Watching(one.prompt) for _ in range(t3.config.backbone.layers)]
    t3.tfmr(one.read, layers)
    return [layer.shares for layer in layers]


def measure(model: Model, texts: Sequence[str]) -> tuple[AttentionTable, list[list[Tensor]]]:
    """The table, and what was seen: of each sentence, of each layer."""
    seen = [watch(model, text, seed) for seed, text in enumerate(texts)]
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
    """Which queries have enough behind them. Guided ones come twice, a row after the other."""
    length = shares.shape[2]
    return torch.arange(shares.shape[1]) % length >= min(FEWEST, length - 1)


def lost(seen: list[list[Tensor]], windows: Sequence[Sequence[int]], *, best: bool = False) -> float:
    """The share of all attention that would go to spoken positions outside of these windows; best: outside
    of as many positions, chosen anew by every query."""
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
    parser.add_argument("--model", default=default_model(), help="a name or a folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sentences", type=int, default=30)
    parser.add_argument("--texts", type=Path, default=TEXTS, help="one sentence to a line")
    parser.add_argument("--out", type=Path, help="where to; in the user's cache if not told")
    options = parser.parse_args(argv)
    model = load_model(options.model, device=options.device, dtype="auto", offline=True, options={})
    texts = options.texts.read_text(encoding="utf-8").split("\n")
    texts = [text for text in texts if text.strip()][-options.sentences :]
    table, seen = measure(model, texts)
    out = options.out or table_paths(model.name, None)[-1]
    out.parent.mkdir(parents=True, exist_ok=True)
    table.save(out)
    sys.stdout.write(f"{out}\n{json.dumps(summary(table, seen))}\n")


if __name__ == "__main__":
    main()
