"""Compare a profile with another, clip by clip, with the same texts and seeds.

A mean may get worse by its gate (the gates of a large set) or by two standard errors of the paired
differences, whichever is more. Single failures have no such allowance: no additional clip may be defective or
not understood.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from nightingale_lab.bench.quality import ClipQuality, Quality
from nightingale_lab.bench.verify.check import Check, missing
from nightingale_lab.bench.verify.judged import RECOGNIZERS, not_understood
from nightingale_lab.bench.verify.seam_checks import BANDS
from nightingale_lab.bench.verify.spectrum import frames_power
from nightingale_lab.bench.verify.subject import RecordedUtterance

GROUP = "against"
check = partial(Check, GROUP)
WER_GATE = 0.0015
DNSMOS_GATE = 0.05
DISTILL_MOS_GATE = 0.05
COSINE_LEAST = 0.90
TOKENS = 2.0
"""Bound of the mean difference of token counts; a token is 40 ms."""
SPECTRUM_DB = 1.0
"""Mean difference of two long-term average spectra. Twelve sentences of wren differ by 0.08 dB from their float32
version, by 0.14 from other seeds, by 2.2 from another voice, and by 5.9 from a mean of two samples."""
DURATION = (0.95, 1.05)
DURATION_OF_A_CLIP = (0.7, 1.4)
PITCH = (0.97, 1.03)


def same_length_and_spectrum(
    now: Sequence[RecordedUtterance], then: Sequence[RecordedUtterance]
) -> list[Check]:
    """Compare numbers of tokens and long-term average spectra; these need no judge.

    One token that differs changes all that follow, so single clips may have other lengths. Their mean may not.
    """
    more = [a.tokens - b.tokens for a, b in zip(now, then, strict=True)]
    same = sum(not difference for difference in more)
    note = f"{same} of {len(more)} clips have the same number, the farthest {max(more, key=abs):+d}"
    apart = np.abs(average_spectrum_db(now) - average_spectrum_db(then)).mean()
    return [
        check("tokens, mean difference", float(np.mean(more)), low=-TOKENS, high=TOKENS, detail=note),
        check("spectrum, mean difference", float(apart), high=SPECTRUM_DB, unit="dB"),
    ]


def average_spectrum_db(clips: Sequence[RecordedUtterance]) -> NDArray[np.float64]:
    """Return the level of 40 bands up to 12 kHz, the mean of all clips; 0 dB is their sum."""
    power = np.concatenate([frames_power(np.nan_to_num(clip.samples)) for clip in clips]).mean(axis=0)
    bands = np.array([part.mean() for part in np.array_split(power, BANDS)])
    return np.asarray(10 * np.log10(bands / max(1e-12, float(bands.sum())) + 1e-9))


def against(now: Quality, then: Quality, cosines: Sequence[float], why_no_cosine: str = "") -> list[Check]:
    """now, then: the same texts in the same order. cosines: of each clip to the same clip of `then`."""
    pairs = list(zip(now.clips, then.clips, strict=True))
    lengths = np.array([a.shape.seconds / max(1e-9, b.shape.seconds) for a, b in pairs])
    farthest = float(lengths[np.abs(np.log(np.maximum(lengths, 1e-9))).argmax()])
    checks = [
        _between("duration, mean ratio", float(lengths.mean()), DURATION),
        _between("duration, farthest clip", farthest, DURATION_OF_A_CLIP),
        _between("pitch, median ratio", _pitch_ratio(pairs), PITCH),
        _more("more clips with a defect", len(now.defective), len(then.defective)),
        _more("more clips not understood", len(not_understood(now)), len(not_understood(then))),
    ]
    for name in RECOGNIZERS:
        worse = [
            a.words[name].rate - b.words[name].rate for a, b in pairs if name in a.words and name in b.words
        ]
        checks.append(_moved(f"word error rate, {name}: rise", worse, WER_GATE))
    fall = [
        b.dnsmos["ovrl"] - a.dnsmos["ovrl"] for a, b in pairs if "ovrl" in a.dnsmos and "ovrl" in b.dnsmos
    ]
    checks.append(_moved("DNSMOS overall: fall", fall, DNSMOS_GATE))
    fall = [
        b.distill_mos - a.distill_mos
        for a, b in pairs
        if a.distill_mos is not None and b.distill_mos is not None
    ]
    checks.append(_moved("Distill-MOS: fall", fall, DISTILL_MOS_GATE))
    name = "speaker cosine to the same clip"
    if cosines:
        checks.append(check(name, float(np.mean(cosines)), low=COSINE_LEAST))
    else:
        checks.append(missing(GROUP, name, why_no_cosine))
    return checks


def _between(name: str, value: float, bounds: tuple[float, float]) -> Check:
    return check(name, value, low=bounds[0], high=bounds[1])


def _more(name: str, now: int, then: int) -> Check:
    return check(name, float(now - then), high=0, detail=f"{now} against {then}")


def _pitch_ratio(pairs: Sequence[tuple[ClipQuality, ClipQuality]]) -> float:
    both = [(a.pitch.median_hz, b.pitch.median_hz) for a, b in pairs]
    voiced = [a / b for a, b in both if a and b]
    return float(np.median(voiced)) if voiced else float("nan")


def _moved(name: str, differences: Sequence[float], gate: float) -> Check:
    """Check how much a mean got worse, against its gate or the noise."""
    if not differences:
        return missing(GROUP, name, "no judge, or it did not answer")
    noise = 2 * float(np.std(differences, ddof=1)) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    note = f"gate {gate:g}, noise of {len(differences)} clips {noise:.4f}"
    return check(name, float(np.mean(differences)), high=max(gate, noise), detail=note)
