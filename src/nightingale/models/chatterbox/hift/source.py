"""The excitation: harmonics of f0 where the voice sounds, noise where it does not.

Random phase and noise are arguments, never drawn here: a session owns its generator, so the same request
gives the same samples, and a stream can carry the running phase from one chunk to the next.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.config import HARMONICS

SINE_AMPLITUDE = 0.1
VOICED_NOISE = 0.003
UNVOICED_NOISE = SINE_AMPLITUDE / 3
VOICED_ABOVE_HZ = 10.0


class Source(nn.Module):
    """f0 per frame -> one excitation signal per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.l_linear = nn.Linear(HARMONICS, 1)

    def forward(
        self, f0_hz: Tensor, phase: Tensor, noise: Tensor, start_cycles: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Excitation (batch, 1, samples) and the cycles reached, to be passed on as `start_cycles`.

        f0_hz: (batch, frames), one at least; phase: (batch, HARMONICS, 1) radians; noise: (batch, HARMONICS,
        samples), standard normal; start_cycles: (batch, HARMONICS, 1), turned by each harmonic before this
        chunk.
        """
        device = "cpu" if f0_hz.device.type == "mps" else f0_hz.device  # which has no doubles
        f0 = f0_hz.to(device, torch.promote_types(f0_hz.dtype, torch.float32))
        f0 = f0[:, None].repeat_interleave(CLOCKS.samples_per_frame, dim=2)  # (batch, 1, samples)
        harmonic = torch.arange(1, HARMONICS + 1, device=device, dtype=f0.dtype)[None, :, None]
        # Added up in double precision, then rounded, as the CPU does of itself: so chunks equal the whole.
        # The rounding is 1e-3 of a cycle after ten seconds; cycles carried modulo one would be rounded less.
        cycles = torch.cumsum(f0 * harmonic / CLOCKS.sample_rate_hz, dim=-1, dtype=torch.float64)
        if start_cycles is not None:
            cycles = cycles + start_cycles
        sines = SINE_AMPLITUDE * torch.sin(2 * math.pi * (cycles.to(f0.dtype) % 1) + phase.to(f0))
        voiced = (f0 > VOICED_ABOVE_HZ).to(f0.dtype)
        level = voiced * VOICED_NOISE + (1 - voiced) * UNVOICED_NOISE
        merged = self.l_linear((sines * voiced + level * noise.to(f0)).transpose(1, 2).to(f0_hz))
        return torch.tanh(merged).transpose(1, 2), cycles[..., -1:].clone()
