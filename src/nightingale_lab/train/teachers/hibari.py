"""hibari as a teacher: one voice (Kokoro's af_heart), 6 M parameters, much faster than real time on a core.

hibari is a pure-Python package over numpy and onnxruntime, so on a machine where nothing can be installed
it runs from the folder its wheel unpacks to. This module imports it from there when it is first needed.

    folder/hibari/...    the package of hibari-tts 0.2.1 (Apache-2.0: with its LICENSE and NOTICE)

To speak ids, the assets hibari.onnx, normalize.json, vocab.json and voices.json are enough (8 MB).

Phonemes are Kokoro's: `phonemes(text)` feeds KokoroTeacher as well.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nightingale.errors import ModelMissing


def find_package(folder: Path) -> Path:
    """Make the unpacked wheel in the folder importable, and return its model.

    Raises:
        ModelMissing: the folder has no such wheel.
    """
    model = folder / "hibari" / "assets" / "hibari.onnx"
    if not model.is_file():
        raise ModelMissing(
            "hibari is not there",
            got=str(folder),
            allowed="a folder with hibari/assets/hibari.onnx",
            fix="Unpack the wheel hibari-tts 0.2.1 into it.",
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return model


class HibariTeacher:
    def __init__(self, folder: Path, *, threads: int = 1, british: bool = False) -> None:
        """`british` changes the pronunciation (`phonemes`), not the voice."""
        find_package(folder)
        from hibari.g2p import G2P
        from hibari.tts import Hibari

        # Left to itself, hibari reads its American dictionaries when the first text comes.
        self._voice: Any = Hibari(threads=threads, g2p=G2P(british=True) if british else None)

    def phonemes(self, text: str) -> list[str]:
        """One string per sentence, in Kokoro's alphabet, none longer than 400 characters."""
        return list(self._voice.phonemize(text))

    def ids(self, phonemes: str) -> list[int]:
        """Kokoro's ids, without the pads at the ends."""
        return list(self._voice.ids(phonemes)[1:-1])

    def speak_ids(self, ids: Sequence[int], *, speed: float = 1.0, seed: int = 0) -> Tensor:
        """float32 samples at 24 kHz."""
        samples = self._voice.from_ids([0, *ids, 0], speed, np.random.default_rng(seed))
        return torch.from_numpy(np.asarray(samples, dtype=np.float32))


def read_vocabulary(folder: Path) -> dict[str, int]:
    """Return the ids of Kokoro's phonemes by character, from the unpacked wheel."""
    stored = json.loads((folder / "hibari" / "assets" / "vocab.json").read_text(encoding="utf-8"))
    return dict(stored.get("vocab", stored))


_teacher: HibariTeacher | None = None  # one per worker process


def _start_worker(folder: Path, british: bool) -> None:
    global _teacher
    _teacher = HibariTeacher(folder, british=british)


def _phonemize(texts: Sequence[str]) -> list[list[list[int]]]:
    assert _teacher is not None
    return [[_teacher.ids(p) for p in _teacher.phonemes(text)] for text in texts]


def phonemize_all(
    texts: Sequence[str], folder: Path, *, workers: int = 2, british: bool = False
) -> Iterator[list[list[int]]]:
    """For every text, in order, the ids of each of its sentences."""
    chunks = [texts[at : at + 500] for at in range(0, len(texts), 500)]
    with mp.get_context("spawn").Pool(workers, _start_worker, (folder, british)) as pool:
        for chunk in pool.imap(_phonemize, chunks):
            yield from chunk
