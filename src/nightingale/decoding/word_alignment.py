"""Monotonic alignment of speech tokens with words, from attention to the text: a Viterbi search.

State w means that word w is being spoken. From one token to the next the state stays or advances by one word; the
score of a state is the log of the attention to the ids of its word. Tokens can be added as they are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
LEAST: Final = 1e-3
"""Attention that a word is taken to have at least, so that one odd token does not decide."""


class WordAligner:
    """Align the tokens of one utterance with its words."""

    def __init__(self, column_words: Sequence[int], words: int) -> None:
        """column_words: The word of each column of the text, of so many, in order; -1 for none."""
        self.words = words
        columns = np.array(column_words)
        self._members = (columns[:, None] == np.arange(self.words)).astype(np.float32)
        """(columns, words)."""
        self._scores: NDArray[np.float32] = np.full(self.words, -np.inf, np.float32)
        self._advanced: NDArray[np.bool_] = np.zeros((0, self.words), np.bool_)
        """(tokens, words): whether a state was reached from the state before."""

    @property
    def tokens(self) -> int:
        return len(self._advanced)

    def extend(self, attention: Floats) -> None:
        """Add tokens by their attention (tokens, columns)."""
        emissions = np.log(np.maximum(attention @ self._members, LEAST))
        advanced = np.zeros(emissions.shape, np.bool_)
        scores, before = self._scores, np.full(self.words, -np.inf, np.float32)
        for number, row in enumerate(emissions):
            if self.tokens + number == 0:
                scores[0] = row[0]
                continue
            before[1:] = scores[:-1]
            np.greater(before, scores, out=advanced[number])
            np.maximum(before, scores, out=scores)
            scores += row
        self._advanced = np.concatenate([self._advanced, advanced])

    def path(self, *, final: bool) -> list[int]:
        """Return the word of each token. final: the last token belongs to the last word."""
        if not self.tokens:
            return []
        reached = np.flatnonzero(np.isfinite(self._scores))  # not all, with fewer tokens than words
        word = int(reached[-1] if final else self._scores.argmax())
        found = [word]
        for advanced in self._advanced[:0:-1].tolist():
            word -= advanced[word]
            found.append(word)
        return found[::-1]
