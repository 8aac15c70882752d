"""The excitation of the vocoder in numpy: harmonics of f0 in voiced frames, noise in unvoiced ones.

    cycles = running sum of f0 / sample rate                              in float64
    tone   = 0.1 · Σ weight[h] · sin(2π · h · cycles)                     harmonics up to 11 kHz
    hiss   = level · Σ weight[h] · noise[h]                               of the first nine harmonics
    excitation = tanh(tone + hiss + bias)

Where the harmonics are in phase, their sum is computed by Clenshaw's recurrence, which needs two waves a sample
instead of one for each harmonic. The official nine harmonics have phases and running sums of their own, and the
noise of each is added before their sum. The reference is models/chatterbox/hift/source.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nightingale.backends.onnx.numpy_weights import Floats, Weights
from nightingale.clocks import CLOCKS
from nightingale.decoding.philox import normal, stream_key, uniform
from nightingale.models.chatterbox.hift.config import MAX_HARMONIC_HZ, NOISY_HARMONICS, HiftConfig

SINE_AMPLITUDE = 0.1
VOICED_NOISE, UNVOICED_NOISE = 0.003, SINE_AMPLITUDE / 3
VOICED_ABOVE_HZ = 10.0
FRAME = CLOCKS.samples_per_frame


class ExcitationStream:
    """The excitation of one utterance, frame by frame, with harmonics in phase."""

    def __init__(self, weights: Weights, *, seed: int) -> None:
        """weights: of the vocoder."""
        self._weight, self._bias = weights["m_source.l_linear.weight"][0], weights["m_source.l_linear.bias"]
        self._key = stream_key(seed, "source")
        self._cycles = 0.0
        self._samples = 0

    def next(self, f0_hz: Floats) -> Floats:
        """Return the samples of the next frames, 480 each, from f0 (frames,)."""
        voiced = f0_hz > VOICED_ABOVE_HZ
        harmonic = np.arange(1, len(self._weight) + 1, dtype=np.float32)[:, None]
        audible = voiced & (f0_hz * harmonic < MAX_HARMONIC_HZ)
        amplitude = np.float32(SINE_AMPLITUDE) * self._weight[:, None] * audible
        tone = sum_in_phase(self._angles(f0_hz), amplitude[: int(audible.sum(axis=0).max(initial=0))])
        noise = normal(self._key, self._samples, tone.size, NOISY_HARMONICS) @ self._weight[:NOISY_HARMONICS]
        self._samples += tone.size
        level = np.where(voiced, np.float32(VOICED_NOISE), np.float32(UNVOICED_NOISE))
        tone += level[:, None] * noise.reshape(tone.shape)
        tone += self._bias
        return np.tanh(tone, out=tone).reshape(-1)

    def _angles(self, f0_hz: Floats) -> Floats:
        """Return the phase of the fundamental at each sample, (frames, 480), in radians."""
        steps: NDArray[np.float64] = (f0_hz / np.float32(CLOCKS.sample_rate_hz)).astype(np.float64)
        ends = self._cycles + FRAME * np.cumsum(steps)
        cycles = (ends - FRAME * steps)[:, None] + steps[:, None] * np.arange(1, FRAME + 1)
        self._cycles = float(ends[-1])
        return (cycles % 1).astype(np.float32) * np.float32(2 * np.pi)


class NineHarmonics:
    """The excitation of one utterance by an official vocoder."""

    def __init__(self, weights: Weights, *, seed: int) -> None:
        """weights: of the vocoder."""
        self._weight, self._bias = weights["m_source.l_linear.weight"][0], weights["m_source.l_linear.bias"]
        self._key = stream_key(seed, "source")
        turns = uniform(stream_key(seed, "phase"), 0, np.arange(NOISY_HARMONICS)).astype(np.float32)
        self._phase: Floats = (2 * turns - 1) * np.float32(np.pi)
        self._phase[0] = 0
        self._cycles = np.zeros(NOISY_HARMONICS)
        self._samples = 0

    def next(self, f0_hz: Floats) -> Floats:
        """Return the samples of the next frames, 480 each, from f0 (frames,)."""
        f0, count = np.repeat(f0_hz, FRAME), FRAME * len(f0_hz)
        voiced = f0 > VOICED_ABOVE_HZ
        merged: Floats = normal(self._key, self._samples, count, NOISY_HARMONICS) @ self._weight
        merged *= np.where(voiced, np.float32(VOICED_NOISE), np.float32(UNVOICED_NOISE))
        for number, (weight, phase) in enumerate(zip(self._weight, self._phase, strict=True)):
            steps = f0 * np.float32(number + 1) / np.float32(CLOCKS.sample_rate_hz)
            cycles = self._cycles[number] + np.cumsum(steps, dtype=np.float64)
            self._cycles[number] = cycles[-1]
            # PARITY: rounded to float32 before whole cycles are removed, as upstream does.
            #         tests/backends/onnx/test_whole_rendering.py::test_the_samples_equal_the_reference
            angle = np.float32(2 * np.pi) * (cycles.astype(np.float32) % 1) + phase
            merged += np.float32(SINE_AMPLITUDE) * weight * voiced * np.sin(angle)
        self._samples += count
        merged += self._bias
        return np.tanh(merged, out=merged)


def excitation_stream(config: HiftConfig, weights: Weights, *, seed: int) -> ExcitationStream | NineHarmonics:
    """Begin the excitation of an utterance; weights are those of the vocoder."""
    return (ExcitationStream if config.in_phase else NineHarmonics)(weights, seed=seed)


def sum_in_phase(angle: Floats, amplitude: Floats) -> Floats:
    """Return Σ amplitude[h] · sin((h + 1) · angle): (frames, samples) and (harmonics, frames) -> like angle."""
    twice_cos = 2 * np.cos(angle)
    last, last_but_one, product = np.zeros_like(angle), np.zeros_like(angle), np.empty_like(angle)
    for factors in amplitude[::-1]:
        np.multiply(twice_cos, last, out=product)
        np.subtract(factors[:, None], last_but_one, out=last_but_one)
        last_but_one += product
        last, last_but_one = last_but_one, last
    last *= np.sin(angle)
    return last
