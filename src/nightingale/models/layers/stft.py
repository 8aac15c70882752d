"""The short-time Fourier transform that the mel front ends share.

Windows are created on the CPU even when a module is built on the meta device: they are computed, and no
checkpoint contains them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from nightingale.errors import BadReference


def hann_window(size: int, *, periodic: bool = True) -> Tensor:
    return torch.hann_window(size, periodic=periodic, dtype=torch.float32, device="cpu")


def reflect_pad(wav: Tensor, margin: int) -> Tensor:
    """Pad (batch, samples) by reflection at both ends."""
    if wav.shape[-1] <= margin:
        raise clip_too_short(wav.shape[-1], margin + 1)
    return F.pad(wav.unsqueeze(1), (margin, margin), mode="reflect").squeeze(1)


def spectrum(wav: Tensor, window: Tensor, hop_samples: int) -> Tensor:
    """Transform (batch, samples) to complex (batch, bins, frames) without padding."""
    size = window.shape[0]
    return torch.stft(wav, size, hop_samples, size, window, center=False, return_complex=True)


def clip_too_short(samples: int, min_samples: int) -> BadReference:
    return BadReference(
        "the clip is too short to analyse",
        got=f"{samples} samples",
        allowed=f"at least {min_samples} samples",
        fix="Use a clip of a second or more.",
    )
