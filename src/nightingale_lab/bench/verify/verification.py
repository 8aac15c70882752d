"""Run all checks of `nightingale verify` in order. Progress is reported through a callback."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nightingale.audio.samples import wav_bytes
from nightingale.files import write_whole
from nightingale_lab.bench.quality import Ask, Clip, Quality, measure
from nightingale_lab.bench.sentences import sentences as all_sentences
from nightingale_lab.bench.verify.against import against, same_length_and_spectrum
from nightingale_lab.bench.verify.baseline import baseline_checks
from nightingale_lab.bench.verify.check import Check, VerifyReport, WorstClip, missing
from nightingale_lab.bench.verify.determinism import counts, determinism
from nightingale_lab.bench.verify.ending_checks import endings
from nightingale_lab.bench.verify.judged import judged, with_references, worst_clips
from nightingale_lab.bench.verify.languages import languages
from nightingale_lab.bench.verify.seam_checks import seams, stream_is_whole
from nightingale_lab.bench.verify.spectrum import spectrum
from nightingale_lab.bench.verify.subject import RecordedUtterance, Subject

FIRST_SEED = 100
RENDERED_TWICE = 3
"""Sentences that are rendered in blocks and in one piece."""
WORST = 10
BASELINES = "baselines.jsonl"
"""File of the baselines of this machine, in the folder of the recordings."""

Progress = Callable[[str, int, int], object]
"""Takes the name of the step, and how many of how many are done."""


def sentences(count: int) -> list[str]:
    """Return that many English sentences, spread over a list that no model was trained on."""
    lines = all_sentences("wren_200")
    count = max(1, min(count, len(lines)))
    return [lines[i * len(lines) // count] for i in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The judges: how to ask them, which of them to ask, and which are missing and why."""

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
    accept: bool = False,
    progress: Progress = lambda *_: None,
) -> VerifyReport:
    """Run everything. Recordings and baselines stay in `folder`; `other` is the profile to compare with.

    accept: store this run's baseline instead of comparing it with the stored one.
    """
    progress("baseline and determinism", 0, 1)
    checks = baseline_checks(subject.baseline(), folder / BASELINES, accept=accept)
    checks += determinism(subject, texts[0])
    clips, wavs = record(subject, texts, folder / subject.profile, progress)
    checks += [check for check in counts(clips) if check.verdict == "fail"]
    checks += spectrum(clips) + seams(clips)
    progress("streaming against whole", 0, 1)
    checks += stream_is_whole(subject, texts[:RENDERED_TWICE])
    quality = quality_of(texts, wavs, panel, progress)
    words = [list(clip.words.values()) for clip in quality.clips]
    ended, bad_ends = endings(clips, [str(wav) for wav in wavs], words)
    checks += judged(quality, panel.absent, own_references=bool(panel.references)) + ended
    progress("languages", 0, 1)
    checks += languages(subject)
    facts = {**quality.summary(), "wavs": [str(wav) for wav in wavs], "texts": list(texts)}
    if other is not None:
        compared, reference = compare(clips, quality, other, folder, panel, progress)
        checks += compared
        facts["against"] = reference.summary() if reference else None
    return VerifyReport(
        model=subject.name,
        profile=subject.profile,
        against=other.profile if other else None,
        checks=tuple(checks),
        worst=tuple(merged([*bad_ends, *worst_clips(quality)])[:WORST]),
        facts=facts,
    )


def record(
    subject: Subject, texts: Sequence[str], folder: Path, progress: Progress
) -> tuple[list[RecordedUtterance], list[Path]]:
    """Synthesize one recording per text, `000.wav` onwards."""
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


def quality_of(texts: Sequence[str], wavs: Sequence[Path], panel: Panel, progress: Progress) -> Quality:
    clips = [Clip(wav=wav, text=text) for wav, text in zip(wavs, texts, strict=True)]
    clips = with_references(clips, panel.references)
    return measure(clips, panel.ask, panel.names, lambda done, of: progress("judging", done, of))


def compare(
    clips: Sequence[RecordedUtterance],
    quality: Quality,
    other: Subject,
    folder: Path,
    panel: Panel,
    progress: Progress,
) -> tuple[list[Check], Quality | None]:
    """Return the checks against another profile, and the quality of that one."""
    if other.profile == quality.clips[0].clip.wav.parent.name:
        return [missing("against", other.profile, "it is the profile that was verified")], None
    texts = [clip.text for clip in clips]
    references, wavs = record(other, texts, folder / other.profile, progress)
    reference = quality_of(texts, wavs, panel, progress)
    cosines: list[float] = []
    if panel.ask and "speaker" in panel.names:
        paired = [
            Clip(wav=clip.clip.wav, text=clip.clip.text, reference=(wav,))
            for clip, wav in zip(quality.clips, wavs, strict=True)
        ]
        compared = measure(paired, panel.ask, ("speaker",))
        cosines = [clip.cosine for clip in compared.clips if clip.cosine is not None]
    checks = same_length_and_spectrum(clips, references)
    checks += against(quality, reference, cosines, panel.absent.get("speaker", "not asked"))
    return checks, reference


def merged(clips: Sequence[WorstClip]) -> list[WorstClip]:
    """Return each file once, with all its reasons."""
    found: dict[str, WorstClip] = {}
    for clip in clips:
        before = found.get(clip.wav)
        why = f"{before.why}; {clip.why}" if before else clip.why
        found[clip.wav] = WorstClip(wav=clip.wav, text=clip.text, why=why)
    return list(found.values())
