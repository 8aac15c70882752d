"""Waveform to frames to spectrum: the part that every analysis front end shares.

Windows are made on the CPU even when a module is being built on the meta device: they are facts, not weights,
and no checkpoint brings them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from nightingale.errors import BadReference

TRIM_FRAME_SAMPLES = 2048
TRIM_HOP_SAMPLES = 512
TRIM_FLOOR_POWER = 1e-10


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


def trim_silence(wav: Tensor, top_db: float = 20.0) -> Tensor:
    """(samples,) without ends that are `top_db` quieter than the loudest frame.

    The twin of audio/trim.py: a network may not import that room, and the voice encoder trims what it hears.
    """
    overlap = TRIM_FRAME_SAMPLES // TRIM_HOP_SAMPLES
    frames = 1 + wav.shape[0] // TRIM_HOP_SAMPLES
    half = TRIM_FRAME_SAMPLES // 2
    padded = F.pad(wav.double(), (half, TRIM_FRAME_SAMPLES))[: (frames + overlap - 1) * TRIM_HOP_SAMPLES]
    hop_energy = padded.square().view(-1, TRIM_HOP_SAMPLES).sum(1)
    power = hop_energy.unfold(0, overlap, 1).sum(1) / TRIM_FRAME_SAMPLES
    power = power.clamp(min=TRIM_FLOOR_POWER)
    loud = torch.nonzero(power > power.max() * 10 ** (-top_db / 10)).flatten()
    return wav[int(loud[0]) * TRIM_HOP_SAMPLES : (int(loud[-1]) + 1) * TRIM_HOP_SAMPLES]


def too_short(samples: int, least: int) -> BadReference:
    """The refusal of a clip that does not fill one analysis window."""
    return BadReference(
        "the clip is too short to analyse",
        got=f"{samples} samples",
        allowed=f"at least {least} samples",
        fix="Use a clip of a second or more.",
    )
