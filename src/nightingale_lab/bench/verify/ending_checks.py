"""Check that each utterance ends where its text ends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nightingale_lab.bench.endings import defects, shape_of
from nightingale_lab.bench.verify.check import Check, WorstClip
from nightingale_lab.bench.verify.subject import RecordedUtterance
from nightingale_lab.bench.wer import Comparison

check = partial(Check, "endings")
KINDS = ("silent", "runaway", "cut-off", "abrupt end", "long pause", "long trail")


def endings(
    clips: Sequence[RecordedUtterance], wavs: Sequence[str], words: Sequence[Sequence[Comparison]] = ()
) -> tuple[list[Check], list[WorstClip]]:
    """words: the recognizers' results for each clip, if there are any; they reveal a lost last word."""
    found = [
        defects(shape_of(clip.samples, clip.rate_hz, clip.text), words[i] if words else ())
        for i, clip in enumerate(clips)
    ]
    total = f"of {len(clips)} clips"
    checks = [
        check(kind, float(sum(kind in names for names in found)), high=0, detail=total) for kind in KINDS
    ]
    worst = [
        WorstClip(wav=wav, text=clip.text, why=", ".join(names))
        for clip, wav, names in zip(clips, wavs, found, strict=True)
        if names
    ]
    return checks, worst
