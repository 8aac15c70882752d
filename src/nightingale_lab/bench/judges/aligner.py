"""A forced aligner: when each word of a known English text is said, by the hidden Markov models of PocketSphinx.

It shares nothing with T3, and its frames are 10 ms. Words that its dictionary lacks cannot be aligned.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from nightingale_lab.bench.judges.mel import Array

RATE_HZ = 16_000
FRAMES_PER_S = 100
MARGIN_S = 0.2
"""Silence that is added before and after a clip: the models begin and end with it."""
PEAK = 0.7
DITHER = 1e-4
"""Noise that is added, because digital silence has no logarithm."""


def spoken_words(text: str) -> list[str]:
    """Return the words of a text as the dictionary has them; a hyphen divides two."""
    words = (re.sub(r"[^a-z']", "", word).strip("'") for word in text.lower().replace("-", " ").split())
    return [word for word in words if word]


class ForcedAligner:
    """PocketSphinx with the English model that is in its package."""

    def __init__(self) -> None:
        from pocketsphinx import Decoder

        self._decoder = Decoder(lm=None, loglevel="FATAL")

    def align(self, samples: Array, text: str) -> list[tuple[str, float, float]]:
        """Return each word with its start and end in seconds. Raise ValueError if that is not possible."""
        words, decoder = spoken_words(text), self._decoder
        if unknown := [word for word in words if decoder.lookup_word(word) is None]:
            raise ValueError(f"not in the dictionary: {', '.join(unknown)}")
        margin = np.zeros(round(MARGIN_S * RATE_HZ), np.float32)
        padded = np.concatenate([margin, samples, margin])
        noise = np.random.Generator(np.random.PCG64(0)).normal(scale=DITHER, size=len(padded))
        pcm = (32767 * (padded * PEAK / max(np.abs(padded).max(), DITHER) + noise)).astype("<i2").tobytes()
        decoder.set_align_text(" ".join(words))
        self._decode(pcm)
        decoder.set_alignment()  # of the path that was found, phone by phone
        self._decode(pcm)
        found = [(one.name, one.start, one.duration) for one in decoder.get_alignment()]
        spoken = [one for one in found if one[0][0] not in "<[("]
        if [re.sub(r"\(\d+\)$", "", name) for name, _, _ in spoken] != words:
            raise ValueError("other words were found")
        return [
            (word, start / FRAMES_PER_S - MARGIN_S, (start + length) / FRAMES_PER_S - MARGIN_S)
            for word, (_, start, length) in zip(words, spoken, strict=True)
        ]

    def _decode(self, pcm: bytes) -> None:
        self._decoder.start_utt()
        self._decoder.process_raw(pcm, full_utt=True)
        self._decoder.end_utt()


def aligner_judge(samples: Any, job: dict[str, Any], aligner: ForcedAligner) -> dict[str, Any]:
    """Return {"words": [[word, start, end], …]}, or {"failed": why}."""
    try:
        return {"words": aligner.align(samples, job["text"])}
    except (ValueError, RuntimeError) as error:
        return {"failed": str(error)}
