"""The training sequences of T3 (text, speech, stop), bucketed by length so that to_device are few shapes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH, T3Config
from nightingale_lab.train.token_bank import TokenBank

BUCKETS = (64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 640)
SPACE_ID = 2
NO_FINAL_MARK = 0.125
"""Probability that the final punctuation mark is left out, as users leave it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Sequences of up to one length on the device: framed text, start token, speech, stop token, padding."""

    ids: Tensor
    """(rows, length) int16."""
    text_count: Tensor
    """(rows,): number of text ids, start and stop included."""
    count: Tensor
    """(rows,): number of all ids, the stop token included."""
    clip: Tensor
    """(rows,): the clip that has the speaker vector."""


def build_buckets(
    bank: TokenBank,
    config: T3Config,
    *,
    chosen: NDArray[np.bool_],
    marks: frozenset[int],
    joined_share: float,
    seed: int,
    device: torch.device,
) -> dict[int, Bucket]:
    """Bucket every chosen clip, and `joined_share` times as many joined pairs of clips of one voice, by length."""
    rng = np.random.default_rng(seed)
    buckets: dict[int, list[tuple[NDArray[np.int16], int, int, int]]] = {}
    for clips_of_row in _clips_of_rows(bank.voice, np.flatnonzero(chosen), joined_share, rng):
        text = _text(bank, clips_of_row)
        if int(text[-1]) in marks and len(text) > 1 and rng.random() < NO_FINAL_MARK:
            text = text[:-1]
        speech = [bank.tokens[bank.token_offsets[i] : bank.token_offsets[i + 1]] for i in clips_of_row]
        row = np.concatenate(
            [[config.start_text], text, [config.stop_text, START_SPEECH], *speech, [STOP_SPEECH]]
        )
        size = next((bucket for bucket in BUCKETS if len(row) <= bucket), None)
        if size is not None:
            padded = np.pad(row.astype(np.int16), (0, size - len(row)))
            buckets.setdefault(size, []).append((padded, len(text) + 2, len(row), clips_of_row[0]))

    def to_device(values: list[Any], dtype: type) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=dtype)).to(device)

    return {
        size: Bucket(
            ids=to_device([r[0] for r in rows], np.int16),
            text_count=to_device([r[1] for r in rows], np.int64),
            count=to_device([r[2] for r in rows], np.int64),
            clip=to_device([r[3] for r in rows], np.int64),
        )
        for size, rows in sorted(buckets.items())
    }


def _clips_of_rows(
    voice: NDArray[np.int16], clips: NDArray[np.int64], joined_share: float, rng: np.random.Generator
) -> list[tuple[int, ...]]:
    """Return the clips of each sequence."""
    by_voice: dict[int, list[int]] = {}
    for i in rng.permutation(clips):
        by_voice.setdefault(int(voice[i]), []).append(int(i))
    pairs = [(a, b) for clips_of_voice in by_voice.values() for a, b in pairwise(clips_of_voice)]
    joined = rng.permutation(len(pairs))[: int(joined_share * len(clips))]
    return [(int(i),) for i in clips] + [pairs[i] for i in joined]


def _text(bank: TokenBank, clips_of_row: tuple[int, ...]) -> NDArray[np.int16]:
    parts: list[NDArray[np.int16]] = []
    for i in clips_of_row:
        if parts:
            parts.append(np.array([SPACE_ID], dtype=np.int16))
        parts.append(bank.text_ids[bank.text_offsets[i] : bank.text_offsets[i + 1]])
    return np.concatenate(parts)
