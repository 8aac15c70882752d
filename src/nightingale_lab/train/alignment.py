"""Guided attention: some heads of T3 are trained to attend to the word that is being spoken.

A T3 that skips or repeats words has lost its position in the text. The teacher's alignment gives the word of each
speech token, and the loss of a guided head is the negative logarithm of the attention that it pays to that word.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.clocks import CLOCKS
from nightingale_lab.no_kv_cache import NoKVCache

SPACE_PHONEME, SPACE_ID = 16, 2
"""The space among Kokoro's phonemes, and among wren's text ids."""
UNKNOWN = -1
"""The word of a token without an alignment."""
MAX_LOSS = 12.0
MASKED = -1e4


def words_of_tokens(phones: NDArray[np.uint8], frame_offsets: NDArray[np.int64]) -> NDArray[np.int16]:
    """Return the word of each speech token, counted within its clip. phones: one phoneme per 50 Hz frame."""
    starts = _space_starts(phones == SPACE_PHONEME)
    count = np.cumsum(starts)
    first: NDArray[np.int64] = np.repeat(
        count[frame_offsets[:-1]] - starts[frame_offsets[:-1]], np.diff(frame_offsets)
    )
    return (count - first)[CLOCKS.frames_per_token - 1 :: CLOCKS.frames_per_token].astype(np.int16)


def words_of_text(text_ids: NDArray[np.int16]) -> NDArray[np.int16]:
    """Return the word of each text id; a space belongs to none."""
    space = text_ids == SPACE_ID
    return np.where(space, UNKNOWN, np.cumsum(_space_starts(space))).astype(np.int16)


def _space_starts(space: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return space & ~np.concatenate([[False], space[:-1]])


class GuidedAttention(NoKVCache):
    """Causal attention over one pass that also computes the loss of guided heads, summed over them."""

    def __init__(self, heads: tuple[int, ...], query_words: Tensor, key_words: Tensor) -> None:
        """query_words, key_words: (rows, time), the word that each query is to speak and that of each key."""
        self.heads = heads
        self.same_word = (query_words[:, :, None] == key_words[:, None, :]) & (key_words >= 0)[:, None, :]
        self.aligned = ((query_words >= 0) & self.same_word.any(-1)).float()
        self.loss = torch.zeros((), device=query_words.device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        time = q.shape[2]
        future = torch.ones(time, time, dtype=torch.bool, device=q.device).triu(1)
        for head in self.heads:
            scores = (q[:, head].float() @ k[:, head].float().mT) * q.shape[-1] ** -0.5
            all_keys = scores.masked_fill(future, MASKED).logsumexp(-1)
            word_keys = scores.masked_fill(~self.same_word, MASKED).logsumexp(-1)
            losses = (all_keys - word_keys).clamp(max=MAX_LOSS) * self.aligned
            self.loss = self.loss + losses.sum() / self.aligned.sum().clamp(min=1.0)
        return super().attend(q, k, v)
