"""One profile held against another, clip by clip, with the same texts and seeds.

Nothing may get worse by more than the noise of so few clips explains: a mean may move by its gate (the gates
of a large set) or by two standard errors of the paired differences, whichever is more. Single failures have
no such allowance: not one more clip may be defective or not understood.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nightingale_lab.bench.quality import ClipQuality, Quality
from nightingale_lab.bench.verify.check import Check, missing
from nightingale_lab.bench.verify.listening import NOT_UNDERSTOOD, RECOGNIZERS

GROUP = "against"
WER_GATE = 0.0015
DNSMOS_GATE = 0.05
COSINE_LEAST = 0.90
DURATION = (0.95, 1.05)
DURATION_OF_A_CLIP = (0.7, 1.4)
PITCH = (0.97, 1.03)


def against(now: Quality, then: Quality, cosines: Sequence[float], why_no_cosine: str = "") -> list[Check]:
    """now, then: the same texts in the same order. cosines: of each clip to the same one of `then`."""
    pairs = list(zip(now.clips, then.clips, strict=True))
    lengths = np.array([a.shape.seconds / max(1e-9, b.shape.seconds) for a, b in pairs])
    farthest = float(lengths[np.abs(np.log(np.maximum(lengths, 1e-9))).argmax()])
    low, high = DURATION
    checks = [
        Check(group=GROUP, name="duration, mean ratio", value=float(lengths.mean()), low=low, high=high),
        Check(
            group=GROUP,
            name="duration, farthest clip",
            value=farthest,
            low=DURATION_OF_A_CLIP[0],
            high=DURATION_OF_A_CLIP[1],
        ),
        _pitch(pairs),
        Check(
            group=GROUP,
            name="more clips with a defect",
            value=float(len(now.defective) - len(then.defective)),
            high=0,
            detail=f"{len(now.defective)} against {len(then.defective)}",
        ),
        Check(
            group=GROUP,
            name="more clips nobody understood",
            value=float(_lost(now) - _lost(then)),
            high=0,
            detail=f"{_lost(now)} against {_lost(then)}",
        ),
    ]
    for name in RECOGNIZERS:
        worse = [
            a.words[name].rate - b.words[name].rate for a, b in pairs if name in a.words and name in b.words
        ]
        checks.append(_moved(f"word error rate, {name}: rise", worse, WER_GATE))
    sink = [
        b.dnsmos["ovrl"] - a.dnsmos["ovrl"] for a, b in pairs if "ovrl" in a.dnsmos and "ovrl" in b.dnsmos
    ]
    checks.append(_moved("DNSMOS overall: fall", sink, DNSMOS_GATE))
    name = "speaker cosine to the same clip"
    if cosines:
        checks.append(Check(group=GROUP, name=name, value=float(np.mean(cosines)), low=COSINE_LEAST))
    else:
        checks.append(missing(GROUP, name, why_no_cosine))
    return checks


def _pitch(pairs: Sequence[tuple[ClipQuality, ClipQuality]]) -> Check:
    voiced = [
        (a.pitch.median_hz, b.pitch.median_hz) for a, b in pairs if a.pitch.median_hz and b.pitch.median_hz
    ]
    if not voiced:
        return Check(group=GROUP, name="pitch, median ratio", value=float("nan"), low=PITCH[0], high=PITCH[1])
    ratio = float(np.median([a / b for a, b in voiced]))
    return Check(group=GROUP, name="pitch, median ratio", value=ratio, low=PITCH[0], high=PITCH[1])


def _lost(quality: Quality) -> int:
    return sum(
        min(said.rate for said in clip.words.values()) > NOT_UNDERSTOOD
        for clip in quality.clips
        if clip.words
    )


def _moved(name: str, differences: Sequence[float], gate: float) -> Check:
    """How much a mean moved for the worse, against its gate or the noise."""
    if not differences:
        return missing(GROUP, name, "no judge, or it did not answer")
    noise = 2 * float(np.std(differences, ddof=1)) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return Check(
        group=GROUP,
        name=name,
        value=float(np.mean(differences)),
        high=max(gate, noise),
        detail=f"gate {gate:g}, noise of {len(differences)} clips {noise:.4f}",
    )
