"""Losses of the vocoder: log-mel distances at four resolutions, and f0.

The family's own mel ends at 8 kHz; with it alone, high frequencies become dull. The three others reach 12 kHz.
Their spectra are also the input of the spectral discriminators, so each spectrum is computed once.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.models.frame_vocoder.config import VOICED_ABOVE_HZ
from nightingale.models.layers.mel import slaney_filters
from nightingale.models.layers.mel_config import FLOW_MEL, MelConfig

LOG_FLOOR = 1e-5
MELS = (
    MelConfig(sample_rate_hz=24_000, fft_samples=512, hop_samples=128, bands=64, high_hz=12_000.0),
    MelConfig(sample_rate_hz=24_000, fft_samples=1024, hop_samples=256, bands=100, high_hz=12_000.0),
    MelConfig(sample_rate_hz=24_000, fft_samples=2048, hop_samples=512, bands=128, high_hz=12_000.0),
    FLOW_MEL,
)
DISCRIMINATOR_RESOLUTIONS = 3
"""The discriminators get the spectra of this many of the first MELS."""


def fourier_matrix(samples: int, fft_samples: int | None = None) -> Tensor:
    """Return the (samples, 2 · bins) matrix of the real Fourier transform of a Hann window's samples.

    Real and imaginary parts of a bin are neighbours. fft_samples: of the window with zeros after it (default: none).
    """
    size = fft_samples or samples
    place = torch.arange(samples, dtype=torch.float64)
    turns = (place[:, None] * torch.arange(size // 2 + 1, dtype=torch.float64)).remainder(size) / size
    window = torch.hann_window(samples, dtype=torch.float64)[:, None]
    parts = torch.stack([torch.cos(2 * math.pi * turns), -torch.sin(2 * math.pi * turns)], dim=2)
    return (window[..., None] * parts).flatten(1).float()


class Analysis(nn.Module):
    """Spectra (batch, frames, bins, 2) and log-mels of (batch, samples), one per entry of MELS.

    There is no padding. Windows are made by `unfold` instead of `torch.stft`, because the gradient of the
    latter's overlapping view is a scatter over indices. The transform is a matrix product, because cuFFT, which
    allocates outside of PyTorch's cache, failed beside other stages (dev/log-archive.md).
    """

    def __init__(self) -> None:
        super().__init__()
        for i, config in enumerate(MELS):
            self.register_buffer(f"transform{i}", fourier_matrix(config.fft_samples), persistent=False)
            self.register_buffer(f"filters{i}", slaney_filters(config).T.contiguous(), persistent=False)

    def spectrum(self, audio: Tensor, which: int) -> Tensor:
        """Return the spectra of one entry of MELS."""
        frames = audio.unfold(1, MELS[which].fft_samples, MELS[which].hop_samples)
        return (frames @ self.get_buffer(f"transform{which}")).unflatten(-1, (-1, 2))

    def spectra(self, audio: Tensor) -> list[Tensor]:
        return [self.spectrum(audio, which) for which in range(len(MELS))]

    def log_mel(self, spectrum: Tensor, which: int) -> Tensor:
        """Return the log-mels (batch, frames, bands) of one entry of MELS."""
        return torch.log((magnitude(spectrum) @ self.get_buffer(f"filters{which}")).clamp(min=LOG_FLOOR))

    def log_mels(self, spectra: list[Tensor]) -> list[Tensor]:
        return [self.log_mel(spectrum, which) for which, spectrum in enumerate(spectra)]

    def for_discriminators(self, spectra: list[Tensor]) -> list[Tensor]:
        """Return the first spectra, scaled so that unit noise has unit power (a Hann window keeps 3/8 of it)."""
        pairs = zip(spectra[:DISCRIMINATOR_RESOLUTIONS], MELS[:DISCRIMINATOR_RESOLUTIONS], strict=True)
        return [s * (config.fft_samples * 0.375) ** -0.5 * DISCRIMINATOR_GAIN for s, config in pairs]


DISCRIMINATOR_GAIN = 10.0
"""Speech is about 20 dB below unit noise."""


class LowPass(nn.Module):
    """Removes what is above a frequency from some rows of (batch, samples) at 24 kHz.

    A recording at 16 kHz has nothing above 8 kHz. Both the recording and its rendering are filtered before every
    loss, so the generator may put there what it likes.
    """

    taps: Tensor

    def __init__(self, limit_hz: float, taps: int = 255) -> None:
        super().__init__()
        at = torch.arange(taps, dtype=torch.float64) - taps // 2
        share = 2 * limit_hz / FLOW_MEL.sample_rate_hz
        window = torch.kaiser_window(taps, periodic=False, beta=9.0, dtype=torch.float64)
        kernel = torch.sinc(share * at) * window
        self.register_buffer("taps", (kernel / kernel.sum()).float()[None, None], persistent=False)

    def forward(self, audio: Tensor, rows: Tensor) -> Tensor:
        """rows: (batch, 1) mask of the rows to filter."""
        filtered = F.conv1d(audio[:, None], self.taps, padding=self.taps.shape[-1] // 2)[:, 0]
        return torch.where(rows, filtered, audio)


def magnitude(spectrum: Tensor) -> Tensor:
    return torch.sqrt(spectrum.square().sum(-1) + 1e-9)


def mel_distances(real: list[Tensor], fake: list[Tensor]) -> Tensor:
    """Return the mean distance of the log-mels of each row, (batch,)."""
    return torch.stack([(f - r).abs().mean((1, 2)) for r, f in zip(real, fake, strict=True)]).mean(0)


def f0_loss(predicted_hz: Tensor, target_hz: Tensor) -> Tensor:
    """Return the distance on a scale linear near zero and logarithmic above, plus a voicing margin."""
    distance = (torch.log1p(predicted_hz / 50.0) - torch.log1p(target_hz / 50.0)).abs().mean()
    too_low = F.relu(2 * VOICED_ABOVE_HZ - predicted_hz)
    too_high = F.relu(predicted_hz - VOICED_ABOVE_HZ / 2)
    margin = torch.where(target_hz > VOICED_ABOVE_HZ, too_low, too_high) / (2 * VOICED_ABOVE_HZ)
    return distance + 0.1 * margin.clamp(max=5.0).mean()


def voicing_error(predicted_hz: Tensor, target_hz: Tensor) -> Tensor:
    """Return the share of frames on the wrong side of the voicing threshold."""
    return ((predicted_hz > VOICED_ABOVE_HZ) != (target_hz > VOICED_ABOVE_HZ)).float().mean()


def pitch_error(predicted_hz: Tensor, target_hz: Tensor) -> Tensor:
    """Return the mean relative error of frames where both are voiced."""
    both = ((predicted_hz > VOICED_ABOVE_HZ) & (target_hz > VOICED_ABOVE_HZ)).float()
    relative = (predicted_hz - target_hz).abs() / target_hz.clamp(min=1.0)
    return (relative * both).sum() / both.sum().clamp(min=1.0)
