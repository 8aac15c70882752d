"""The compact form of a token bank, in which a session returns it and later sessions receive it.

It differs from the usual form in two arrays: the word of each token is stored as a step of two bits from the token
before, and speaker vectors as one mean per voice. 146 hours of speech take 35 MB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TOKENS_PER_ARRAY = 2**21
"""Tokens are split into arrays that fit into one volume of results (volumes.py)."""
STEP_SHIFTS = np.array([0, 2, 4, 6], dtype=np.uint8)
MAX_STEP = 3


def pack_words(word: NDArray[np.int16], offsets: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return the word of each clip's first token, and the steps from token to token, four in a byte."""
    starts = offsets[:-1][np.diff(offsets) > 0]
    first = np.full(len(offsets) - 1, -1, dtype=np.int16)
    first[np.diff(offsets) > 0] = word[starts]
    steps = np.clip(np.diff(word.astype(np.int32), prepend=0), 0, MAX_STEP).astype(np.uint8)
    steps[starts] = 0
    steps = np.pad(steps, (0, -len(steps) % 4)).reshape(-1, 4) << STEP_SHIFTS
    return {"first": first, "steps": np.bitwise_or.reduce(steps, axis=1)}


def unpack_words(stored: Mapping[str, Tensor], tokens: int) -> NDArray[np.int16]:
    """Return the word of each token."""
    counts, first = (stored[name].numpy().astype(np.int64) for name in ("counts", "first"))
    steps = (stored["steps"].numpy()[:, None] >> STEP_SHIFTS & MAX_STEP).reshape(-1)[:tokens]
    word = np.cumsum(steps.astype(np.int64))
    starts = np.minimum(np.cumsum(counts) - counts, max(tokens - 1, 0))
    return (word + np.repeat(first - word[starts], counts)).astype(np.int16)


def pack_speakers(speaker: NDArray[np.float16], voice: NDArray[np.int16]) -> dict[str, NDArray[Any]]:
    """Return the voices, and the mean unit vector of each."""
    voices, index = np.unique(voice, return_inverse=True)
    total = np.zeros((len(voices), speaker.shape[1]), dtype=np.float64)
    np.add.at(total, index, speaker.astype(np.float32))
    means = total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-9)
    return {"voices": voices, "means": means.astype(np.float16)}


def split_tokens(tokens: NDArray[np.int16]) -> dict[str, NDArray[Any]]:
    starts = range(0, len(tokens), TOKENS_PER_ARRAY)
    return {f"tokens{i:02d}": tokens[at : at + TOKENS_PER_ARRAY] for i, at in enumerate(starts)}


def unpack_bank(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the arrays of a compact file as those of the usual form."""
    tokens = torch.cat([stored[name] for name in sorted(stored) if name.startswith("tokens")])
    index = np.searchsorted(stored["voices"].numpy(), stored["voice"].numpy())
    return {
        **{name: stored[name] for name in ("counts", "line", "voice", "speed")},
        "tokens": tokens,
        "word": torch.from_numpy(unpack_words(stored, len(tokens))),
        "speaker": stored["means"].float()[torch.from_numpy(index)],
        "scale": torch.ones(1),
    }
