"""The training sequences of T3 (text, speech, stop), bucketed by length so that there are few shapes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH, T3Config
from nightingale_lab.train.alignment import SPACE_ID, UNKNOWN, words_of_text
from nightingale_lab.train.parallel import map_spans
from nightingale_lab.train.token_bank import TokenBank

BUCKETS = (64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 640)
NO_FINAL_MARK = 0.06
"""Probability that a final full stop is left out, as users leave it out. Other marks change the intonation."""


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
    word: Tensor
    """(rows, length) int16: the word of each id, or UNKNOWN."""


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
    rows = _clips_of_rows(bank.voice, np.flatnonzero(chosen), joined_share, rng)
    without_mark = rng.random(len(rows)) < NO_FINAL_MARK

    def work(first: int, end: int) -> dict[int, list[NDArray[Any]]]:
        """Return ids, words, numbers of text ids and of all ids, and clips of each bucket."""
        found: dict[int, list[tuple[Any, ...]]] = {}
        for clips, shorten in zip(rows[first:end], without_mark[first:end], strict=True):
            text = _text(bank, clips)
            if shorten and len(text) > 1 and int(text[-1]) in marks:
                text = text[:-1]
            speech = [bank.tokens[bank.token_offsets[i] : bank.token_offsets[i + 1]] for i in clips]
            row = np.concatenate(
                [[config.start_text], text, [config.stop_text, START_SPEECH], *speech, [STOP_SPEECH]]
            )
            size = next((bucket for bucket in BUCKETS if len(row) <= bucket), None)
            if size is not None:
                words = np.full(size, UNKNOWN, dtype=np.int16)
                words[1 : 1 + len(text)] = words_of_text(text)
                words[len(text) + 3 : len(row) - 1] = _words(bank, clips)
                padded = np.pad(row.astype(np.int16), (0, size - len(row)))
                found.setdefault(size, []).append((padded, words, len(text) + 2, len(row), clips[0]))
        return {
            size: [np.stack(column) for column in zip(*each, strict=True)] for size, each in found.items()
        }

    # Only the training set is large enough for several processes; it is built before the GPU is used.
    parts = map_spans(work, len(rows), workers=None if joined_share else 1)
    sizes = sorted({size for part in parts for size in part})

    def bucket(size: int) -> Bucket:
        columns = zip(*(part[size] for part in parts if size in part), strict=True)
        ids, word, text_count, count, clip = (torch.from_numpy(np.concatenate(c)).to(device) for c in columns)
        return Bucket(ids=ids, word=word, text_count=text_count, count=count, clip=clip)

    return {size: bucket(size) for size in sizes}


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


def _words(bank: TokenBank, clips_of_row: tuple[int, ...]) -> NDArray[np.int16]:
    """Return the word of each token; UNKNOWN for a clip whose speech and text differ in the number of words."""
    parts, before = list[NDArray[np.int16]](), 0
    for i in clips_of_row:
        spoken = bank.word[bank.token_offsets[i] : bank.token_offsets[i + 1]]
        text = bank.text_ids[bank.text_offsets[i] : bank.text_offsets[i + 1]]
        written = int(words_of_text(text).max(initial=UNKNOWN)) + 1
        known = int(spoken.max(initial=UNKNOWN)) + 1 == written
        parts.append(np.where(known, spoken + before, UNKNOWN).astype(np.int16))
        before += written
    return np.concatenate(parts)
