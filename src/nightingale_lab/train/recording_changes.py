"""Random changes of recordings as rooms, microphones and noise make them, for training on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

EQUALIZER_POINTS = 12
"""Frequencies whose gains are random, linearly interpolated between."""
EQUALIZER_DB = 8.0
"""Standard deviation of these gains."""
NOISE_DB = -45.0, -12.0
"""Range of the noise's level, relative to the speech."""
NOISE_TILT = 0.0, 1.0
"""Range of the exponent of frequency by which the noise's amplitude falls: white to -6 dB per octave."""
REVERBERATION_S = 0.05, 0.5
"""Range of the time in which a room's echoes fall by 60 dB."""
REVERBERATION_SHARE = 0.4
"""Share of the recordings with echoes."""
ECHO_LEVEL = 0.0, 0.7
"""Range of the echoes' amplitude, relative to the direct sound."""
RESPONSE_S = 0.5
"""Length of an impulse response."""
FFT_STEP = 4096
"""Transforms are as long as a multiple of this: their speed depends on the prime factors."""


def change_recordings(audio: Tensor, rate_hz: int) -> Tensor:
    """Return (batch, samples) through a random room and microphone each, with noise, at about the same level."""
    batch, samples = audio.shape
    device = audio.device
    size = -(-(samples + int(RESPONSE_S * rate_hz)) // FFT_STEP) * FFT_STEP
    spectrum = torch.fft.rfft(audio, n=size)
    response = _equalizer(batch, spectrum.shape[1], device) * torch.fft.rfft(
        _impulse_responses(batch, rate_hz, device), n=size
    )
    changed = torch.fft.irfft(spectrum * response, n=size)[:, :samples]
    level = _level(audio)
    changed = changed * (level / (_level(changed) + 1e-6))
    noise_level = level * 10 ** (_between(NOISE_DB, batch, device) / 20)
    return changed + _noise(batch, samples, device) * noise_level


def _between(limits: tuple[float, float], batch: int, device: torch.device) -> Tensor:
    low, high = limits
    return low + (high - low) * torch.rand(batch, 1, device=device)


def _level(audio: Tensor) -> Tensor:
    return audio.square().mean(1, keepdim=True).sqrt()


def _equalizer(batch: int, bins: int, device: torch.device) -> Tensor:
    """Return a smooth random response, (batch, bins); half of the recordings have less of it."""
    gains_db = EQUALIZER_DB * torch.randn(batch, 1, EQUALIZER_POINTS, device=device)
    gains_db = gains_db * torch.rand(batch, 1, 1, device=device)
    smooth = F.interpolate(gains_db, size=bins, mode="linear", align_corners=True)[:, 0]
    return (10 ** (smooth / 20)).to(torch.complex64)


def _impulse_responses(batch: int, rate_hz: int, device: torch.device) -> Tensor:
    """Return impulse responses: the direct sound, and noise that decays behind it."""
    samples = int(RESPONSE_S * rate_hz)
    seconds = torch.arange(samples, device=device) / rate_hz
    decay = 10 ** (-3 * seconds / _between(REVERBERATION_S, batch, device))
    echoes = torch.randn(batch, samples, device=device) * decay
    echoes[:, 0] = 0.0
    echoes = echoes / (echoes.square().sum(1, keepdim=True).sqrt() + 1e-6)
    has_echoes = (torch.rand(batch, 1, device=device) < REVERBERATION_SHARE).float()
    response = echoes * _between(ECHO_LEVEL, batch, device) * has_echoes
    response[:, 0] = 1.0
    return response


def _noise(batch: int, samples: int, device: torch.device) -> Tensor:
    """Return noise of a level of 1 with a random tilt."""
    spectrum = torch.fft.rfft(torch.randn(batch, samples, device=device))
    frequency = torch.arange(1, spectrum.shape[1] + 1, device=device)
    noise = torch.fft.irfft(spectrum * frequency ** -_between(NOISE_TILT, batch, device), n=samples)
    return noise / (_level(noise) + 1e-6)
