"""The mel spectrograms that cloning needs, in numpy. `models/layers/mel.py` is the reference.

flow_mel    24 kHz, 80 bands, log of magnitude     the voice prompt of the flow, 50 frames a second
token_mel   16 kHz, 128 bands, log10 of power      the speech tokenizer, 100 frames a second
voice_mel   16 kHz, 40 bands, plain power          the voice encoder, 100 frames a second

frames = windows of the signal, padded by reflection;   mel = filters · |rfft(frames · hann)|
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from nightingale.backends.onnx.numpy_weights import Floats
from nightingale.models.layers.mel_config import (
    FLOW_MEL,
    TOKEN_MEL,
    VOICE_MEL,
    MelConfig,
    clip_too_short,
    slaney_triangles,
)
from nightingale.types import Samples


def flow_mel(samples_24k: Samples, bands: int) -> Floats:
    """Return the natural log of mel magnitudes, (frames, bands); one frame for each 480 samples."""
    config = replace(FLOW_MEL, bands=bands)
    margin = (config.fft_samples - config.hop_samples) // 2
    magnitude = np.sqrt(_power(samples_24k, config, margin) + np.float32(1e-9))
    mel: Floats = magnitude @ _filters(config).T
    return np.log(np.maximum(mel, np.float32(1e-5)))


def token_mel(samples_16k: Samples, bands: int) -> Floats:
    """Return log10 of mel power, (frames, bands), 8 decades deep below the clip's maximum, about -1 to 1."""
    config = replace(TOKEN_MEL, bands=bands)
    mel: Floats = _power(samples_16k, config, config.fft_samples // 2)[:-1] @ _filters(config).T
    log = np.log10(np.maximum(mel, np.float32(1e-10)))
    scaled: Floats = (np.maximum(log, log.max() - np.float32(8.0)) + np.float32(4.0)) / np.float32(4.0)
    return scaled


def voice_mel(samples_16k: Samples, bands: int) -> Floats:
    """Return mel power, (frames, bands)."""
    config = replace(VOICE_MEL, bands=bands)
    mel: Floats = _power(samples_16k, config, config.fft_samples // 2) @ _filters(config).T
    return mel


def _power(samples: Samples, config: MelConfig, margin: int) -> Floats:
    """Return the power (frames, bins) of samples that are padded by reflection."""
    if len(samples) <= margin:
        raise clip_too_short(len(samples), margin + 1)
    size = config.fft_samples
    padded = np.pad(np.asarray(samples, np.float32), margin, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[:: config.hop_samples]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    spectrum = np.fft.rfft(frames * window.astype(np.float32)).astype(np.complex64)
    return np.square(spectrum.real) + np.square(spectrum.imag)


_filters = cache(slaney_triangles)
