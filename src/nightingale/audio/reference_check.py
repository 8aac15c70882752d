"""Check of a reference clip: errors for clips that cannot become a voice, warnings for poor ones.

A clip's sound spans the frames within 20 dB of the loudest one; what is before and after are its quiet ends.
"""

from __future__ import annotations

import numpy as np

from nightingale.audio.samples import Samples
from nightingale.errors import BadReference

FRAME_SAMPLES = 2048
HOP_SAMPLES = 512
TOP_DB = 20.0
FLOOR_POWER = 1e-10
"""Frames below this power count as equally silent, so that a silent clip is kept whole."""
SILENCE_RMS = 1e-3
"""A clip whose loudest frame is under -60 dB of full scale is silent."""
CLIP_LEVEL = 0.999
CLIP_RUN_SAMPLES = 3
"""This many samples in a row at full scale count as clipping; fewer may be real peaks."""
CLIP_SHARE = 1e-4


def check_reference(samples: Samples, rate_hz: int, *, longer_than_s: float) -> tuple[str, ...]:
    """Return warnings about a mono clip for a model that needs more than `longer_than_s` seconds.

    Raises:
        BadReference: The clip is too short or silent.
    """
    seconds = len(samples) / rate_hz
    if seconds <= longer_than_s:
        raise BadReference(
            "the reference clip is too short",
            got=f"{seconds:.2f} s",
            allowed=f"more than {longer_than_s:g} s for this model",
            fix="Record a longer clip; ten seconds of clear speech is best.",
        )
    peak_rms = float(np.sqrt(frame_power(samples).max()))
    # Not `<`, which is false for NaN.
    if not peak_rms >= SILENCE_RMS:
        raise BadReference(
            "the reference clip is silent",
            got=f"a loudest level of {20 * np.log10(max(peak_rms, 1e-10)):.0f} dB of full scale",
            allowed=f"more than {20 * np.log10(SILENCE_RMS):.0f} dB",
            fix="Check the microphone and the recording level.",
        )
    start, end = sound_span(samples)
    sound_seconds = (end - start) / rate_hz
    warnings = []
    if (clipped := clipped_share(samples)) > CLIP_SHARE:
        warnings.append(
            f"{clipped:.2%} of the clip is clipped; record it at a lower level for a cleaner voice."
        )
    if sound_seconds <= longer_than_s:
        warnings.append(
            f"only {sound_seconds:.1f} s of the {seconds:.1f} s are sound; the ends are near silence."
        )
    return tuple(warnings)


def clipped_share(samples: Samples) -> float:
    """Return the fraction of samples in runs of three or more at full scale."""
    full = np.abs(samples) >= CLIP_LEVEL
    edges = np.flatnonzero(np.diff(np.concatenate(([False], full, [False])).astype(np.int8)))
    runs = edges[1::2] - edges[::2]
    return float(runs[runs >= CLIP_RUN_SAMPLES].sum()) / max(1, len(samples))


def sound_span(samples: Samples) -> tuple[int, int]:
    """Return the first sample, and one past the last, of the part that is loud enough, in whole hops."""
    power = np.maximum(frame_power(samples), FLOOR_POWER)
    loud = np.flatnonzero(power > power.max() * 10 ** (-TOP_DB / 10))
    return int(loud[0]) * HOP_SAMPLES, min(len(samples), (int(loud[-1]) + 1) * HOP_SAMPLES)


def frame_power(samples: Samples) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the mean square of each frame, centred every 512 samples, with zeros beyond the ends."""
    overlap = FRAME_SAMPLES // HOP_SAMPLES
    frames = 1 + len(samples) // HOP_SAMPLES
    padded = np.zeros((frames + overlap - 1) * HOP_SAMPLES + FRAME_SAMPLES)
    padded[FRAME_SAMPLES // 2 :][: len(samples)] = samples
    hops = np.square(padded[: (frames + overlap - 1) * HOP_SAMPLES]).reshape(-1, HOP_SAMPLES).sum(axis=1)
    return np.convolve(hops, np.ones(overlap), mode="valid") / FRAME_SAMPLES
