"""HiFT's excitation signal on MLX: harmonics of f0 in voiced frames, noise in unvoiced ones.

The reference, models/chatterbox/hift/source.py, sums cycles in float64, which Metal does not have. Here the
cycles at the start of each frame are summed modulo one, so float32 rounds less than the reference does after ten
seconds: 1e-4 of a cycle against 1e-3.
"""

from __future__ import annotations

import math

import mlx.core as mx

from nightingale.backends.mlx.arrays import Linear
from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.config import MAX_HARMONIC_HZ, NOISY_HARMONICS

SINE_AMPLITUDE = 0.1
VOICED_NOISE = 0.003
UNVOICED_NOISE = SINE_AMPLITUDE / 3
VOICED_ABOVE_HZ = 10.0


def excitation(
    f0_hz: mx.array, phase: mx.array, noise: mx.array, mix: Linear, start: mx.array | None
) -> tuple[mx.array, mx.array]:
    """Return the excitation (1, samples) of frames (frames,), and the cycles reached, modulo one (series,).

    phase: the initial phase (harmonics,) in radians, all zeros if there are more than the official nine; noise:
    standard normal (samples, NOISY_HARMONICS); mix: the layer that adds the harmonics up; start: the cycles
    reached before. The official nine harmonics are integrated separately, as upstream does; where there are more,
    only the fundamental is.
    """
    harmonics = phase.shape[0]
    separate = harmonics == NOISY_HARMONICS
    harmonic = mx.arange(1, harmonics + 1).astype(mx.float32)
    series = harmonic if separate else harmonic[:1]
    rate = f0_hz[:, None] * series  # (frames, series)
    per_frame = _fraction(rate * (CLOCKS.samples_per_frame / CLOCKS.sample_rate_hz))
    start = mx.zeros((len(series),)) if start is None else start
    begins = _fraction(start + mx.cumsum(per_frame, axis=0, inclusive=False))
    ahead = mx.arange(1, CLOCKS.samples_per_frame + 1).astype(mx.float32)[:, None]
    # (frames, samples of a frame, series)
    cycles = _fraction(begins[:, None] + ahead * (rate / CLOCKS.sample_rate_hz)[:, None])
    reached = _fraction(begins[-1] + per_frame[-1])
    voiced = (f0_hz > VOICED_ABOVE_HZ).astype(mx.float32)[:, None, None]
    level = voiced * VOICED_NOISE + (1 - voiced) * UNVOICED_NOISE
    noise = noise.reshape(*cycles.shape[:2], NOISY_HARMONICS)
    weight = mix.weight[0]
    if separate:
        sines = SINE_AMPLITUDE * mx.sin(2 * math.pi * cycles + phase)
        merged = mix(sines * voiced + level * noise)[..., 0]
    else:
        audible = voiced[..., 0] * (f0_hz[:, None] * harmonic < MAX_HARMONIC_HZ)
        tone = sum_in_phase(2 * math.pi * cycles[..., 0], SINE_AMPLITUDE * weight * audible)
        assert mix.bias is not None
        merged = tone + level[..., 0] * (noise @ weight[:NOISY_HARMONICS]) + mix.bias
    return mx.tanh(merged).reshape(1, -1), reached


def sum_in_phase(angle: mx.array, amplitude: mx.array) -> mx.array:
    """Sum harmonics of phase zero by Clenshaw's recurrence: angle (frames, samples), amplitude (frames, n)."""
    twice_cos = 2 * mx.cos(angle)
    last, last_but_one = mx.zeros_like(angle), mx.zeros_like(angle)
    for n in reversed(range(amplitude.shape[1])):
        last, last_but_one = amplitude[:, n : n + 1] - last_but_one + twice_cos * last, last
    return last * mx.sin(angle)


def _fraction(x: mx.array) -> mx.array:
    return x - mx.floor(x)
