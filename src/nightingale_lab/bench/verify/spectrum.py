"""Check the spectrum of the audio: missing highs or lows, offset, clipping, hiss, a steady tone.

The bounds were set around 300 English clips of Kokoro's, taken ten at a time: energy below 4 kHz 0.964 to
0.991, offset up to 0.0002, floor -74 to -61 dB, no sample at full scale. The tone is upstream's known fault,
a constant line near 4.9 kHz (resemble-ai/chatterbox issue 536). Kokoro's own vocoder leaves a faint one, 7 to
10 dB over its neighbours; a planted tone 50 dB below the speech reads 16 dB, one of -55 dB 11 dB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from nightingale.types import Samples
from nightingale_lab.bench.endings import levels_db
from nightingale_lab.bench.verify.check import Check, worst_of
from nightingale_lab.bench.verify.subject import RecordedUtterance

check = partial(Check, "spectrum")
FFT_SIZE, HOP = 2048, 512
SPLIT_HZ = 4000.0
TONE_HZ = (4700.0, 5100.0)
FULL_SCALE = 0.985
"""The vocoder clamps at 0.99; samples near it were clipped."""
QUIET_SHARE = 0.1
"""The quietest tenth of the frames counts as pauses."""
DIGITAL_SILENCE = 1e-6
"""Frames below this are the exact zeros that the engine puts between sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    below_4k: float
    """Share of the energy."""
    dc_offset: float
    clipped: float
    """Share of the samples."""
    floor_db: float
    """Level of the pauses, relative to the loud frames."""
    not_finite: int


def frames_power(samples: Samples) -> NDArray[np.float64]:
    """Return the power of each frame: (frames, bins)."""
    x = np.pad(samples.astype(np.float64), (0, max(0, FFT_SIZE - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(x, FFT_SIZE)[::HOP] * np.hanning(FFT_SIZE)
    return np.asarray(np.abs(np.fft.rfft(frames, axis=1)) ** 2)


def spectrum_of(samples: Samples, rate_hz: int) -> Spectrum:
    not_finite = int((~np.isfinite(samples)).sum())
    x = np.nan_to_num(samples)
    power = frames_power(x)
    hz = np.fft.rfftfreq(FFT_SIZE, 1 / rate_hz)
    total = power.sum()
    return Spectrum(
        below_4k=float(power[:, hz < SPLIT_HZ].sum() / total) if total > 0 else float("nan"),
        dc_offset=float(abs(np.mean(x))) if len(x) else 0.0,
        clipped=float(np.mean(np.abs(x) >= FULL_SCALE)) if len(x) else 0.0,
        floor_db=floor_db(x, rate_hz),
        not_finite=not_finite,
    )


def floor_db(samples: Samples, rate_hz: int) -> float:
    size = rate_hz // 100
    sounding = np.abs(samples[: len(samples) // size * size].reshape(-1, size)).max(axis=1) > DIGITAL_SILENCE
    level = levels_db(samples, rate_hz)[sounding]
    return float(np.quantile(level, QUIET_SHARE)) if len(level) else float("nan")


def tone_db(clips: Sequence[Samples], rate_hz: int) -> float:
    """Return how far the sharpest steady line near 4.9 kHz exceeds its neighbours, over all clips.

    A steady line keeps its frequency and level, so the median over all frames shows it and hides speech.
    """
    power = np.concatenate([frames_power(np.nan_to_num(samples)) for samples in clips])
    steady = 10 * np.log10(np.median(power, axis=0) + 1e-12)
    hz = np.fft.rfftfreq(FFT_SIZE, 1 / rate_hz)
    lines = np.flatnonzero((hz >= TONE_HZ[0]) & (hz <= TONE_HZ[1]))
    neighbours = lines[:, None] + np.array([*range(-9, -3), *range(4, 10)])
    return float((steady[lines] - np.median(steady[neighbours], axis=1)).max())


def spectrum(clips: Sequence[RecordedUtterance]) -> list[Check]:
    """Check each measure at its worst clip; the share of energy and the noise floor at their medians."""
    found = [spectrum_of(clip.samples, clip.rate_hz) for clip in clips]

    def at_worst(measure: Callable[[Spectrum], float]) -> float:
        return worst_of([measure(one) for one in found])

    def middle(measure: Callable[[Spectrum], float]) -> float:
        return float(np.median([measure(one) for one in found])) if found else float("nan")

    tone = tone_db([clip.samples for clip in clips], clips[0].rate_hz) if clips else float("nan")
    return [
        check("samples that are no numbers", at_worst(lambda s: s.not_finite), high=0),
        check("energy below 4 kHz, median", middle(lambda s: s.below_4k), low=0.85, high=0.9995),
        check("DC offset, worst", at_worst(lambda s: s.dc_offset), high=0.005),
        check("samples at full scale, worst", at_worst(lambda s: s.clipped), high=0.0005, unit="share"),
        check("noise floor in pauses, median", middle(lambda s: s.floor_db), high=-35.0, unit="dB"),
        check("tone near 4.9 kHz", tone, high=12.0, unit="dB", detail="over its neighbours"),
    ]
