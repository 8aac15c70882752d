"""The rows of the table of wren's model card: what was measured, what is required, and the verdict."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nightingale_lab.bench.clones import CloneReport, EncoderReport
from nightingale_lab.bench.quality import ClipQuality, Quality
from nightingale_lab.bench.wer import skipped_or_repeated

RECOGNIZERS = ("tiny", "base")
RISE_SEMITONES = 1.5
"""A question that ends this much higher than its statement is recognizable as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Medians over sentences, in a warm process."""

    real_time_factor: float
    first_audio_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One row of the table."""

    what: str
    reached: float | None
    must: float | None = None
    aim: float | None = None
    form: str = ".2f"
    higher: bool = False
    """True if more is better."""

    @property
    def verdict(self) -> str:
        if self.reached is None:
            return "not measured"
        if self.must is None or self.aim is None:
            return "no goal"
        sign = 1 if self.higher else -1
        must, aim = (sign * (self.reached - bound) >= 0 for bound in (self.must, self.aim))
        return "aim" if aim else "must" if must else "missed"


@dataclass(slots=True, kw_only=True)
class TableResults:
    """Results of the parts of the table; None where a part did not run."""

    default: Quality | None = None
    teacher_default: Quality | None = None
    """hibari speaks the same sentences."""
    voices: dict[str, Quality] = field(default_factory=dict)
    teacher_voices: dict[str, Quality] = field(default_factory=dict)
    """Kokoro speaks the same sentences with the voice that each has learned from."""
    varied: Quality | None = None
    teacher_varied: Quality | None = None
    """hibari, the teacher, speaks the same texts."""
    hard: Quality | None = None
    teacher_hard: Quality | None = None
    """hibari, the teacher, speaks the hard prompts."""
    clones: CloneReport | None = None
    encoder: EncoderReport | None = None
    rises: list[float] = field(default_factory=list)
    speed: Speed | None = None
    cold_s: float | None = None


def skipped_words(clip: ClipQuality) -> int:
    """Return how many words both recognizers miss in a clip, or recognize twice."""
    if not all(name in clip.words for name in RECOGNIZERS):
        return 0
    return skipped_or_repeated(clip.clip.text, [clip.transcripts[name] for name in RECOGNIZERS])


def skipped_per_10000(report: Quality) -> float | None:
    """Return the words that both recognizers miss, or recognize twice, in 10,000."""
    clips = [clip for clip in report.clips if all(name in clip.words for name in RECOGNIZERS)]
    words = sum(clip.words[RECOGNIZERS[0]].words for clip in clips)
    return 10_000 * sum(map(skipped_words, clips)) / words if words else None


def share_with_errors(report: Quality, recognizer: str) -> float | None:
    """Return the percentage of clips in which the recognizer has a wrong word."""
    wrong = [clip.words[recognizer].errors > 0 for clip in report.clips if recognizer in clip.words]
    return 100 * statistics.fmean(wrong) if wrong else None


def hard_ratio(own: Quality | None, teacher: Quality | None, recognizer: str) -> float | None:
    """Return the share of clips with an error over that of the teacher on the same prompts."""
    shares = [share_with_errors(report, recognizer) if report else None for report in (own, teacher)]
    if shares[0] is None or not shares[1]:
        return None
    return shares[0] / shares[1]


DISTILL_MOS_HEAD = ("voice", "mean", "lowest tenth", "teacher, mean", "lowest tenth", "mean − teacher's")


def distill_mos_rows(found: TableResults) -> list[tuple[str | float | None, ...]]:
    """Return a row of DISTILL_MOS_HEAD for the default sentences, and one for each voice."""
    sets = {"default sentences": (found.default, found.teacher_default)} if found.default else {}
    sets |= {name: (own, found.teacher_voices.get(name)) for name, own in found.voices.items()}
    rows = []
    for name, (own, teacher) in sets.items():
        parts = [
            report.distill_mos.get(part) if report else None
            for report in (own, teacher)
            for part in ("mean", "p10")
        ]
        rows.append((name, *parts, over_teacher(own, teacher)))
    return rows


def over_teacher(own: Quality | None, teacher: Quality | None) -> float | None:
    """Return the mean by Distill-MOS minus the teacher's on the same texts."""
    if not own or not teacher or not own.distill_mos or not teacher.distill_mos:
        return None
    return own.distill_mos["mean"] - teacher.distill_mos["mean"]


def goals(found: TableResults) -> list[Goal]:
    """Return the table of the model card. What was not measured has no value."""

    def mean_wer(reports: Iterable[Quality], name: str) -> float | None:
        rates = [rate for report in reports if (rate := report.wer(name)) is not None]
        return 100 * statistics.fmean(rates) if rates else None

    default, varied, rose, speed = found.default, found.varied, found.rises, found.speed
    clones, encoder = found.clones, found.encoder
    own = [default] if default else []
    worst = min((mos for report in found.voices.values() if (mos := report.mos()) is not None), default=None)
    over = [
        difference
        for name, report in found.voices.items()
        if (difference := over_teacher(report, found.teacher_voices.get(name))) is not None
    ]
    many = len(varied.clips) if varied else 500
    return [
        Goal(what="WER %, default voice, tiny", reached=mean_wer(own, "tiny"), must=3, aim=2),
        Goal(what="WER %, default voice, base", reached=mean_wer(own, "base"), must=2.2, aim=1.5),
        Goal(
            what="WER %, all voices, tiny", reached=mean_wer(found.voices.values(), "tiny"), must=3.5, aim=2.5
        ),
        Goal(
            what="WER %, all voices, base", reached=mean_wer(found.voices.values(), "base"), must=2.8, aim=2
        ),
        Goal(
            what="hard clips with an error, %, base",
            reached=share_with_errors(found.hard, "base") if found.hard else None,
            form=".1f",
        ),
        Goal(
            what="the same over the teacher's share",
            reached=hard_ratio(found.hard, found.teacher_hard, "base"),
            must=1.6,
            aim=1.2,
        ),
        Goal(
            what=f"skipped or repeated in 10,000, {many}",
            reached=skipped_per_10000(varied) if varied else None,
            must=3,
            aim=0,
            form=".1f",
        ),
        Goal(
            what="the same, the teacher",
            reached=skipped_per_10000(found.teacher_varied) if found.teacher_varied else None,
            form=".1f",
        ),
        Goal(
            what="question minus statement, semitones",
            reached=statistics.median(rose) if rose else None,
            must=2.5,
            aim=4,
            higher=True,
        ),
        Goal(
            what=f"questions above +{RISE_SEMITONES}, %",
            reached=100 * statistics.fmean(rise > RISE_SEMITONES for rise in rose) if rose else None,
            must=80,
            aim=95,
            form=".0f",
            higher=True,
        ),
        Goal(what="Distill-MOS, default voice", reached=default.distill_mos.get("mean") if default else None),
        Goal(
            what="the same minus its teacher's",
            reached=over_teacher(default, found.teacher_default),
            must=-0.08,
            aim=0,
            form="+.2f",
            higher=True,
        ),
        Goal(
            what="Distill-MOS, worst voice minus teacher's",
            reached=min(over, default=None),
            must=-0.2,
            aim=-0.1,
            form="+.2f",
            higher=True,
        ),
        Goal(
            what="the same, mean over voices",
            reached=statistics.fmean(over) if over else None,
            must=-0.1,
            aim=-0.03,
            form="+.2f",
            higher=True,
        ),
        Goal(
            what="DNSMOS, default voice",
            reached=default.mos() if default else None,
            must=3.28,
            aim=3.34,
            higher=True,
        ),
        Goal(what="DNSMOS, worst voice", reached=worst, must=3.12, aim=3.25, higher=True),
        Goal(
            what="cosine of clones to their references",
            reached=clones.cosine if clones else None,
            must=0.72,
            aim=0.82,
            higher=True,
        ),
        Goal(
            what="clones nearest to their own reader, %",
            reached=100 * clones.nearest / len(clones.cosines) if clones else None,
            must=80,
            aim=100,
            form=".0f",
            higher=True,
        ),
        Goal(
            what="pitch of clones to their references, semitones",
            reached=clones.pitch_semitones if clones else None,
            form=".1f",
        ),
        Goal(
            what="voice encoder, cosine to its teacher",
            reached=encoder.cosine if encoder else None,
            must=0.95,
            aim=0.97,
            form=".3f",
            higher=True,
        ),
        Goal(
            what="voice encoder, equal error rate, %",
            reached=encoder.equal_error_percent if encoder else None,
            must=4,
            aim=3,
            form=".1f",
        ),
        Goal(
            what="speaker cosine to the teacher",
            reached=default.cosine if default else None,
            must=0.85,
            aim=0.92,
            higher=True,
        ),
        Goal(
            what=f"defects in {many} varied",
            reached=float(len(varied.defective)) if varied else None,
            must=0,
            aim=0,
            form=".0f",
        ),
        Goal(
            what="real-time factor",
            reached=speed.real_time_factor if speed else None,
            must=0.35,
            aim=0.12,
            form=".3f",
        ),
        Goal(
            what="first audio, ms, warm",
            reached=speed.first_audio_ms if speed else None,
            must=250,
            aim=80,
            form=".0f",
        ),
        Goal(what="say, cold process, s", reached=found.cold_s, must=6.0, aim=2.5),
    ]


def table(measured: Sequence[Goal]) -> str:
    lines = [f"{'what':<40}{'reached':>10}{'must':>8}{'aim':>8}  verdict"]
    for row in measured:
        reached = "–" if row.reached is None else format(row.reached, row.form)
        must, aim = ("–" if bound is None else f"{bound:g}" for bound in (row.must, row.aim))
        lines.append(f"{row.what:<40}{reached:>10}{must:>8}{aim:>8}  {row.verdict}")
    return "\n".join(lines)
