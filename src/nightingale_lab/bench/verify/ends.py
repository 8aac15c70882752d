"""Does each utterance end where its text ends?"""

from __future__ import annotations

from collections.abc import Sequence

from nightingale_lab.bench.endings import defects, shape_of
from nightingale_lab.bench.verify.check import Check, WorstClip
from nightingale_lab.bench.verify.subject import Spoken
from nightingale_lab.bench.wer import Comparison

GROUP = "endings"
KINDS = ("silent", "runaway", "cut-off", "abrupt end", "long pause", "long trail")


def endings(
    clips: Sequence[Spoken], wavs: Sequence[str], heard: Sequence[Sequence[Comparison]] = ()
) -> tuple[list[Check], list[WorstClip]]:
    """heard: what each recognizer made of each clip, where they were asked; they find a cut word."""
    found = [
        defects(shape_of(clip.samples, clip.rate_hz, clip.text), heard[i] if heard else ())
        for i, clip in enumerate(clips)
    ]
    checks = [
        Check(
            group=GROUP,
            name=kind,
            value=float(sum(kind in names for names in found)),
            high=0,
            detail=f"of {len(clips)} clips",
        )
        for kind in KINDS
    ]
    worst = [
        WorstClip(wav=wav, text=clip.text, why=", ".join(names))
        for clip, wav, names in zip(clips, wavs, found, strict=True)
        if names
    ]
    return checks, worst
