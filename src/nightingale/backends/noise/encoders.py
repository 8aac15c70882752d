"""Arrays of a voice from simple statistics of a clip."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS
from nightingale.models.chatterbox.presets import Preset
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES
from nightingale.types import Samples


class NoiseEncoders:
    def __init__(self, preset: Preset) -> None:
        self._preset = preset

    def tokenize(self, samples_16k: Samples, max_tokens: int | None = None) -> NDArray[np.int64]:
        frames = _frames(samples_16k, ANALYSIS_RATE_HZ // CLOCKS.token_rate_hz)
        tokens: NDArray[np.int64] = (np.abs(frames).mean(axis=1) * 1e5).astype(np.int64) % SPEECH_CODES
        return tokens[:max_tokens]

    def speaker(self, samples_16k: Samples) -> NDArray[np.float32]:
        spectrum = np.abs(np.fft.rfft(samples_16k, 2048)).astype(np.float32)
        return np.array([band.mean() for band in np.array_split(spectrum, self._preset.t3.speaker_width)])

    def flow_speaker(self, samples_16k: Samples) -> NDArray[np.float32] | None:  # noqa: ARG002
        return None

    def flow_mel(self, samples_24k: Samples) -> NDArray[np.float32]:
        bands = self._preset.flow.mel_bands
        spectrum = np.abs(np.fft.rfft(_frames(samples_24k, CLOCKS.samples_per_frame), axis=1))
        return np.log(spectrum[:, 1 : bands + 1] + 1e-5).astype(np.float32)


def _frames(samples: Samples, size: int) -> Samples:
    count = len(samples) // size
    return samples[: count * size].reshape(count, size)
