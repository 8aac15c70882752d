"""The frames, the noise and the samples of an utterance that a frame-rate vocoder renders block by block.

The network's samples lie `DELAY_SAMPLES` behind the mel. So the first ones are dropped, and silent frames after the
last one push out those that are still inside. Backends that run the network share this bookkeeping.
"""

from __future__ import annotations

import numpy as np

from nightingale.audio.crossfade import apply_fade_in
from nightingale.clocks import CLOCKS
from nightingale.decoding.philox import normal, stream_key
from nightingale.models.frame_vocoder.config import DELAY_SAMPLES, FLUSH_FRAMES
from nightingale.types import Samples


class VocoderBlocks:
    """Counts what one utterance has rendered."""

    def __init__(self, *, seed: int) -> None:
        self._key = stream_key(seed, "source")
        self._known_samples = 0
        """Samples of the utterance whose mel is known."""
        self._noise_samples = 0
        self._rendered_samples = -DELAY_SAMPLES
        self._emitted_samples = 0

    def frames(self, fresh: int, *, final: bool) -> int:
        """Return the frames to render for a block with so many fresh ones: more in the last block, or none."""
        self._known_samples += fresh * CLOCKS.samples_per_frame
        return fresh + FLUSH_FRAMES if final and self._known_samples else fresh

    def noise(self, frames: int) -> Samples:
        """Return the noise of the next frames."""
        count = frames * CLOCKS.samples_per_frame
        drawn: Samples = normal(self._key, self._noise_samples, count, 1)[:, 0]
        self._noise_samples += count
        return drawn

    def emit(self, rendered: Samples) -> Samples:
        """Return the utterance's next samples from those that the network returned."""
        start = self._rendered_samples
        self._rendered_samples += len(rendered)
        end = min(self._rendered_samples, self._known_samples)
        samples = np.ascontiguousarray(rendered[self._emitted_samples - start : max(end, 0) - start])
        samples = apply_fade_in(samples, self._emitted_samples)
        self._emitted_samples += len(samples)
        return samples
