"""Add what speech tokens do not keep of a recording to the mel of another voice.

A voice is converted by rendering the speech tokens of a recording. Tokens are coarse: 25 a second, and those of wren
lose consonants of speech that was rendered before, and most words of people's recordings. But the recording itself is
there. So its tokens are rendered twice, in the voice that is asked for and in the recording's own, and what the second
mel lacks of the recorded one is added to the first:

    mel = target + average over bands (recorded - own - mean)

Where tokens say all there is, the difference is zero. The average over neighbouring bands leaves out the harmonics,
whose places are those of the recorded pitch, so pitch and timbre are the target's. The running mean leaves out what
does not change: the microphone, the room, and the rest of the speaker's timbre.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nightingale.backends.base import Block
from nightingale.clocks import CLOCKS

Floats = NDArray[np.float32]
REACH: Final = 3
"""The weight of a neighbouring band falls to zero over so many bands."""
MEAN_FRAMES: Final = 100
"""The time constant of the mean of a band's differences: 2 s."""
AUDIBLE_LOG: Final = -9.0
"""Bands of the own mel below this have no sound, and do not count in the mean."""


class RecordedMel:
    """The recording of one utterance, as far as its tokens have not been rendered."""

    def __init__(self) -> None:
        self._waiting: Floats | None = None
        """Frames that were given and not rendered: a renderer looks ahead."""
        self._mean: Floats | None = None

    def missing(self, block: Block, own: Floats, frames: int) -> Floats:
        """Return what to add to the target's mel: (frames, bands), zeros where nothing is known.

        own: those frames in the recording's voice, except for the first ones if that voice was not known before.
        """
        assert block.recorded is not None
        mel = block.recorded.mel
        assert len(mel) == CLOCKS.frames_per_token * len(block.tokens)
        known = mel if self._waiting is None else np.concatenate([self._waiting, mel])
        self._waiting = known[len(own) :]
        difference = np.nan_to_num(known[: len(own)] - own)
        if self._mean is None:
            self._mean = np.zeros(own.shape[1], np.float32)
        share = (own > AUDIBLE_LOG).astype(np.float32) / np.float32(MEAN_FRAMES)
        for frame, counted in zip(difference, share, strict=True):
            self._mean += counted * (frame - self._mean)
            np.subtract(frame, self._mean, out=frame)
        averaged = np.asarray(difference @ band_average(own.shape[1]).T, np.float32)
        return np.pad(averaged, ((frames - len(own), 0), (0, 0)))


@cache
def band_average(bands: int) -> Floats:
    """Return the matrix (bands, bands) of weighted means over neighbouring bands."""
    distance = np.abs(np.subtract.outer(np.arange(bands), np.arange(bands)))
    weights = np.where(distance < REACH, np.cos(0.5 * np.pi * distance / REACH) ** 2, 0.0)
    averages: Floats = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return averages
