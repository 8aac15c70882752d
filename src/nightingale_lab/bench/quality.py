"""How good speech is, as a value: words, distortion, speaker, endings and pitch of a set of clips.

Words, distortion and speaker need the judges' environment; endings and pitch are measured here. A judge
that was not asked leaves `None`, never a made-up number. RenderStream is `quality_table`'s and `cli`'s work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nightingale_lab.bench.endings import Shape, defects, shape_of
from nightingale_lab.bench.judges.client import run_judges
from nightingale_lab.bench.pitch import Pitch, pitch_of
from nightingale_lab.bench.wer import Comparison, compare, corpus_rate
from nightingale.errors import ConfigError

RECOGNIZERS = ("tiny", "base", "moonshine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A recording, what it should say and, if known, recordings of who should say it."""

    wav: Path
    text: str
    reference: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipQuality:
    clip: Clip
    shape: Shape
    pitch: Pitch
    heard: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Comparison] = field(default_factory=dict)
    dnsmos: Mapping[str, float] = field(default_factory=dict)
    cosine: float | None = None
    defects: tuple[str, ...] = ()
    error: str | None = None

    @property
    def worst_rate(self) -> float:
        return max((result.rate for result in self.words.values()), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The report on a set."""

    clips: tuple[ClipQuality, ...]

    def wer(self, recognizer: str) -> float | None:
        results = [clip.words[recognizer] for clip in self.clips if recognizer in clip.words]
        return corpus_rate(results) if results else None

    def mos(self, part: str = "ovrl") -> float | None:
        return _mean([clip.dnsmos[part] for clip in self.clips if part in clip.dnsmos])

    @property
    def cosine(self) -> float | None:
        return _mean([clip.cosine for clip in self.clips if clip.cosine is not None])

    @property
    def defective(self) -> tuple[ClipQuality, ...]:
        return tuple(clip for clip in self.clips if clip.defects or clip.error)

    def worst(self, count: int = 10) -> tuple[ClipQuality, ...]:
        """Clips with the most wrong words first."""
        ranked = sorted(self.clips, key=lambda clip: (-clip.worst_rate, str(clip.clip.wav)))
        return tuple(clip for clip in ranked[:count] if clip.worst_rate > 0)

    def summary(self) -> dict[str, Any]:
        """Everything that fits in one line of JSON."""
        counts: dict[str, int] = {}
        for clip in self.clips:
            for name in clip.defects:
                counts[name] = counts.get(name, 0) + 1
        return {
            "clips": len(self.clips),
            "audio_seconds": round(sum(clip.shape.seconds for clip in self.clips), 1),
            "wer": {name: rate for name in RECOGNIZERS if (rate := self.wer(name)) is not None},
            "dnsmos": {
                p: value for p in ("ovrl", "sig", "bak", "p808") if (value := self.mos(p)) is not None
            },
            "cosine": self.cosine,
            "defects": counts,
            "errors": sum(clip.error is not None for clip in self.clips),
            "rate": _mean([clip.shape.speech_seconds / clip.shape.expected_seconds for clip in self.clips]),
            "pitch_hz": _mean([clip.pitch.median_hz for clip in self.clips if clip.pitch.median_hz]),
            "pitch_spread": _mean([clip.pitch.spread_semitones for clip in self.clips]),
            "worst": [
                {"wav": clip.clip.wav.name, "text": clip.clip.text, "heard": dict(clip.heard)}
                for clip in self.worst()
            ],
        }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def clips_in(folder: Path, texts: Path, reference: Sequence[Path] = ()) -> list[Clip]:
    """The folder's *.wav in name order against the lines of `texts`; their numbers must agree."""
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


def _read(path: Path) -> tuple[Any, int]:
    import soundfile  # here, so that importing the instruments stays cheap

    samples, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    return samples.mean(axis=1), int(rate_hz)


def measure_clip(clip: Clip, scores: Mapping[str, Any]) -> ClipQuality:
    """One clip, with what the judges said of it (an empty mapping if none was asked)."""
    samples, rate_hz = _read(clip.wav)
    heard = {name: str(scores[name]["heard"]) for name in RECOGNIZERS if name in scores}
    words = {name: compare(clip.text, said) for name, said in heard.items()}
    shape = shape_of(samples, rate_hz, clip.text)
    return ClipQuality(
        clip=clip,
        shape=shape,
        pitch=pitch_of(samples, rate_hz),
        heard=heard,
        words=words,
        dnsmos=scores.get("dnsmos", {}),
        cosine=scores.get("speaker", {}).get("cosine"),
        defects=defects(shape, tuple(words.values())),
        error=scores.get("error"),
    )


def measure(
    clips: Sequence[Clip],
    *,
    judges: Sequence[str] = (),
    python: Path | None = None,
    workers: int = 1,
    on_clip: Callable[[int, int], object] = lambda *_: None,
) -> Quality:
    """Measures a set. `judges` are names of `worker.py`; they need `python`, the judges' interpreter."""
    by_wav = {str(clip.wav): clip for clip in clips}
    if not judges or python is None:
        return Quality(clips=tuple(measure_clip(clip, {}) for clip in clips))
    jobs = [
        {"wav": wav, "text": clip.text, "reference": [str(path) for path in clip.reference]}
        for wav, clip in by_wav.items()
    ]
    measured: dict[str, ClipQuality] = {}
    for scores in run_judges(jobs, only=judges, python=python, workers=workers):
        measured[scores["wav"]] = measure_clip(by_wav[scores["wav"]], scores)
        on_clip(len(measured), len(clips))
    return Quality(clips=tuple(measured[wav] for wav in by_wav))


def as_row(clip: ClipQuality) -> dict[str, Any]:
    """A clip as plain data, for a results file."""
    row = asdict(clip)
    row["clip"] = {"wav": str(clip.clip.wav), "text": clip.clip.text}
    return row
