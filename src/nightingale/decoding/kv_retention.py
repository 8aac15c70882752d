"""KV cache retention: how many speech positions each attention head of T3 keeps, from a measured table.

A head that spreads its attention over many positions needs many of them; a head that attends to the last few,
or to the text alone, needs few. The spread is the entropy of its attention over speech positions, weighted
with the share of its attention that goes to them. T3 always keeps the prompt.

`python -m nightingale_lab.bench.attention` measures the table of a model. Profiles with `keep=` use it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightingale.errors import CheckpointError, ConfigError
from nightingale.voices.home import cache_folder

WINDOW_STEP: Final = 4
"""Windows are multiples of this, since heads with windows of one length are computed together."""
MIN_WINDOW: Final = 8
"""Positions that every head keeps: a third of a second."""
_COMMAND: Final = "python -m nightingale_lab.bench.attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTable:
    """The attention of each head of one model, measured on some sentences."""

    model: str
    tokens: int
    """Mean length of the utterances it was measured with. Windows are a percentage of it."""
    sentences: int
    entropy: tuple[tuple[float, ...], ...]
    """entropy[layer][head]: entropy of the attention to speech positions, in nats."""
    spoken: tuple[tuple[float, ...], ...]
    """spoken[layer][head]: share of the attention that goes to speech positions, not to the prompt."""

    def windows(self, percent: int) -> tuple[tuple[int, ...], ...]:
        """Return how many positions each head keeps: on average `percent` of an utterance."""
        # As many positions as an even attention of this entropy covers, weighted with the share.
        spread = [
            [1 + share * (math.exp(nats) - 1) for nats, share in zip(*layer, strict=True)]
            for layer in zip(self.entropy, self.spoken, strict=True)
        ]
        budget = sum(map(len, spread)) * self.tokens * percent / 100

        def window(positions: float) -> int:
            return min(max(MIN_WINDOW, WINDOW_STEP * round(positions / WINDOW_STEP)), self.tokens)

        def scaled(factor: float) -> tuple[tuple[int, ...], ...]:
            return tuple(tuple(window(factor * positions) for positions in layer) for layer in spread)

        low, high = 0.0, float(self.tokens)
        for _ in range(40):  # bisection for the largest factor within the budget
            middle = (low + high) / 2
            low, high = (low, middle) if sum(map(sum, scaled(middle))) > budget else (middle, high)
        return scaled(low)

    @classmethod
    def load(cls, path: Path) -> AttentionTable:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            for name in ("entropy", "spoken"):
                data[name] = tuple(tuple(map(float, layer)) for layer in data[name])
            table = cls(**data)
            if [*map(len, table.entropy)] != [*map(len, table.spoken)]:
                raise ValueError("entropy and spoken differ in shape")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _unusable("cannot be read", f"{path}: {type(error).__name__}: {error}") from error
        return table


def table_paths(model: str, folder: Path | None) -> list[Path]:
    """Return where a model's table may be: beside its weights, and in the user's cache."""
    cached = cache_folder().parent / "attention" / f"{model}.json"
    return [cached] if folder is None else [folder / "attention.json", cached]


def find_table(model: str, folder: Path | None, *, layers: int, heads: int) -> AttentionTable:
    """Return the table of a model with so many layers and heads."""
    paths = table_paths(model, folder)
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise ConfigError(
            "this model has no attention table, which keep= needs",
            got=f"no {' and no '.join(map(str, paths))}",
            allowed="keep=100, or a model with a table",
            fix=f"Measure one: {_COMMAND} --model {model}",
        )
    table = AttentionTable.load(found)
    shape = len(table.entropy), len(table.entropy[0])
    if shape != (layers, heads):
        raise _unusable(
            "belongs to another model", f"{found}: (layers, heads) = {shape}", allowed=f"{(layers, heads)}"
        )
    return table


def _unusable(problem: str, got: str, *, allowed: str | None = None) -> CheckpointError:
    fix = f"Measure it again: {_COMMAND}"
    return CheckpointError(f"an attention table {problem}", got=got, allowed=allowed, fix=fix)
