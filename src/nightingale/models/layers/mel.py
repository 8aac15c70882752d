"""The four mel spectrograms that the networks take as input.

    FlowMel     24 kHz, 80 bands, log of magnitude    the voice prompt of the flow, 50 frames a second
    TokenMel    16 kHz, 128 bands, log10 of power     the speech tokenizer, 100 frames a second
    VoiceMel    16 kHz, 40 bands, plain power         the voice encoder, 100 frames a second
    KaldiFbank  16 kHz, 80 bands, log of power        the x-vector network, 100 frames a second

They differ in window, padding, scale and floor because four projects made the four networks. Filters and
windows are computed, so they are buffers that no checkpoint contains; they are created on the CPU even when a
module is built on the meta device.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.layers.mel_config import (
    FLOW_MEL,
    KALDI_FBANK,
    TOKEN_MEL,
    VOICE_MEL,
    MelConfig,
    clip_too_short,
    slaney_triangles,
)


class MelFront(nn.Module):
    """Base of the three front ends with Slaney filters."""

    window: Tensor
    filters: Tensor
    DEFAULT: ClassVar[MelConfig]

    def __init__(self, config: MelConfig | None = None) -> None:
        super().__init__()
        self.config = config or self.DEFAULT
        self.register_buffer("window", hann_window(self.config.fft_samples), persistent=False)
        self.register_buffer("filters", slaney_filters(self.config), persistent=False)

    def spectrum(self, wav: Tensor, margin: int) -> Tensor:
        """Transform (batch, samples), padded by reflection, to complex (batch, bins, frames)."""
        if wav.shape[-1] <= margin:
            raise clip_too_short(wav.shape[-1], margin + 1)
        padded = F.pad(wav.unsqueeze(1), (margin, margin), mode="reflect").squeeze(1)
        return spectrum(padded, self.window, self.config.hop_samples)


class FlowMel(MelFront):
    """(batch, samples) -> (batch, bands, frames): natural log of mel magnitudes, samples // hop frames."""

    DEFAULT = FLOW_MEL

    def forward(self, wav: Tensor) -> Tensor:
        margin = (self.config.fft_samples - self.config.hop_samples) // 2
        bins = torch.view_as_real(self.spectrum(wav, margin))
        magnitude = torch.sqrt(bins.square().sum(-1) + 1e-9)
        return torch.log((self.filters @ magnitude).clamp(min=1e-5))


class TokenMel(MelFront):
    """(batch, samples) -> (batch, bands, frames): log10 of mel power, 8 decades deep, about -1 to 1.

    The floor is relative to each clip's own maximum, so cutting a clip before and after differ.
    """

    DEFAULT = TOKEN_MEL

    def forward(self, wav: Tensor) -> Tensor:
        power = self.spectrum(wav, self.config.fft_samples // 2)[..., :-1].abs().square()
        log = (self.filters @ power).clamp(min=1e-10).log10()
        log = torch.maximum(log, log.amax(dim=(-2, -1), keepdim=True) - 8.0)
        return (log + 4.0) / 4.0


class VoiceMel(MelFront):
    """(batch, samples) -> (batch, frames, bands): mel power without a logarithm."""

    DEFAULT = VOICE_MEL

    def forward(self, wav: Tensor) -> Tensor:
        power = self.spectrum(wav, self.config.fft_samples // 2).abs().square()
        return (self.filters @ power).transpose(1, 2)


class KaldiFbank(nn.Module):
    """(batch, samples) -> (batch, frames, bands): Kaldi's log mel energies with its default settings.

    Frames of 25 ms that fit entirely, without their mean, pre-emphasized, multiplied by Povey's window and
    zero-padded to `fft_samples`.
    """

    window: Tensor
    filters: Tensor
    PREEMPHASIS = 0.97
    FRAME_S = 0.025

    def __init__(self, config: MelConfig = KALDI_FBANK) -> None:
        super().__init__()
        self.config = config
        self.frame_samples = int(config.sample_rate_hz * self.FRAME_S)
        window = hann_window(self.frame_samples, periodic=False).pow(0.85)
        self.register_buffer("window", window, persistent=False)
        self.register_buffer("filters", kaldi_filters(config), persistent=False)

    def forward(self, wav: Tensor) -> Tensor:
        if wav.shape[-1] < self.frame_samples:
            raise clip_too_short(wav.shape[-1], self.frame_samples)
        frames = wav.unfold(-1, self.frame_samples, self.config.hop_samples)  # (batch, frames, frame_samples)
        frames = frames - frames.mean(-1, keepdim=True)
        before = torch.cat((frames[..., :1], frames[..., :-1]), dim=-1)
        frames = (frames - self.PREEMPHASIS * before) * self.window
        power: Tensor = torch.fft.rfft(frames, self.config.fft_samples).abs().square()
        return (power @ self.filters.T).clamp(min=torch.finfo(torch.float32).eps).log()


def hann_window(size: int, *, periodic: bool = True) -> Tensor:
    return torch.hann_window(size, periodic=periodic, dtype=torch.float32, device="cpu")


def spectrum(wav: Tensor, window: Tensor, hop_samples: int) -> Tensor:
    """Transform (batch, samples) to complex (batch, bins, frames) without padding."""
    size = window.shape[0]
    return torch.stft(wav, size, hop_samples, size, window, center=False, return_complex=True)


def slaney_filters(config: MelConfig) -> Tensor:
    """Return (bands, bins): triangles of equal area on Slaney's scale."""
    return torch.from_numpy(slaney_triangles(config))


def kaldi_filters(config: MelConfig) -> Tensor:
    """Return (bands, bins): triangles of equal height on Kaldi's scale, 20 Hz to half the sample rate."""
    low, high = _hz_to_kaldi(20.0), _hz_to_kaldi(config.sample_rate_hz / 2)
    step = (high - low) / (config.bands + 1)
    # PARITY: single precision, in this order; the slopes differ by up to 1e-5 from exact ones.
    #         tests/models/encoders/test_mel_fronts.py::test_fbank_equals_torchaudio
    band = torch.arange(config.bands, dtype=torch.float32, device="cpu").unsqueeze(1)
    left, centre, right = low + band * step, low + (band + 1.0) * step, low + (band + 2.0) * step
    bins = torch.arange(config.fft_samples // 2, dtype=torch.float32, device="cpu")
    bins_mel = 1127.0 * (1.0 + bins * (config.sample_rate_hz / config.fft_samples) / 700.0).log()
    triangles = torch.minimum((bins_mel - left) / (centre - left), (right - bins_mel) / (right - centre))
    # The bin at half the sample rate belongs to no band.
    return F.pad(triangles.clamp(min=0.0), (0, 1))


def _hz_to_kaldi(hz: float) -> float:
    return 1127.0 * math.log(1.0 + hz / 700.0)
