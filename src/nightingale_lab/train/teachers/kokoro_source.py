"""The two signal-processing ends of Kokoro's generator: the pitch pulses in, the inverse STFT out.

Both stay in float32 (the phase sum in float64) whatever the network between them runs in.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SAMPLE_RATE = 24_000
SAMPLES_PER_PITCH_FRAME = 300
N_FFT, HOP = 20, 5
_WINDOW_OVERLAP = 1.5  # sum of squared Hann windows at any sample
_VOICED_HZ = 10.0
_SINE_GAIN, _VOICED_NOISE = 0.1, 0.003


def pulse_source(f0: Tensor, weight: Tensor, bias: Tensor, noise: torch.Generator | None) -> Tensor:
    """Nine harmonics of the pitch, mixed to one signal: (B, L) Hz, 0 beyond the end -> (B, 300 L).

    With a generator, every harmonic carries the noise Kokoro was trained with (a third of the sine's
    amplitude where unvoiced); the exported graph leaves it out. The mix of nine independent normal
    noises is one normal noise with the root of the summed squares.

    Phase runs linearly between frame centres. The running sum is kept in float64 and wrapped once per
    frame, so that long utterances do not lose phase; only the remainder is spread over samples.
    """
    harmonics = torch.arange(1, 10, device=f0.device, dtype=f0.dtype)
    step = torch.remainder(f0[..., None] * harmonics / SAMPLE_RATE, 1.0)  # cycles per sample, (B, L, 9)
    start = torch.remainder(step.double().cumsum(1) * SAMPLES_PER_PITCH_FRAME, 1.0).float()
    before = torch.cat([torch.zeros_like(step[:, :1]), step[:, 1:]], dim=1)
    after = torch.cat([step[:, 1:], torch.zeros_like(step[:, :1])], dim=1)
    half = SAMPLES_PER_PITCH_FRAME // 2
    offset = torch.arange(SAMPLES_PER_PITCH_FRAME, device=f0.device, dtype=f0.dtype) + 0.5 - half
    mixed = torch.zeros(*f0.shape, SAMPLES_PER_PITCH_FRAME, device=f0.device, dtype=f0.dtype)
    for h in range(9):
        slope = torch.cat(
            [before[..., h, None].expand(-1, -1, half), after[..., h, None].expand(-1, -1, half)], dim=-1
        )
        mixed += torch.sin((start[..., h, None] + slope * offset) * (2.0 * math.pi)) * weight[0, h]
    voiced = (f0 > _VOICED_HZ)[..., None]
    mixed = torch.where(voiced, mixed * _SINE_GAIN, 0.0)
    if noise is not None:
        level = torch.where(voiced, _VOICED_NOISE, _SINE_GAIN / 3.0) * weight.norm()
        mixed += level * torch.randn(mixed.shape, generator=noise, device=f0.device)
    return torch.tanh(mixed + bias).flatten(1)


def polar_spectrum(signal: Tensor, lengths: Tensor, window: Tensor) -> Tensor:
    """Magnitudes and phases (B, 22, 1, frames) of each utterance reflected at its own two ends."""
    pad = N_FFT // 2
    at = torch.arange(-pad, signal.shape[1] + pad, device=signal.device).abs()
    last = lengths[:, None] - 1
    at = (last - (last - at).abs()).clamp(min=0)  # beyond the end this reflects; further out it is unused
    frames = signal.gather(1, at).unfold(-1, N_FFT, HOP) * window
    spectrum = torch.fft.rfft(frames)
    phase = torch.atan2(spectrum.imag + 0.0, spectrum.real)  # -0.0 + 0.0 is 0.0: negative numbers get +pi
    return torch.cat([spectrum.abs(), phase], dim=-1).transpose(1, 2)[:, :, None]


def overlap_add(polar: Tensor, mask: Tensor, window: Tensor) -> Tensor:
    """(B, 22, 1, frames) log magnitudes and phase codes -> (B, samples).

    Divided by the windows' overlap, as in the original Kokoro. The exported ONNX graph forgets to, so its
    speech is 1.5 times louder and can clip.
    """
    log_magnitude, code = polar[:, :, 0].transpose(1, 2).chunk(2, dim=-1)
    magnitude = torch.exp(log_magnitude) * mask[:, 0, 0, :, None]
    frames = torch.fft.irfft(torch.polar(magnitude, torch.sin(code)), n=N_FFT) * window
    batch, count, _ = frames.shape
    hops = N_FFT // HOP
    frames = frames.view(batch, count, hops, HOP)
    out = frames.new_zeros(batch, count + hops - 1, HOP)
    for k in range(hops):
        out[:, k : k + count] += frames[:, :, k]
    pad = N_FFT // 2
    samples: Tensor = out.flatten(1)[:, pad:-pad] / _WINDOW_OVERLAP
    return samples
