"""What the judges hear: words, distortion, and who is speaking. Who is not installed is named as missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nightingale_lab.bench.judges.client import judges_python, run_judges
from nightingale_lab.bench.quality import Clip, Quality, measure_clip
from nightingale_lab.bench.verify.check import Check, WorstClip, missing, worst_of
from nightingale.errors import ConfigError

GROUP = "listening"
RECOGNIZERS = ("tiny", "moonshine")
"""Two families that share neither code nor training: Whisper and Moonshine."""
JUDGES = (*RECOGNIZERS, "dnsmos", "speaker")
MOST_WORD_ERRORS = 0.06
NOT_UNDERSTOOD = 0.5
LEAST_DNSMOS, LEAST_DNSMOS_OF_A_CLIP = 3.0, 2.4
LEAST_COSINE, LEAST_COSINE_OF_A_CLIP = 0.85, 0.70
"""Clips of one speaker have 0.89 to 0.93 to one another, of two 0.48 to 0.63."""
GROUP_OF_REFERENCES = 3
WORST = 10

Ask = Callable[[Sequence[Mapping[str, Any]], Sequence[str]], Iterable[dict[str, Any]]]
"""Jobs and names of judges to scores, as nightingale_lab.bench.judges.worker describes them."""


def find_judges(home: Path | None = None) -> tuple[Ask | None, dict[str, str]]:
    """How to ask them, and who is missing, with the remedy."""
    try:
        python = judges_python(home)
    except ConfigError as error:
        return None, dict.fromkeys(JUDGES, error.fix)
    there = python.parent.parent / "share" / "judges"
    absent = {name: "Run `make judges`." for name in JUDGES if not (there / name).is_dir()}
    return partial(_ask, python), absent


def _ask(python: Path, jobs: Sequence[Mapping[str, Any]], only: Sequence[str]) -> Iterable[dict[str, Any]]:
    return run_judges(jobs, only=only, python=python)


def with_references(clips: Sequence[Clip], references: Sequence[Path] = ()) -> list[Clip]:
    """Clips with recordings of who should speak: those given, or else other clips of the same run.

    The first three are held against the next three and all others against the first three, so a voice that
    changes in the middle differs from one of the two.
    """
    if references:
        return [Clip(wav=clip.wav, text=clip.text, reference=tuple(references)) for clip in clips]
    first = tuple(clip.wav for clip in clips[:GROUP_OF_REFERENCES])
    second = tuple(clip.wav for clip in clips[GROUP_OF_REFERENCES : 2 * GROUP_OF_REFERENCES])

    def beside(wav: Path) -> tuple[Path, ...]:
        if wav not in first:
            return first
        return second or tuple(other for other in first if other != wav)

    return [Clip(wav=clip.wav, text=clip.text, reference=beside(clip.wav)) for clip in clips]


def judge(
    clips: Sequence[Clip],
    ask: Ask,
    names: Sequence[str],
    on_clip: Callable[[int, int], object] = lambda *_: None,
) -> Quality:
    jobs = [
        {"wav": str(clip.wav), "text": clip.text, "reference": [str(path) for path in clip.reference]}
        for clip in clips
    ]
    scores: dict[str, dict[str, Any]] = {}
    for answer in ask(jobs, names) if names else ():
        scores[answer["wav"]] = answer
        on_clip(len(scores), len(jobs))
    return Quality(clips=tuple(measure_clip(clip, scores.get(str(clip.wav), {})) for clip in clips))


def listening(quality: Quality, absent: Mapping[str, str], *, own_references: bool) -> list[Check]:
    """own_references: the speaker was compared with recordings of the wanted one, not with itself."""
    checks = []
    for name in RECOGNIZERS:
        rate = quality.wer(name)
        label = f"word error rate, {name}"
        if rate is None:
            checks.append(missing(GROUP, label, absent.get(name, "not asked")))
        else:
            checks.append(Check(group=GROUP, name=label, value=rate, high=MOST_WORD_ERRORS))
    asked = [clip for clip in quality.clips if clip.words]
    if asked:
        lost = sum(min(said.rate for said in clip.words.values()) > NOT_UNDERSTOOD for clip in asked)
        checks.append(
            Check(
                group=GROUP,
                name="clips nobody understood",
                value=float(lost),
                high=0,
                detail="each recognizer has more than half of the words wrong",
            )
        )
    checks += _distortion(quality, absent) + _speaker(quality, absent, own_references)
    errors = [clip for clip in quality.clips if clip.error]
    if errors:
        checks.append(
            Check(
                group=GROUP,
                name="clips no judge could read",
                value=float(len(errors)),
                high=0,
                detail=str(errors[0].error),
            )
        )
    return checks


def _distortion(quality: Quality, absent: Mapping[str, str]) -> list[Check]:
    scores = [clip.dnsmos["ovrl"] for clip in quality.clips if "ovrl" in clip.dnsmos]
    if not scores:
        return [missing(GROUP, "DNSMOS overall", absent.get("dnsmos", "not asked"))]
    return [
        Check(group=GROUP, name="DNSMOS overall, mean", value=sum(scores) / len(scores), low=LEAST_DNSMOS),
        Check(group=GROUP, name="DNSMOS overall, worst", value=min(scores), low=LEAST_DNSMOS_OF_A_CLIP),
    ]


def _speaker(quality: Quality, absent: Mapping[str, str], own_references: bool) -> list[Check]:
    cosines = [clip.cosine for clip in quality.clips if clip.cosine is not None]
    if not cosines:
        return [missing(GROUP, "speaker cosine", absent.get("speaker", "not asked"))]
    to = "to the references" if own_references else "to other clips of the run"
    return [
        Check(
            group=GROUP,
            name="speaker cosine, mean",
            value=sum(cosines) / len(cosines),
            low=LEAST_COSINE,
            detail=to,
        ),
        Check(
            group=GROUP,
            name="speaker cosine, worst",
            value=worst_of(cosines, lowest=True),
            low=LEAST_COSINE_OF_A_CLIP,
            detail=to,
        ),
    ]


def worst_clips(quality: Quality) -> list[WorstClip]:
    """Ten clips that were understood worst, with what was heard."""
    return [
        WorstClip(
            wav=str(clip.clip.wav),
            text=clip.clip.text,
            why="heard: " + " | ".join(f"{name}: {said}" for name, said in clip.heard.items()),
        )
        for clip in quality.worst(WORST)
    ]
