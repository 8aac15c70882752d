"""Waveform to frames to spectrum: the part that every analysis front end shares.

Windows are made on the CPU even when a module is being built on the meta device: they are facts, not weights,
and no checkpoint brings them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from nightingale.errors import BadReference


def hann_window(size: int) -> Tensor:
    """The periodic Hann window."""
    return torch.hann_window(size, dtype=torch.float32, device="cpu")


def reflect_pad(wav: Tensor, margin: int) -> Tensor:
    """(batch, samples) mirrored by `margin` samples at both ends."""
    if wav.shape[-1] <= margin:
        raise too_short(wav.shape[-1], margin + 1)
    return F.pad(wav.unsqueeze(1), (margin, margin), mode="reflect").squeeze(1)


def spectrum(wav: Tensor, window: Tensor, hop_samples: int) -> Tensor:
    """(batch, samples) -> complex (batch, bins, frames); only frames that fit, the caller pads."""
    size = window.shape[0]
    return torch.stft(wav, size, hop_samples, size, window, center=False, return_complex=True)


def too_short(samples: int, least: int) -> BadReference:
    """The refusal of a clip that does not fill one analysis window."""
    return BadReference(
        "the clip is too short to analyse",
        got=f"{samples} samples",
        allowed=f"at least {least} samples",
        fix="Use a clip of a second or more.",
    )
