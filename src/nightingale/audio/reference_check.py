"""Check of a reference clip: errors for clips that cannot become a voice, warnings for poor ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nightingale.audio.samples import Samples
from nightingale.audio.trim import frame_power, sound_span
from nightingale.errors import BadReference

SILENCE_RMS = 1e-3
"""A clip whose loudest frame is under -60 dB of full scale is silent."""
CLIP_LEVEL = 0.999
CLIP_RUN_SAMPLES = 3
"""This many samples in a row at full scale count as clipping; fewer may be real peaks."""
CLIP_SHARE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceReport:
    """Measurements of an accepted clip, and warnings about it."""

    seconds: float
    sound_seconds: float
    """Length without the quiet ends."""
    clipped_share: float
    """Fraction of the samples that lie in clipped peaks."""
    warnings: tuple[str, ...]


def check_reference(samples: Samples, rate_hz: int, *, longer_than_s: float) -> ReferenceReport:
    """Check a mono clip for a model that needs more than `longer_than_s` seconds.

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
    clipped = clipped_share(samples)
    warnings = []
    if clipped > CLIP_SHARE:
        warnings.append(
            f"{clipped:.2%} of the clip is clipped; record it at a lower level for a cleaner voice."
        )
    if sound_seconds <= longer_than_s:
        warnings.append(
            f"only {sound_seconds:.1f} s of the {seconds:.1f} s are sound; the ends are near silence."
        )
    return ReferenceReport(
        seconds=seconds, sound_seconds=sound_seconds, clipped_share=clipped, warnings=tuple(warnings)
    )


def clipped_share(samples: Samples) -> float:
    """Return the fraction of samples in runs of three or more at full scale."""
    full = np.abs(samples) >= CLIP_LEVEL
    edges = np.flatnonzero(np.diff(np.concatenate(([False], full, [False])).astype(np.int8)))
    runs = edges[1::2] - edges[::2]
    return float(runs[runs >= CLIP_RUN_SAMPLES].sum()) / max(1, len(samples))
