"""Wren's text ids without the `tokenizers` package, which a bare GPU machine lacks.

The same byte pairs from the same file, behind the same tidying as at inference; a test compares the two.
"""

from __future__ import annotations

import json
import random
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

from nightingale.text.punctuation import ENGLISH, normalize_punctuation

_RUN = re.compile(r"\w+|[^\w\s]+")
"""A word or a run of marks: what pairs are merged within."""
SKIPPED = 0.15
"""Share of the joints that a varied spelling leaves open."""
SPELLINGS = 6
"""How many varied spellings of one word there are."""


class Pieces:
    """The byte pairs of a tokenizer file."""

    def __init__(self, path: Path) -> None:
        model = json.loads(path.read_text(encoding="utf-8"))["model"]
        self._ids: dict[str, int] = model["vocab"]
        merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        self._ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}
        self._run_ids = cache(self._merge)
        self._varied_ids = cache(self._vary)

    def encode(self, text: str, varied: random.Random | None = None) -> list[int]:
        """Ids of the text as wren is given it, without start and stop.

        varied: words in other pieces than usual, often smaller ones; so a reader learns what letters say, and
        not each word by heart.
        """
        words = normalize_punctuation(text, ENGLISH).lower().split(" ")
        ids: list[int] = []
        for number, word in enumerate(words):
            if number:
                ids.append(self._ids["[SPACE]"])
            for run in _RUN.findall(word):
                spelling = None if varied is None else varied.randrange(SPELLINGS)
                ids += self._run_ids(run) if spelling is None else self._varied_ids(run, spelling)
        return ids

    def encode_run(self, run: str) -> list[int]:
        """Ids of one word or run of marks."""
        return self._run_ids(run)

    def _vary(self, run: str, spelling: int) -> list[int]:
        return self._merge(run, random.Random(f"{run} {spelling}"))

    def _merge(self, run: str, skip: random.Random | None = None) -> list[int]:
        """Join the pair that was learned first, until none is left to join."""
        parts, never = list(run), len(self._ranks)
        while len(parts) > 1:
            ranks = (
                never if skip is not None and skip.random() < SKIPPED else self._ranks.get(pair, never)
                for pair in pairwise(parts)
            )
            rank, at = min((rank, at) for at, rank in enumerate(ranks))
            if rank == never:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self._ids.get(part, self._ids["[UNK]"]) for part in parts]
