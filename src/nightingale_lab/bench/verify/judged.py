"""The checks that need judges: words, perceived quality, distortion and speaker.

A judge that is not installed is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from nightingale.errors import ConfigError
from nightingale_lab.bench.judges.client import judges_python
from nightingale_lab.bench.quality import Ask, Clip, ClipQuality, Quality, ask_with
from nightingale_lab.bench.verify.check import Check, WorstClip, missing, worst_of

GROUP = "judges"
check = partial(Check, GROUP)
RECOGNIZERS = ("tiny", "moonshine")
"""Two families that share neither code nor training: Whisper and Moonshine."""
JUDGES = (*RECOGNIZERS, "distillmos", "dnsmos", "speaker")
MOST_WORD_ERRORS = 0.06
NOT_UNDERSTOOD = 0.5
LEAST_DISTILL_MOS, LEAST_DISTILL_MOS_TENTH = 4.0, 3.4
LEAST_DNSMOS, LEAST_DNSMOS_OF_A_CLIP = 3.0, 2.4
LEAST_COSINE, LEAST_COSINE_OF_A_CLIP = 0.85, 0.70
"""Two clips of one speaker have 0.89 to 0.93, of different speakers 0.48 to 0.63."""
REFERENCES = 3
WORST = 10


def find_judges(home: Path | None = None) -> tuple[Ask | None, dict[str, str]]:
    """Return a function that asks the judges, and the missing ones with what to do about each."""
    try:
        python = judges_python(home)
    except ConfigError as error:
        return None, dict.fromkeys(JUDGES, error.fix or "")
    there = python.parent.parent / "share" / "judges"
    absent = {name: "Run `make judges`." for name in JUDGES if not (there / name).is_dir()}
    return ask_with(python), absent


def with_references(clips: Sequence[Clip], references: Sequence[Path] = ()) -> list[Clip]:
    """Return the clips with recordings of the wanted speaker: those given, or other clips of the same run.

    The first three are compared with the next three and all others with the first three, so a voice that
    changes in the middle of a run differs from one of the two.
    """
    if references:
        return [replace(clip, reference=tuple(references)) for clip in clips]
    first = tuple(clip.wav for clip in clips[:REFERENCES])
    second = tuple(clip.wav for clip in clips[REFERENCES : 2 * REFERENCES])

    def others(wav: Path) -> tuple[Path, ...]:
        if wav not in first:
            return first
        return second or tuple(other for other in first if other != wav)

    return [replace(clip, reference=others(clip.wav)) for clip in clips]


def not_understood(quality: Quality) -> list[ClipQuality]:
    """Return the clips of which every recognizer has more than half of the words wrong."""
    return [
        clip
        for clip in quality.clips
        if clip.words and min(result.rate for result in clip.words.values()) > NOT_UNDERSTOOD
    ]


def judged(quality: Quality, absent: Mapping[str, str], *, own_references: bool) -> list[Check]:
    """own_references: the speaker was compared with recordings of the wanted one, not with other clips."""
    checks = []
    for name in RECOGNIZERS:
        rate = quality.wer(name)
        label = f"word error rate, {name}"
        if rate is None:
            checks.append(missing(GROUP, label, absent.get(name, "not asked")))
        else:
            checks.append(check(label, rate, high=MOST_WORD_ERRORS))
    if any(clip.words for clip in quality.clips):
        lost = len(not_understood(quality))
        note = "each recognizer has more than half of the words wrong"
        checks.append(check("clips not understood", float(lost), high=0, detail=note))
    checks += _perceived(quality, absent) + _distortion(quality, absent)
    checks += _speaker(quality, absent, own_references)
    if errors := [clip.error for clip in quality.clips if clip.error]:
        checks.append(check("clips no judge could read", float(len(errors)), high=0, detail=errors[0]))
    return checks


def _perceived(quality: Quality, absent: Mapping[str, str]) -> list[Check]:
    found = quality.distill_mos
    if not found:
        return [missing(GROUP, "Distill-MOS", absent.get("distillmos", "not asked"))]
    return [
        check("Distill-MOS, mean", found["mean"], low=LEAST_DISTILL_MOS),
        check("Distill-MOS, lowest tenth", found["p10"], low=LEAST_DISTILL_MOS_TENTH),
    ]


def _distortion(quality: Quality, absent: Mapping[str, str]) -> list[Check]:
    scores = [clip.dnsmos["ovrl"] for clip in quality.clips if "ovrl" in clip.dnsmos]
    if not scores:
        return [missing(GROUP, "DNSMOS overall", absent.get("dnsmos", "not asked"))]
    return [
        check("DNSMOS overall, mean", sum(scores) / len(scores), low=LEAST_DNSMOS),
        check("DNSMOS overall, worst", min(scores), low=LEAST_DNSMOS_OF_A_CLIP),
    ]


def _speaker(quality: Quality, absent: Mapping[str, str], own_references: bool) -> list[Check]:
    cosines = [clip.cosine for clip in quality.clips if clip.cosine is not None]
    if not cosines:
        return [missing(GROUP, "speaker cosine", absent.get("speaker", "not asked"))]
    to = "to the references" if own_references else "to other clips of the run"
    mean, worst = sum(cosines) / len(cosines), worst_of(cosines, lowest=True)
    return [
        check("speaker cosine, mean", mean, low=LEAST_COSINE, detail=to),
        check("speaker cosine, worst", worst, low=LEAST_COSINE_OF_A_CLIP, detail=to),
    ]


def worst_clips(quality: Quality) -> list[WorstClip]:
    """Return the ten clips with the most wrong words, and their transcripts."""
    return [
        WorstClip(
            wav=str(clip.clip.wav),
            text=clip.clip.text,
            why="transcripts: " + " | ".join(f"{name}: {text}" for name, text in clip.transcripts.items()),
        )
        for clip in quality.worst(WORST)
    ]
