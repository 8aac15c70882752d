"""The excitation signal: f0 from mel frames, harmonics of f0 in voiced frames, noise in unvoiced ones.

Phase and noise are arguments: a session owns its random generator, so the same request gives the same
samples, and a stream continues the phase from one block to the next.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.config import HARMONICS, HiftConfig
from nightingale.models.layers.conv import same_conv

F0_LAYERS = 5
SINE_AMPLITUDE = 0.1
VOICED_NOISE = 0.003
UNVOICED_NOISE = SINE_AMPLITUDE / 3
VOICED_ABOVE_HZ = 10.0


class F0Predictor(nn.Module):
    """(batch, mel, frames) -> (batch, frames) in Hz, zero where unvoiced."""

    def __init__(self, config: HiftConfig) -> None:
        super().__init__()
        widths = [config.mel_bands] + [config.f0_channels] * F0_LAYERS
        layers: list[nn.Module] = []
        for i in range(F0_LAYERS):
            layers += [same_conv(widths[i], widths[i + 1], 3, causal=False), nn.ELU()]
        self.condnet = nn.Sequential(*layers)
        self.classifier = nn.Linear(config.f0_channels, 1)

    def forward(self, mel: Tensor) -> Tensor:
        hidden: Tensor = self.condnet(mel)
        return self.classifier(hidden.transpose(1, 2)).squeeze(-1).abs()


class HarmonicSource(nn.Module):
    """f0 per frame -> one excitation signal per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.l_linear = nn.Linear(HARMONICS, 1)

    def forward(
        self, f0_hz: Tensor, phase: Tensor, noise: Tensor, start_cycles: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the excitation (batch, 1, samples), and the cycles reached for the next block.

        Each harmonic is integrated by itself, as upstream does. `f0_hz` is (batch, frames), the initial `phase` in
        radians and `start_cycles` before this block are (batch, harmonics, 1), `noise` is standard normal, (batch,
        harmonics, samples).
        """
        device = "cpu" if f0_hz.device.type == "mps" else f0_hz.device  # MPS has no float64
        f0 = f0_hz.to(device, torch.promote_types(f0_hz.dtype, torch.float32))[:, None]  # (batch, 1, frames)
        harmonic = torch.arange(1, HARMONICS + 1, device=f0.device, dtype=f0.dtype)[None, :, None]
        # Summed in float64, then rounded, as CPU kernels do anyway, so that blocks equal the whole. Rounding
        # is 1e-3 of a cycle after ten seconds; cycles modulo one would be rounded less.
        steps = _per_sample(f0) * harmonic / CLOCKS.sample_rate_hz
        cycles = torch.cumsum(steps, dim=-1, dtype=torch.float64)
        if start_cycles is not None:
            cycles = cycles + start_cycles
        voiced = (f0 > VOICED_ABOVE_HZ).to(f0.dtype)
        level = _per_sample(voiced * VOICED_NOISE + (1 - voiced) * UNVOICED_NOISE)
        sines = SINE_AMPLITUDE * torch.sin(2 * math.pi * (cycles.to(f0.dtype) % 1) + phase.to(f0))
        mixed = (sines * _per_sample(voiced) + level * noise.to(f0)).transpose(1, 2)
        merged = self.l_linear(mixed.to(self.l_linear.weight)).transpose(1, 2)
        return torch.tanh(merged.to(f0_hz)), cycles[..., -1:].clone()


def _per_sample(x: Tensor) -> Tensor:
    return x.repeat_interleave(CLOCKS.samples_per_frame, dim=2)
