"""The sequences that T3 is shown: text, speech, stop; filed by length, so that a few shapes hold them all."""

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
"""How often the last mark is left out: users leave it out too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Sequences of up to one length on the device: framed text, start token, speech, stop token, padding."""

    ids: Tensor
    """(rows, length) int16."""
    text_count: Tensor
    """(rows,) framed text ids at the front."""
    count: Tensor
    """(rows,) ids in all, the stop included."""
    clip: Tensor
    """(rows,) whose speaker vector."""


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
    """Every chosen clip once, and `joined_share` as many pairs of clips of one voice, filed by length."""
    rng = np.random.default_rng(seed)
    filed: dict[int, list[tuple[NDArray[np.int16], int, int, int]]] = {}
    for plan in _plans(bank.voice, np.flatnonzero(chosen), joined_share, rng):
        told = _text(bank, plan)
        if int(told[-1]) in marks and len(told) > 1 and rng.random() < NO_FINAL_MARK:
            told = told[:-1]
        spoken = [bank.tokens[bank.token_offsets[i] : bank.token_offsets[i + 1]] for i in plan]
        row = np.concatenate(
            [[config.start_text], told, [config.stop_text, START_SPEECH], *spoken, [STOP_SPEECH]]
        )
        size = next((bucket for bucket in BUCKETS if len(row) <= bucket), None)
        if size is not None:
            padded = np.pad(row.astype(np.int16), (0, size - len(row)))
            filed.setdefault(size, []).append((padded, len(told) + 2, len(row), plan[0]))

    def there(values: list[Any], dtype: type) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=dtype)).to(device)

    return {
        size: Bucket(
            ids=there([r[0] for r in rows], np.int16),
            text_count=there([r[1] for r in rows], np.int64),
            count=there([r[2] for r in rows], np.int64),
            clip=there([r[3] for r in rows], np.int64),
        )
        for size, rows in sorted(filed.items())
    }


def _plans(
    voice: NDArray[np.int16], clips: NDArray[np.int64], joined_share: float, rng: np.random.Generator
) -> list[tuple[int, ...]]:
    """Which clips make up each sequence."""
    by_voice: dict[int, list[int]] = {}
    for i in rng.permutation(clips):
        by_voice.setdefault(int(voice[i]), []).append(int(i))
    pairs = [(a, b) for mine in by_voice.values() for a, b in pairwise(mine)]
    joined = rng.permutation(len(pairs))[: int(joined_share * len(clips))]
    return [(int(i),) for i in clips] + [pairs[i] for i in joined]


def _text(bank: TokenBank, plan: tuple[int, ...]) -> NDArray[np.int16]:
    parts: list[NDArray[np.int16]] = []
    for i in plan:
        if parts:
            parts.append(np.array([SPACE_ID], dtype=np.int16))
        parts.append(bank.text_ids[bank.text_offsets[i] : bank.text_offsets[i + 1]])
    return np.concatenate(parts)
