"""The attention of a few heads of T3 to the text, recorded while an utterance is decoded: where it speaks.

Some heads follow the text: while a word is spoken, they attend to its ids. A runner on the host stores the keys of
the text and the queries of these heads, which it computes anyway; the products are taken here, when words are timed,
in one call for many tokens. A decoder that keeps its queries on a device computes them again when they are asked for,
by a pass over all tokens through the first layers (`update`). Without a trace nothing is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
MIN_ROWS = 64
"""Rows that a trace has room for at first."""


class AttentionTrace:
    """Queries and keys of the alignment heads of one utterance. Row 0 is the query before the first token."""

    def __init__(self, heads: Sequence[tuple[int, int]], *, text_ids: int, starts: int) -> None:
        """Trace some heads.

        Args:
            heads: (layer, head) of each.
            text_ids: Ids of the text in the prompt, its start and stop included.
            starts: Start tokens between the text and the first speech token.
        """
        self.heads = tuple(heads)
        self.layers = tuple(dict.fromkeys(layer for layer, _ in heads))
        self._text_ids, self._starts = text_ids, starts
        self._keys: Floats | None = None
        self._rotary: Sequence[Floats] = ()
        self._queries: Floats = np.zeros((len(self.heads), 0, 0), np.float32)
        """(heads, room for rows, head_dim)."""
        self.rows = 0
        """The number of queries so far."""
        self.tokens: list[int] = []
        """Tokens that were sampled so far, in order."""
        self.update: Callable[[], None] | None = None
        """Computes the queries of all tokens; None where they are stored while tokens are decoded."""

    def text_positions(self, prompt_length: int) -> slice:
        """Return the positions of the text in a prompt."""
        end = prompt_length - self._starts
        return slice(end - self._text_ids, end)

    def set_keys(self, keys: Sequence[Floats], rotary: Sequence[Floats] = ()) -> None:
        """Store the keys (text ids, head_dim) of each head, with positions applied.

        rotary: Cosines and sines (rows, head_dim / 2), if queries are stored without their positions.
        """
        self._keys, self._rotary = np.stack([np.asarray(one, np.float32) for one in keys]), rotary

    def set_queries(self, row: int, queries: Sequence[Floats]) -> None:
        """Store the queries (rows, head_dim) of each head from a row on, and drop what was stored after it."""
        count, head_dim = queries[0].shape
        self.rows = row + count
        if self.rows > self._queries.shape[1]:
            grown = np.zeros((len(self.heads), 2 * self.rows + MIN_ROWS, head_dim), np.float32)
            if row:
                grown[:, :row] = self._queries[:, :row]
            self._queries = grown
        for stored, one in zip(self._queries, queries, strict=True):
            stored[row : self.rows] = one

    def attention(self, first: int = 0) -> Floats:
        """Return the attention (rows, text ids) from a row on, averaged over the heads. Rows have the sum one."""
        mean: Floats = self.attention_by_head(first).mean(axis=0)
        return mean

    def attention_by_head(self, first: int = 0) -> Floats:
        """Return the attention (heads, rows, text ids) from a row on."""
        if self.update is not None:
            self.update()
        if self._keys is None or first >= self.rows:
            return np.zeros((len(self.heads), 0, self._text_ids), np.float32)
        queries = self._queries[:, first : self.rows]
        if self._rotary:
            cos, sin = (table[first : self.rows] for table in self._rotary)
            left, right = np.split(queries, 2, axis=-1)
            queries = np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
        logits = queries @ self._keys.transpose(0, 2, 1) * np.float32(queries.shape[-1] ** -0.5)
        weights: Floats = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights


class SlotTraces(dict[int, AttentionTrace]):
    """The traces of a runner's slots; a slot without one is not in it."""

    def begin(self, slot: int, trace: AttentionTrace | None) -> None:
        """Begin an utterance in a slot."""
        self.pop(slot, None)
        if trace is not None:
            self[slot] = trace

    def move(self, source: int, target: int) -> None:
        """Follow an utterance to another slot."""
        self.begin(target, self.pop(source, None))
