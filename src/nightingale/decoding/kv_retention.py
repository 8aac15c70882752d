"""How much each head of T3 keeps of what was spoken: a small table, measured once for a model.

A head that spreads its attention over many spoken positions needs many of them; one that looks at the last
few, or at the text alone, needs few. How widely it looks is the entropy of its attention, averaged over
spoken positions, and weighted with the share of its attention that goes to them at all. The prompt is not
part of it: it is always kept. `python -m nightingale_lab.bench.attention` measures a table.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from nightingale.errors import CheckpointError, ConfigError
from nightingale.voices.home import cache_folder

FILE: Final = "attention.json"
STRIDE: Final = 4
"""Windows are multiples of this: heads of one length are looked at together."""
LEAST: Final = 8
"""Positions that every head keeps: a third of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTable:
    model: str
    tokens: int
    """Of the utterances it was measured with, on average: what a budget in percent is a share of."""
    sentences: int
    entropy: tuple[tuple[float, ...], ...]
    """entropy[layer][head], in nats: of its attention to what was spoken."""
    spoken: tuple[tuple[float, ...], ...]
    """spoken[layer][head]: the share of its attention that goes there; the rest goes to the prompt."""

    def windows(self, percent: int) -> tuple[tuple[int, ...], ...]:
        """Positions that each head keeps, so many percent of an utterance on average over all heads."""
        # Its weighted reach: as many positions as hold the entropy, if all of its attention goes there.
        reach = [
            [1 + share * (math.exp(nats) - 1) for nats, share in zip(*layer, strict=True)]
            for layer in zip(self.entropy, self.spoken, strict=True)
        ]
        heads = sum(len(layer) for layer in reach)
        wanted = heads * self.tokens * percent / 100

        def at(factor: float) -> list[list[int]]:
            return [
                [min(max(LEAST, STRIDE * round(factor * far / STRIDE)), self.tokens) for far in layer]
                for layer in reach
            ]

        low, high = 0.0, float(self.tokens)
        for _ in range(40):
            middle = (low + high) / 2
            if sum(map(sum, at(middle))) > wanted:
                high = middle
            else:
                low = middle
        return tuple(tuple(layer) for layer in at(low))

    def save(self, path: Path) -> None:
        rounded = asdict(self) | {
            name: [[round(value, 4) for value in layer] for layer in getattr(self, name)]
            for name in ("entropy", "spoken")
        }
        path.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> AttentionTable:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            by_head: Any = {
                name: tuple(tuple(float(value) for value in layer) for layer in data.pop(name))
                for name in ("entropy", "spoken")
            }
            table = cls(**data, **by_head)
            if [len(layer) for layer in table.entropy] != [len(layer) for layer in table.spoken]:
                raise ValueError("entropy and spoken differ in shape")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                "a table of attention cannot be read",
                got=f"{path}: {type(error).__name__}: {error}",
                allowed="a table that `python -m nightingale_lab.bench.attention` wrote",
                fix="Measure it again.",
            ) from error
        return table


def places(model: str, folder: Path | None) -> list[Path]:
    """Where a model's table may be: beside its weights, where they have a folder, or in the user's cache."""
    beside = [] if folder is None else [folder / FILE]
    return [*beside, cache_folder().parent / "attention" / f"{model}.json"]


def find_table(model: str, folder: Path | None, *, layers: int, heads: int) -> AttentionTable:
    """The table of a model with so many layers and heads."""
    found = next((path for path in places(model, folder) if path.is_file()), None)
    if found is None:
        raise ConfigError(
            "this model has no table of attention, by which its cache could be cut",
            got=f"no {' and no '.join(str(path) for path in places(model, folder))}",
            allowed="keep=100, or a model with a table",
            fix=f"Measure one: python -m nightingale_lab.bench.attention --model {model}",
        )
    table = AttentionTable.load(found)
    if (len(table.entropy), len(table.entropy[0])) != (layers, heads):
        raise CheckpointError(
            "a table of attention belongs to another model",
            got=f"{found}: {len(table.entropy)} layers of {len(table.entropy[0])} heads",
            allowed=f"{layers} layers of {heads} heads",
            fix=f"Measure it again: python -m nightingale_lab.bench.attention --model {model}",
        )
    return table
