"""The energy of an utterance in frames of 10 ms: where, near a time, one word ends and the next begins."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from nightingale.clocks import CLOCKS
from nightingale.types import Samples

FRAMES_PER_S: Final = 100
FRAME_SAMPLES: Final = CLOCKS.sample_rate_hz // FRAMES_PER_S
SILENCE_DB: Final = -38.0
"""Frames that are quieter than this, relative to the loudest frame, are silent."""
PAUSE_FRAMES: Final = 6
"""The shortest silence that is a pause: that of a stop consonant is shorter."""
REACH_FRAMES: Final = 6
"""Frames from a boundary in which a pause is searched."""


class SpeechEnergy:
    """The level of each frame of an utterance, while it is rendered."""

    def __init__(self) -> None:
        self._rest: Samples = np.zeros(0, np.float32)
        self._levels: NDArray[np.float32] = np.zeros(0, np.float32)
        self._pauses: list[tuple[int, int]] | None = None
        """First frame of each pause, and the one after its last; None until they are needed."""

    def push(self, samples: Samples) -> None:
        """Add audio."""
        joined = np.concatenate([self._rest, samples])
        count = len(joined) // FRAME_SAMPLES
        frames = joined[: count * FRAME_SAMPLES].reshape(count, FRAME_SAMPLES)
        power = np.einsum("fs,fs->f", frames, frames) / FRAME_SAMPLES + np.float32(1e-10)
        self._levels = np.concatenate([self._levels, 10 * np.log10(power)])
        self._rest = joined[count * FRAME_SAMPLES :]
        self._pauses = None

    @property
    def frames(self) -> int:
        """The number of frames so far."""
        return len(self._levels)

    def divide(self, frame: int) -> tuple[int, int]:
        """Return the end of the word before a frame, and the start of the word after it.

        They are the ends of the longest pause that is near; without one, both are the frame.
        """
        self._pauses = self._find_pauses() if self._pauses is None else self._pauses
        near = [
            (start, end) for start, end in self._pauses if start - REACH_FRAMES < frame < end + REACH_FRAMES
        ]
        return max(near, key=lambda pause: pause[1] - pause[0], default=(frame, frame))

    def _find_pauses(self) -> list[tuple[int, int]]:
        silent = self._levels < self._levels.max(initial=-np.inf) + SILENCE_DB
        # Where silence begins and ends; before and after the audio it is loud.
        edges = np.flatnonzero(np.diff(np.concatenate([[False], silent, [False]]).astype(np.int8))).tolist()
        runs = zip(edges[::2], edges[1::2], strict=True)
        return [(start, end) for start, end in runs if end - start >= PAUSE_FRAMES]
