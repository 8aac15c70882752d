"""May this clip become a voice? A refusal for what cannot work, a warning for what will not sound good."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nightingale.audio.trim import frame_power, sound_span
from nightingale.errors import BadReference
from nightingale.types import Samples

SILENCE_RMS = 1e-3
"""A clip whose loudest frame is under -60 dB of full scale is silent."""
CLIP_LEVEL = 0.999
CLIP_RUN_SAMPLES = 3
"""This many samples in a row at full scale are a cut-off peak; fewer may be honest."""
CLIP_SHARE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceReport:
    """What was found in a clip that was accepted."""

    seconds: float
    sound_seconds: float
    """Length without the quiet ends."""
    clipped_share: float
    """Part of the samples that lie in cut-off peaks, 0 to 1."""
    warnings: tuple[str, ...]


def check_reference(samples: Samples, rate_hz: int, *, longer_than_s: float) -> ReferenceReport:
    """Judge a mono clip for a model family that needs more than `longer_than_s` seconds."""
    seconds = len(samples) / rate_hz
    if seconds <= longer_than_s:
        raise BadReference(
            "the reference clip is too short",
            got=f"{seconds:.2f} s",
            allowed=f"more than {longer_than_s:g} s for this model",
            fix="Record a longer clip; ten seconds of clear speech is best.",
        )
    peak_rms = float(np.sqrt(frame_power(samples).max()))
    # Written so that NaN, too, is refused.
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
    """Part of the samples that lie in runs of three or more at full scale."""
    full = np.abs(samples) >= CLIP_LEVEL
    edges = np.flatnonzero(np.diff(np.concatenate(([False], full, [False])).astype(np.int8)))
    runs = edges[1::2] - edges[::2]
    return float(runs[runs >= CLIP_RUN_SAMPLES].sum()) / max(1, len(samples))
