"""The whole checklist, in order. Nothing is printed here: progress goes through a callback."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from nightingale_lab.bench.quality import Clip, Quality
from nightingale_lab.bench.verify.against import against
from nightingale_lab.bench.verify.check import Check, Report, WorstClip, missing
from nightingale_lab.bench.verify.determinism import counts, determinism
from nightingale_lab.bench.verify.ends import endings
from nightingale_lab.bench.verify.languages import languages
from nightingale_lab.bench.verify.listening import Ask, judge, listening, with_references, worst_clips
from nightingale_lab.bench.verify.seams import seams, stream_is_whole
from nightingale_lab.bench.verify.spectrum import spectrum
from nightingale_lab.bench.verify.subject import Spoken, Subject
from nightingale.audio.encoders.wav import wav_bytes
from nightingale.files import write_whole

FIRST_SEED = 100
BOTH_WAYS = 3
"""Sentences that are rendered in blocks and whole."""
WORST = 10

Progress = Callable[[str, int, int], object]
"""What is being done, how far, of how much."""


def sentences(count: int) -> list[str]:
    """Ordinary English sentences, spread over a held-out list."""
    held = (files("nightingale_lab.bench") / "texts" / "wren_200.txt").read_text(encoding="utf-8")
    lines = [line.strip() for line in held.splitlines() if line.strip()]
    count = max(1, min(count, len(lines)))
    return [lines[i * len(lines) // count] for i in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The judges: how to ask them, whom to ask, and who is missing and why."""

    ask: Ask | None = None
    absent: Mapping[str, str]
    names: Sequence[str] = ()
    references: Sequence[Path] = ()
    """Recordings of the wanted speaker."""


def verify(
    subject: Subject,
    texts: Sequence[str],
    folder: Path,
    *,
    panel: Panel,
    other: Subject | None = None,
    progress: Progress = lambda *_: None,
) -> Report:
    """Everything. Recordings stay in `folder`; `other` is the profile to be held against."""
    progress("determinism", 0, 1)
    checks = determinism(subject, texts[0])
    clips, wavs = speak(subject, texts, folder / subject.profile, progress)
    checks += [check for check in counts(clips) if check.verdict == "fail"]
    checks += spectrum(clips) + seams(clips)
    progress("streaming against whole", 0, 1)
    checks += stream_is_whole(subject, texts[:BOTH_WAYS])
    quality = heard(texts, wavs, panel, progress)
    words = [list(clip.words.values()) for clip in quality.clips]
    ended, bad_ends = endings(clips, [str(wav) for wav in wavs], words)
    checks += listening(quality, panel.absent, own_references=bool(panel.references)) + ended
    progress("languages", 0, 1)
    checks += languages(subject)
    facts = {**quality.summary(), "wavs": [str(wav) for wav in wavs], "texts": list(texts)}
    if other is not None:
        held, reference = compared(quality, other, texts, folder, panel, progress)
        checks += held
        facts["against"] = reference.summary() if reference else None
    return Report(
        model=subject.name,
        profile=subject.profile,
        against=other.profile if other else None,
        checks=tuple(checks),
        worst=tuple(merged([*bad_ends, *worst_clips(quality)])[:WORST]),
        facts=facts,
    )


def speak(
    subject: Subject, texts: Sequence[str], folder: Path, progress: Progress
) -> tuple[list[Spoken], list[Path]]:
    """One recording per text, `000.wav` onwards."""
    folder.mkdir(parents=True, exist_ok=True)
    clips, wavs = [], []
    for number, text in enumerate(texts):
        progress(f"speaking, {subject.profile}", number, len(texts))
        clip = subject.say(text, seed=FIRST_SEED + number)
        path = folder / f"{number:03d}.wav"
        write_whole(path, wav_bytes(clip.samples, clip.rate_hz))
        clips.append(clip)
        wavs.append(path)
    return clips, wavs


def heard(texts: Sequence[str], wavs: Sequence[Path], panel: Panel, progress: Progress) -> Quality:
    clips = [Clip(wav=wav, text=text) for wav, text in zip(wavs, texts, strict=True)]
    clips = with_references(clips, panel.references)
    ask, names = (panel.ask, panel.names) if panel.ask else (lambda *_: (), ())
    return judge(clips, ask, names, lambda done, of: progress("judging", done, of))


def compared(
    quality: Quality, other: Subject, texts: Sequence[str], folder: Path, panel: Panel, progress: Progress
) -> tuple[list[Check], Quality | None]:
    """The checks against another profile, and what that one was like."""
    if other.profile == quality.clips[0].clip.wav.parent.name:
        return [missing("against", other.profile, "it is the profile that was verified")], None
    _, wavs = speak(other, texts, folder / other.profile, progress)
    reference = heard(texts, wavs, panel, progress)
    cosines: list[float] = []
    if panel.ask and "speaker" in panel.names:
        paired = [
            Clip(wav=clip.clip.wav, text=clip.clip.text, reference=(wav,))
            for clip, wav in zip(quality.clips, wavs, strict=True)
        ]
        beside = judge(paired, panel.ask, ("speaker",))
        cosines = [clip.cosine for clip in beside.clips if clip.cosine is not None]
    return against(quality, reference, cosines, panel.absent.get("speaker", "not asked")), reference


def merged(clips: Sequence[WorstClip]) -> list[WorstClip]:
    """Each file once, with all that is wrong with it."""
    found: dict[str, WorstClip] = {}
    for clip in clips:
        before = found.get(clip.wav)
        why = f"{before.why}; {clip.why}" if before else clip.why
        found[clip.wav] = WorstClip(wav=clip.wav, text=clip.text, why=why)
    return list(found.values())
