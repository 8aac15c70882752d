"""Join overlapping renderings of one utterance into a single stream of samples.

A streaming vocoder renders the newest frames before it has the frames that follow them, so the end of each
rendering is provisional, and is blended into the start of the next one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from nightingale.audio.samples import Samples
from nightingale.clocks import CLOCKS

HOLD_FRAMES: Final = 4
"""Mel frames whose samples are held back until the next rendering, even if more lookahead is needed."""
CROSSFADE_SAMPLES: Final = 120
"""5 ms: the shortest crossfade without an audible click. A longer one would keep more provisional samples."""


class Crossfade:
    """Returns each sample once, from renderings that overlap, and holds back the last `hold_frames` mel frames."""

    def __init__(self, hold_frames: int = HOLD_FRAMES) -> None:
        self._hold_samples = hold_frames * CLOCKS.samples_per_frame
        self._overlap_samples = min(CROSSFADE_SAMPLES, self._hold_samples)
        self.emitted_samples = 0
        self._provisional = np.zeros(0, np.float32)

    def end(self, known_samples: int, *, final: bool) -> int:
        """Return how many samples of the utterance may be emitted when its mel covers `known_samples`."""
        return known_samples if final else max(self.emitted_samples, known_samples - self._hold_samples)

    def join(self, samples: Samples, *, start: int, end: int) -> Samples:
        """Return the samples from the last emitted one up to `end`.

        Args:
            samples: A rendering. It is modified in place.
            start: Index of its first sample in the utterance.
            end: Index in the utterance one past the last sample to return.
        """
        samples = samples[self.emitted_samples - start :]
        overlap = min(len(self._provisional), len(samples))
        rise = (np.arange(overlap, dtype=np.float32) + 1) / (overlap + 1)
        # Equal gain, not equal power: both renderings are the same signal, in phase.
        samples[:overlap] = rise * samples[:overlap] + (1 - rise) * self._provisional[:overlap]
        count = end - self.emitted_samples
        self._provisional = samples[count : count + self._overlap_samples].copy()
        samples = apply_fade_in(samples[:count], self.emitted_samples)
        self.emitted_samples = end
        return samples


def fade_in() -> Samples:
    """Return the gain of an utterance's first 40 ms: 20 ms of silence, then 20 ms of raised cosine.

    It hides what leaks from the end of the reference clip.
    """
    # PARITY: upstream's `trim_fade`. tests/audio/test_crossfade.py::test_the_fade_in_equals_upstreams
    half = CLOCKS.samples_per_frame
    ramp = (np.cos(np.linspace(np.pi, 0, half)) + 1) / 2
    return np.concatenate([np.zeros(half), ramp]).astype(np.float32)


def apply_fade_in(samples: Samples, start: int) -> Samples:
    """Apply the utterance's fade-in in place to samples of which the first has index `start`."""
    gain = fade_in()[start : start + len(samples)]
    samples[: len(gain)] *= gain
    return samples
