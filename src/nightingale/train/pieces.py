"""Wren's text ids without the `tokenizers` package, which a bare GPU machine lacks.

The same byte pairs from the same file, behind the same tidying as at inference; a test compares the two.
"""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

from nightingale.text.punctuation import ENGLISH, tidy

_RUN = re.compile(r"\w+|[^\w\s]+")
"""A word or a run of marks: what pairs are merged within."""


class Pieces:
    """The byte pairs of a tokenizer file."""

    def __init__(self, path: Path) -> None:
        model = json.loads(path.read_text(encoding="utf-8"))["model"]
        self._ids: dict[str, int] = model["vocab"]
        merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        self._ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}
        self._run_ids = cache(self._merge)

    def encode(self, text: str) -> list[int]:
        """Ids of the text as wren is given it, without start and stop."""
        words = tidy(text, ENGLISH).lower().split(" ")
        ids: list[int] = []
        for number, word in enumerate(words):
            if number:
                ids.append(self._ids["[SPACE]"])
            for run in _RUN.findall(word):
                ids += self._run_ids(run)
        return ids

    def encode_run(self, run: str) -> list[int]:
        """Ids of one word or run of marks."""
        return self._run_ids(run)

    def _merge(self, run: str) -> list[int]:
        """Join the pair that was learned first, until none is left to join."""
        parts, never = list(run), len(self._ranks)
        while len(parts) > 1:
            rank, at = min((self._ranks.get(pair, never), at) for at, pair in enumerate(pairwise(parts)))
            if rank == never:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self._ids.get(part, self._ids["[UNK]"]) for part in parts]
