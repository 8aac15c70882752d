"""The mel spectrograms that cloning needs, in numpy. `models/layers/mel.py` is the reference.

flow_mel    24 kHz, 80 bands, log of magnitude     the voice prompt of the flow, 50 frames a second
token_mel   16 kHz, 128 bands, log10 of power      the speech tokenizer, 100 frames a second
voice_mel   16 kHz, 40 bands, plain power          the voice encoder, 100 frames a second

frames = windows of the signal, padded by reflection;   mel = filters · |rfft(frames · hann)|
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from nightingale.backends.onnx.numpy_weights import Floats
from nightingale.errors import BadReference
from nightingale.types import Samples

Doubles = NDArray[np.float64]
HIGH_HZ = 8000.0
LINEAR_HZ_PER_MEL = 200.0 / 3
LINEAR_TOP_HZ = 1000.0
LINEAR_TOP_MEL = LINEAR_TOP_HZ / LINEAR_HZ_PER_MEL
LOG_STEP = math.log(6.4) / 27.0


def flow_mel(samples_24k: Samples, bands: int) -> Floats:
    """Return the natural log of mel magnitudes, (frames, bands); one frame for each 480 samples."""
    spectrum = _stft(samples_24k, size=1920, hop=480, margin=720)
    magnitude = np.sqrt(_power(spectrum) + np.float32(1e-9))
    mel: Floats = magnitude @ slaney_filters(24_000, 1920, bands).T
    return np.log(np.maximum(mel, np.float32(1e-5)))


def token_mel(samples_16k: Samples, bands: int) -> Floats:
    """Return log10 of mel power, (frames, bands), 8 decades deep below the clip's maximum, about -1 to 1."""
    power = _power(_stft(samples_16k, size=400, hop=160, margin=200))[:-1]
    mel: Floats = power @ slaney_filters(16_000, 400, bands).T
    log = np.log10(np.maximum(mel, np.float32(1e-10)))
    scaled: Floats = (np.maximum(log, log.max() - np.float32(8.0)) + np.float32(4.0)) / np.float32(4.0)
    return scaled


def voice_mel(samples_16k: Samples, bands: int) -> Floats:
    """Return mel power, (frames, bands)."""
    power = _power(_stft(samples_16k, size=400, hop=160, margin=200))
    mel: Floats = power @ slaney_filters(16_000, 400, bands).T
    return mel


def _stft(samples: Samples, *, size: int, hop: int, margin: int) -> NDArray[np.complex64]:
    """Transform samples, padded by reflection, to (frames, bins)."""
    if len(samples) <= margin:
        raise BadReference(
            "the clip is too short to analyse",
            got=f"{len(samples)} samples",
            allowed=f"at least {margin + 1} samples",
            fix="Use a clip of a second or more.",
        )
    padded = np.pad(np.asarray(samples, np.float32), margin, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    return np.fft.rfft(frames * window.astype(np.float32)).astype(np.complex64)


def _power(spectrum: NDArray[np.complex64]) -> Floats:
    return np.square(spectrum.real) + np.square(spectrum.imag)


@cache
def slaney_filters(sample_rate_hz: int, fft_samples: int, bands: int) -> Floats:
    """Return (bands, bins): triangles of equal area on Slaney's scale, linear to 1 kHz, then logarithmic."""
    edges_hz = _slaney_to_hz(np.linspace(0.0, _hz_to_slaney(HIGH_HZ), bands + 2))
    bins_hz = np.arange(fft_samples // 2 + 1) * sample_rate_hz / fft_samples
    widths = np.diff(edges_hz)
    up = (bins_hz - edges_hz[:-2, None]) / widths[:-1, None]
    down = (edges_hz[2:, None] - bins_hz) / widths[1:, None]
    # PARITY: librosa rounds the triangles to float32 before it scales them.
    #         tests/models/encoders/test_mel_fronts.py::test_slaney_filters_equal_librosa
    triangles = np.maximum(np.minimum(up, down), 0.0).astype(np.float32).astype(np.float64)
    return (triangles * (2.0 / (edges_hz[2:] - edges_hz[:-2]))[:, None]).astype(np.float32)


def _hz_to_slaney(hz: float) -> float:
    if hz < LINEAR_TOP_HZ:
        return hz / LINEAR_HZ_PER_MEL
    return LINEAR_TOP_MEL + math.log(hz / LINEAR_TOP_HZ) / LOG_STEP


def _slaney_to_hz(mel: Doubles) -> Doubles:
    log = LINEAR_TOP_HZ * np.exp(LOG_STEP * (mel - LINEAR_TOP_MEL))
    return np.where(mel >= LINEAR_TOP_MEL, log, mel * LINEAR_HZ_PER_MEL)
