"""The quality of a set of clips: words, perceived quality, distortion, speaker, endings and pitch.

All but endings and pitch need the judges' environment.
A judge that was not asked leaves `None`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nightingale.errors import ConfigError
from nightingale_lab.bench.endings import Shape, defects, shape_of
from nightingale_lab.bench.judges.client import run_judges
from nightingale_lab.bench.pitch import Pitch, pitch_of
from nightingale_lab.bench.wer import Comparison, compare, corpus_rate

RECOGNIZERS = ("tiny", "base", "moonshine")
DNSMOS_PARTS = ("ovrl", "sig", "bak", "p808")

Ask = Callable[[Sequence[Mapping[str, Any]], Sequence[str]], Iterable[dict[str, Any]]]
"""Takes jobs and names of judges, and yields scores as nightingale_lab.bench.judges.worker describes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A recording, its text and, if there are any, recordings of the wanted speaker."""

    wav: Path
    text: str
    reference: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipQuality:
    clip: Clip
    shape: Shape
    pitch: Pitch
    transcripts: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Comparison] = field(default_factory=dict)
    dnsmos: Mapping[str, float] = field(default_factory=dict)
    distill_mos: float | None = None
    cosine: float | None = None
    defects: tuple[str, ...] = ()
    error: str | None = None

    @property
    def worst_rate(self) -> float:
        return max((result.rate for result in self.words.values()), default=0.0)

    def row(self) -> dict[str, Any]:
        """Return the clip as plain data for a results file."""
        return {**asdict(self), "clip": {"wav": str(self.clip.wav), "text": self.clip.text}}

    def report(self) -> dict[str, Any]:
        """Return what a person needs to judge the clip."""
        return {
            "wav": self.clip.wav.name,
            "text": self.clip.text,
            "defects": self.defects,
            "transcripts": dict(self.transcripts),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The quality of a set."""

    clips: tuple[ClipQuality, ...]

    def wer(self, recognizer: str) -> float | None:
        results = [clip.words[recognizer] for clip in self.clips if recognizer in clip.words]
        return corpus_rate(results) if results else None

    def mos(self, part: str = "ovrl") -> float | None:
        return _mean([clip.dnsmos[part] for clip in self.clips if part in clip.dnsmos])

    @property
    def distill_mos(self) -> dict[str, float]:
        """The mean and the 10th percentile by Distill-MOS; empty if it was not asked."""
        return spread(clip.distill_mos for clip in self.clips if clip.distill_mos is not None)

    @property
    def cosine(self) -> float | None:
        return _mean([clip.cosine for clip in self.clips if clip.cosine is not None])

    @property
    def defective(self) -> tuple[ClipQuality, ...]:
        return tuple(clip for clip in self.clips if clip.defects or clip.error)

    def worst(self, count: int = 10) -> tuple[ClipQuality, ...]:
        """Return the clips with the most wrong words."""
        ranked = sorted(self.clips, key=lambda clip: (-clip.worst_rate, str(clip.clip.wav)))
        return tuple(clip for clip in ranked[:count] if clip.worst_rate > 0)

    def summary(self) -> dict[str, Any]:
        """Return everything that fits in one line of JSON."""
        return {
            "clips": len(self.clips),
            "audio_seconds": round(sum(clip.shape.seconds for clip in self.clips), 1),
            "wer": {name: rate for name in RECOGNIZERS if (rate := self.wer(name)) is not None},
            "dnsmos": {part: mos for part in DNSMOS_PARTS if (mos := self.mos(part)) is not None},
            "distill_mos": self.distill_mos,
            "cosine": self.cosine,
            "defects": dict(Counter(name for clip in self.clips for name in clip.defects)),
            "errors": sum(clip.error is not None for clip in self.clips),
            "rate": _mean([clip.shape.speech_seconds / clip.shape.expected_seconds for clip in self.clips]),
            "pitch_hz": _mean([clip.pitch.median_hz for clip in self.clips if clip.pitch.median_hz]),
            "pitch_spread": _mean([clip.pitch.spread_semitones for clip in self.clips]),
            "worst": [clip.report() for clip in self.worst()],
        }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def spread(scores: Iterable[float]) -> dict[str, float]:
    """Return the mean and the 10th percentile (`p10`) of scores, or nothing if there are none."""
    found = list(scores)
    return {"mean": float(np.mean(found)), "p10": float(np.percentile(found, 10))} if found else {}


def clips_in(folder: Path, texts: Path, reference: Sequence[Path] = ()) -> list[Clip]:
    """Pair the folder's *.wav in name order with the lines of `texts`.

    Raises:
        ConfigError: their numbers differ, or there are none.
    """
    wavs = sorted(folder.glob("*.wav"))
    lines = [line.strip() for line in texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    if len(wavs) != len(lines) or not wavs:
        raise ConfigError(
            "recordings and texts do not match",
            got=f"{len(wavs)} wav files in {folder}, {len(lines)} lines in {texts}",
            allowed="one line of text for each wav file, in the order of the file names",
            fix="Name the files 000.wav, 001.wav, … and keep other recordings elsewhere.",
        )
    pairs = zip(wavs, lines, strict=True)
    return [Clip(wav=wav, text=text, reference=tuple(reference)) for wav, text in pairs]


def measure_clip(clip: Clip, scores: Mapping[str, Any]) -> ClipQuality:
    """Measure one clip. scores: what the judges answered, or nothing."""
    import soundfile  # imported late, so that importing this module is cheap

    samples, rate_hz = soundfile.read(clip.wav, dtype="float32", always_2d=True)
    mono = samples.mean(axis=1)
    transcripts = {name: str(scores[name]["transcript"]) for name in RECOGNIZERS if name in scores}
    words = {name: compare(clip.text, transcript) for name, transcript in transcripts.items()}
    shape = shape_of(mono, rate_hz, clip.text)
    return ClipQuality(
        clip=clip,
        shape=shape,
        pitch=pitch_of(mono, rate_hz),
        transcripts=transcripts,
        words=words,
        dnsmos=scores.get("dnsmos", {}),
        distill_mos=scores.get("distillmos", {}).get("mos"),
        cosine=scores.get("speaker", {}).get("cosine"),
        defects=defects(shape, tuple(words.values())),
        error=scores.get("error"),
    )


def measure(
    clips: Sequence[Clip],
    ask: Ask | None = None,
    judges: Sequence[str] = (),
    on_clip: Callable[[int, int], object] = lambda *_: None,
) -> Quality:
    """Measure a set. Without judges, only endings and pitch."""
    jobs = [
        {"wav": str(clip.wav), "text": clip.text, "reference": [str(path) for path in clip.reference]}
        for clip in clips
    ]
    scores: dict[str, dict[str, Any]] = {}
    for answer in ask(jobs, judges) if ask and judges else ():
        scores[answer["wav"]] = answer
        on_clip(len(scores), len(jobs))
    return Quality(clips=tuple(measure_clip(clip, scores.get(str(clip.wav), {})) for clip in clips))


def ask_with(python: Path, workers: int = 1) -> Ask:
    """Return a function that asks the judges of the environment of this Python."""

    def ask(jobs: Sequence[Mapping[str, Any]], judges: Sequence[str]) -> Iterable[dict[str, Any]]:
        return run_judges(jobs, only=judges, python=python, workers=workers)

    return ask
