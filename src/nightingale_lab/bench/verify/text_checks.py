"""Check texts in which more than the sound can go wrong: several sentences, and numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from nightingale_lab.bench.endings import FRAME_SECONDS, SPEECH_DB, levels_db
from nightingale_lab.bench.quality import Quality
from nightingale_lab.bench.verify.check import Check, missing
from nightingale_lab.bench.verify.subject import RecordedUtterance, Subject
from nightingale_lab.bench.verify.voice_reference import NUMBERS
from nightingale_lab.bench.wer import normalizer

GROUP = "texts"
check = partial(Check, GROUP)
SEED = 41
PARAGRAPH = (
    "The train was late again.",
    "We waited on the cold platform for an hour.",
    "A boy sold us two cups of hot tea.",
    "Then the lights of the engine came around the hill.",
)
SHARE = (0.86, 1.14)
"""Bounds of the speech of the paragraph, relative to that of its sentences one by one; each is a fifth or more."""


def spoken_seconds(clip: RecordedUtterance) -> float:
    """Return the seconds of speech, without pauses."""
    return FRAME_SECONDS * int((levels_db(clip.samples, clip.rate_hz) > SPEECH_DB).sum())


def paragraph(subject: Subject) -> list[Check]:
    """Check that a text of several sentences is as long as its sentences are one by one."""
    together = spoken_seconds(subject.say(" ".join(PARAGRAPH), seed=SEED))
    alone = [spoken_seconds(subject.say(text, seed=SEED + i)) for i, text in enumerate(PARAGRAPH, 1)]
    value = together / sum(alone) if sum(alone) else float("nan")
    note = f"{together:.1f} s, one by one {sum(alone):.1f} s"
    return [check("four sentences, ratio to one by one", value, low=SHARE[0], high=SHARE[1], detail=note)]


def numbers(quality: Quality | None, absent: Mapping[str, str]) -> list[Check]:
    """Check that each number of NUMBERS is in one transcript at least. quality: of one recording of it."""
    name = "numbers in no transcript"
    transcripts = list(quality.clips[0].transcripts.values()) if quality else []
    if not transcripts:
        return [missing(GROUP, name, next(iter(absent.values()), "not asked"))]
    found = set().union(*map(_numbers, transcripts))
    lost = sorted(_numbers(NUMBERS) - found)
    return [check(name, float(len(lost)), high=0, detail=", ".join(lost) or "; ".join(transcripts))]


def _numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+", normalizer("en")(text)))
