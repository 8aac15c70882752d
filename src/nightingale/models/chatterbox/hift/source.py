"""The excitation: harmonics of f0 where the voice sounds, noise where it does not.

Random phase and noise are arguments, never drawn here: a session owns its generator, so the same request
gives the same samples, and a stream can carry the running phase from one chunk to the next.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.config import AUDIBLE_BELOW_HZ, NOISY_HARMONICS

SINE_AMPLITUDE = 0.1
VOICED_NOISE = 0.003
UNVOICED_NOISE = SINE_AMPLITUDE / 3
VOICED_ABOVE_HZ = 10.0


class Source(nn.Module):
    """f0 per frame -> one excitation signal per sample."""

    def __init__(self, harmonics: int = NOISY_HARMONICS) -> None:
        super().__init__()
        self.harmonics = harmonics
        self.l_linear = nn.Linear(harmonics, 1)

    def forward(
        self, f0_hz: Tensor, phase: Tensor, noise: Tensor, start_cycles: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Excitation (batch, 1, samples) and the cycles reached, to be passed on as `start_cycles`.

        f0_hz: (batch, frames), one at least; phase: (batch, harmonics, 1) radians; noise: (batch,
        NOISY_HARMONICS, samples), standard normal; start_cycles: (batch, harmonics, 1), turned by each
        harmonic before this chunk.
        """
        device = "cpu" if f0_hz.device.type == "mps" else f0_hz.device  # which has no doubles
        f0 = f0_hz.to(device, torch.promote_types(f0_hz.dtype, torch.float32))
        sound = self._sines if self.harmonics == NOISY_HARMONICS else self._pulses
        merged, cycles = sound(f0, phase.to(f0), noise.to(f0), start_cycles)
        return torch.tanh(merged.to(f0_hz)), cycles

    def _sines(
        self, f0_hz: Tensor, phase: Tensor, noise: Tensor, start_cycles: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As upstream: each harmonic turns by itself."""
        f0 = f0_hz[:, None].repeat_interleave(CLOCKS.samples_per_frame, dim=2)  # (batch, 1, samples)
        harmonic = torch.arange(1, self.harmonics + 1, device=f0.device, dtype=f0.dtype)[None, :, None]
        # Added up in double precision, then rounded, as the CPU does of itself: so chunks equal the whole.
        # The rounding is 1e-3 of a cycle after ten seconds; cycles carried modulo one would be rounded less.
        cycles = torch.cumsum(f0 * harmonic / CLOCKS.sample_rate_hz, dim=-1, dtype=torch.float64)
        if start_cycles is not None:
            cycles = cycles + start_cycles
        sines = SINE_AMPLITUDE * torch.sin(2 * math.pi * (cycles.to(f0.dtype) % 1) + phase)
        voiced = (f0 > VOICED_ABOVE_HZ).to(f0.dtype)
        level = voiced * VOICED_NOISE + (1 - voiced) * UNVOICED_NOISE
        mixed = (sines * voiced + level * noise).transpose(1, 2).to(self.l_linear.weight.dtype)
        return self.l_linear(mixed).transpose(1, 2), cycles[..., -1:].clone()

    def _pulses(
        self, f0_hz: Tensor, phase: Tensor, noise: Tensor, start_cycles: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Many harmonics: the fundamental turns, and they are multiples of it. Only the first carry noise."""
        size, weight = CLOCKS.samples_per_frame, self.l_linear.weight.to(f0_hz)[0]
        f0 = f0_hz[:, None].repeat_interleave(size, dim=2)  # (batch, 1, samples)
        harmonic = torch.arange(1, self.harmonics + 1, device=f0.device, dtype=f0.dtype)[None, :, None]
        cycles = torch.cumsum(f0 / CLOCKS.sample_rate_hz, dim=-1, dtype=torch.float64)
        if start_cycles is not None:
            cycles = cycles + start_cycles[:, :1]
        turned = (cycles % 1).to(f0.dtype) * (2 * math.pi)
        voiced = (f0_hz > VOICED_ABOVE_HZ).to(f0.dtype)  # (batch, frames)
        audible = voiced[:, None] * (f0_hz[:, None] * harmonic < AUDIBLE_BELOW_HZ)
        loudness, turned = SINE_AMPLITUDE * weight[:, None] * audible, turned[:, 0].unflatten(1, (-1, size))
        if f0.device.type == "cpu" and not torch.is_grad_enabled() and not phase.any():
            tone = sum_in_step(turned, loudness).flatten(1)
        else:
            tone = sum_of_sines(turned, loudness, phase).flatten(1)
        level = (voiced * VOICED_NOISE + (1 - voiced) * UNVOICED_NOISE).repeat_interleave(size, dim=1)
        hiss = level * torch.einsum("h,bhs->bs", weight[:NOISY_HARMONICS], noise)
        return (tone + hiss + self.l_linear.bias.to(f0))[:, None], cycles[..., -1:] * harmonic


def sum_of_sines(turned: Tensor, loudness: Tensor, phase: Tensor) -> Tensor:
    """Harmonics added up. turned: the fundamental's (batch, frames, samples), radians; loudness: (batch,
    harmonics, frames); phase: (batch, harmonics, 1). Gives (batch, frames, samples)."""
    harmonic = torch.arange(1, loudness.shape[1] + 1, device=turned.device, dtype=turned.dtype)
    sines = torch.sin(turned[:, None] * harmonic[:, None, None] + phase[..., None])
    return torch.einsum("bhft,bhf->bft", sines, loudness)


def sum_in_step(turned: Tensor, loudness: Tensor) -> Tensor:
    """The same for harmonics that start together, by Clenshaw's recurrence: two sines a sample instead of one
    for each harmonic, and two calls for each. A tenth of the time on a CPU."""
    twice_cos = 2 * turned.cos()
    last, last_but_one = torch.zeros_like(turned), torch.zeros_like(turned)
    for n in reversed(range(loudness.shape[1])):
        torch.sub(loudness[:, n, :, None], last_but_one, out=last_but_one)
        last_but_one.addcmul_(twice_cos, last)
        last, last_but_one = last_but_one, last
    return last * turned.sin()
