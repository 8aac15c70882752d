"""The excitation signal: f0 from mel frames, harmonics of f0 in voiced frames, noise in unvoiced ones.

Phase and noise are arguments: a session owns its random generator, so the same request gives the same
samples, and a stream continues the phase from one block to the next.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.config import (
    CAUSAL_LOOKAHEAD_FRAMES,
    MAX_HARMONIC_HZ,
    NOISY_HARMONICS,
    HiftConfig,
)
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
            # A two-sided layer looks one frame ahead: a causal vocoder has one for each frame of lookahead.
            causal = config.causal and i >= CAUSAL_LOOKAHEAD_FRAMES
            layers += [same_conv(widths[i], widths[i + 1], 3, causal=causal), nn.ELU()]
        self.condnet = nn.Sequential(*layers)
        self.classifier = nn.Linear(config.f0_channels, 1)

    def forward(self, mel: Tensor) -> Tensor:
        hidden: Tensor = self.condnet(mel)
        return self.classifier(hidden.transpose(1, 2)).squeeze(-1).abs()


class HarmonicSource(nn.Module):
    """f0 per frame -> one excitation signal per sample."""

    def __init__(self, harmonics: int = NOISY_HARMONICS) -> None:
        super().__init__()
        self.harmonics = harmonics
        self.l_linear = nn.Linear(harmonics, 1)

    def forward(
        self, f0_hz: Tensor, phase: Tensor, noise: Tensor, start_cycles: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the excitation (batch, 1, samples), and the cycles reached for the next block.

        The official nine harmonics are integrated separately, as upstream does. Where there are more, the
        fundamental is integrated and multiplied. `f0_hz` is (batch, frames), the initial `phase` in radians and
        `start_cycles` before this block are (batch, harmonics, 1), `noise` is standard normal, (batch,
        NOISY_HARMONICS, samples).
        """
        device = "cpu" if f0_hz.device.type == "mps" else f0_hz.device  # MPS has no float64
        f0 = f0_hz.to(device, torch.promote_types(f0_hz.dtype, torch.float32))[:, None]  # (batch, 1, frames)
        harmonic = torch.arange(1, self.harmonics + 1, device=f0.device, dtype=f0.dtype)[None, :, None]
        separate = self.harmonics == NOISY_HARMONICS
        step = _per_sample(f0) * harmonic if separate else _per_sample(f0)
        # Summed in float64, then rounded, as CPU kernels do anyway, so that blocks equal the whole. Rounding
        # is 1e-3 of a cycle after ten seconds; cycles modulo one would be rounded less.
        cycles = torch.cumsum(step / CLOCKS.sample_rate_hz, dim=-1, dtype=torch.float64)
        if start_cycles is not None:
            cycles = cycles + start_cycles[:, : cycles.shape[1]]
        voiced = (f0 > VOICED_ABOVE_HZ).to(f0.dtype)
        level = _per_sample(voiced * VOICED_NOISE + (1 - voiced) * UNVOICED_NOISE)
        phase, noise = phase.to(f0), noise.to(f0)
        if separate:
            sines = SINE_AMPLITUDE * torch.sin(2 * math.pi * (cycles.to(f0.dtype) % 1) + phase)
            mixed = (sines * _per_sample(voiced) + level * noise).transpose(1, 2)
            merged = self.l_linear(mixed.to(self.l_linear.weight)).transpose(1, 2)
            return torch.tanh(merged.to(f0_hz)), cycles[..., -1:].clone()
        weight = self.l_linear.weight.to(f0)[0]
        audible = voiced * (f0 * harmonic < MAX_HARMONIC_HZ)
        tone = self._pulses(cycles, SINE_AMPLITUDE * weight[:, None] * audible, phase)
        hiss = level[:, 0] * torch.einsum("h,bhs->bs", weight[:NOISY_HARMONICS], noise)
        merged = (tone + hiss + self.l_linear.bias.to(f0))[:, None]
        return torch.tanh(merged.to(f0_hz)), cycles[..., -1:] * harmonic

    def _pulses(self, cycles: Tensor, amplitude: Tensor, phase: Tensor) -> Tensor:
        """Return the sum of the harmonics (batch, samples) from the cycles of the fundamental."""
        angle = (cycles % 1).to(amplitude.dtype) * (2 * math.pi)
        angle = angle[:, 0].unflatten(1, (-1, CLOCKS.samples_per_frame))
        if amplitude.device.type == "cpu" and not torch.is_grad_enabled() and not phase.any():
            return sum_in_phase(angle, amplitude).flatten(1)
        return sum_of_sines(angle, amplitude, phase).flatten(1)


def _per_sample(x: Tensor) -> Tensor:
    return x.repeat_interleave(CLOCKS.samples_per_frame, dim=2)


def sum_of_sines(angle: Tensor, amplitude: Tensor, phase: Tensor) -> Tensor:
    """Sum the harmonics of a fundamental whose angle is (batch, frames, samples), in radians.

    amplitude is (batch, harmonics, frames), phase (batch, harmonics, 1).
    """
    harmonic = torch.arange(1, amplitude.shape[1] + 1, device=angle.device, dtype=angle.dtype)
    sines = torch.sin(angle[:, None] * harmonic[:, None, None] + phase[..., None])
    return torch.einsum("bhft,bhf->bft", sines, amplitude)


def sum_in_phase(angle: Tensor, amplitude: Tensor) -> Tensor:
    """Sum harmonics of phase zero by Clenshaw's recurrence, in a tenth of the time on a CPU.

    It needs two sines a sample, and two calls for each harmonic, instead of one sine for each harmonic.
    """
    twice_cos = 2 * angle.cos()
    last, last_but_one = torch.zeros_like(angle), torch.zeros_like(angle)
    for n in reversed(range(amplitude.shape[1])):
        torch.sub(amplitude[:, n, :, None], last_but_one, out=last_but_one)
        last_but_one.addcmul_(twice_cos, last)
        last, last_but_one = last_but_one, last
    return last * angle.sin()
