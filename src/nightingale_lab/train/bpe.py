"""Wren's text ids for training, with BPE-dropout, which `nightingale.text.bpe` does not have.

The byte pair encoding reads the same file, after the same punctuation normalization as at inference; a test
compares the two.
"""

from __future__ import annotations

import json
import random
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

from nightingale.text.punctuation import ENGLISH, normalize_punctuation

_WORD = re.compile(r"\w+|[^\w\s]+")
"""A word or a run of punctuation marks; pairs are merged only within one."""
BPE_DROPOUT = 0.15
"""Probability of skipping a merge."""
ENCODINGS = 6
"""Number of different BPE-dropout encodings of one word."""


class BpeEncoder:
    """The byte pair encoding of a tokenizer file."""

    def __init__(self, path: Path) -> None:
        stored = json.loads(path.read_text(encoding="utf-8"))
        model, normalizer = stored["model"], stored.get("normalizer") or {}
        steps = normalizer.get("normalizers", [])
        self._respellings = [
            (step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"
        ]
        self._ids: dict[str, int] = model["vocab"]
        merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        self._ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}
        self.encode_word = cache(self._merge)
        self._encode_with_dropout = cache(self._merge_with_dropout)

    def encode(self, text: str, dropout: random.Random | None = None) -> list[int]:
        """Return the ids of the text as wren reads it, without start and stop.

        With a generator for `dropout`, some merges are skipped (BPE-dropout), so words are often split into
        smaller parts, and a model learns the sounds of letters besides those of whole words.
        """
        ids: list[int] = []
        text = normalize_punctuation(text, ENGLISH).lower()
        for usual, clearer in self._respellings:
            text = text.replace(usual, clearer)
        for number, part in enumerate(text.split(" ")):
            if number:
                ids.append(self._ids["[SPACE]"])
            for word in _WORD.findall(part):
                if dropout is None:
                    ids += self.encode_word(word)
                else:
                    ids += self._encode_with_dropout(word, dropout.randrange(ENCODINGS))
        return ids

    def _merge_with_dropout(self, word: str, encoding: int) -> list[int]:
        return self._merge(word, random.Random(f"{word} {encoding}"))

    def _merge(self, word: str, dropout: random.Random | None = None) -> list[int]:
        """Merge the pair that was learned first, until no known pair is left."""
        parts, never = list(word), len(self._ranks)
        while len(parts) > 1:
            ranks = (
                never
                if dropout is not None and dropout.random() < BPE_DROPOUT
                else self._ranks.get(pair, never)
                for pair in pairwise(parts)
            )
            rank, at = min((rank, at) for at, rank in enumerate(ranks))
            if rank == never:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self._ids.get(part, self._ids["[UNK]"]) for part in parts]
