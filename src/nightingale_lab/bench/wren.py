"""Measure the table of wren's model card: a table, then one line of JSON, which is stored.

    python -m nightingale_lab.bench.wren [FOLDER] [--parts default,voices] [--references DIR] [--every 10]

FOLDER is what `nightingale train export` wrote (default: the model in the package). Sentences are synthesized
one by one, each with its own seed, then judged. References are recordings of the teacher's voices,
`<voice>*.wav`; without them the speaker is not judged.

    default     200 sentences, default voice
    voices      some of them in every voice
    varied      500 texts of 1 to 60 words: defects, and words that were skipped or repeated
    hard        spelled letters, digits, names, single words and long sentences, with two seeds each
    questions   the final pitch of 40 sentences with a question mark over that with a period
    speed       real-time factor, first audio, cold start
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from nightingale.clocks import CLOCKS
from nightingale.engine import TTS
from nightingale_lab.bench import script
from nightingale_lab.bench.judges.client import judges_python
from nightingale_lab.bench.pitch import final_semitones
from nightingale_lab.bench.quality import Clip, Quality, ask_with, measure
from nightingale_lab.bench.sentences import sentences
from nightingale_lab.bench.wer import skipped_or_repeated

KIND = "wren"
CARD = "card.json"
SENTENCE = "The birch canoe slid on the smooth planks."
TINY_SENTENCES = 2
RECOGNIZERS = ("tiny", "base")
HARD_SEEDS = (1, 2)
TEACHER_HARD_PERCENT = 18.0
"""Hard prompts in which Whisper base has an error when hibari, the teacher, speaks: 9 of every fourth, 50."""
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
    must: float
    aim: float
    form: str = ".2f"
    higher: bool = False
    """True if more is better."""

    @property
    def verdict(self) -> str:
        if self.reached is None:
            return "not measured"
        sign = 1 if self.higher else -1
        must, aim = (sign * (self.reached - bound) >= 0 for bound in (self.must, self.aim))
        return "aim" if aim else "must" if must else "missed"


def render(
    tts: TTS,
    lines: Sequence[str],
    folder: Path,
    *,
    voice: Path | None = None,
    references: Sequence[Path] = (),
    seed: int | None = None,
    on_clip: Callable[[int, int], object] = lambda *_: None,
) -> tuple[list[Clip], Speed]:
    """Synthesize one recording per line, `000.wav` onwards, and time it.

    seed: of all lines; without it, each has its number.
    """
    import numpy as np
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    clips, factors, firsts = [], [], []
    tts.say(SENTENCE, voice=voice, seed=0)  # warm up
    for number, line in enumerate(lines):
        begun, first_s, chunks = time.perf_counter(), None, [np.zeros(0, np.float32)]
        stream = tts.stream(line, voice=voice, seed=number if seed is None else seed)
        for chunk in stream:
            first_s = first_s if first_s is not None else time.perf_counter() - begun
            chunks.append(chunk.samples)
        total_s = time.perf_counter() - begun
        path = folder / f"{number:03d}.wav"
        soundfile.write(path, np.concatenate(chunks), tts.sample_rate_hz, subtype="PCM_16")
        clips.append(Clip(wav=path, text=line, reference=tuple(references)))
        # Pauses between segments cost nothing, so only the audio of tokens counts.
        factors.append(total_s * CLOCKS.token_rate_hz / max(1, stream.metrics.tokens))
        firsts.append(1000 * (first_s or total_s))
        on_clip(number + 1, len(lines))
    speed = Speed(real_time_factor=statistics.median(factors), first_audio_ms=statistics.median(firsts))
    return clips, speed


def rises(tts: TTS, lines: Sequence[str], folder: Path) -> list[float]:
    """Return how much higher each line ends as a question than as a statement, in semitones.

    Lines of which one version is hardly voiced are left out.
    """
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number, line in enumerate(lines):
        ends = []
        for name, mark in (("statement", "."), ("question", "?")):
            samples = tts.say(line + mark, seed=number).samples
            soundfile.write(
                folder / f"{number:03d}-{name}.wav", samples, tts.sample_rate_hz, subtype="PCM_16"
            )
            ends.append(final_semitones(samples, tts.sample_rate_hz))
        statement, question = ends
        if statement is not None and question is not None:
            found.append(question - statement)
    return found


def skipped_per_10000(report: Quality) -> float | None:
    """Return the words that both recognizers miss, or recognize twice, in 10,000."""
    clips = [clip for clip in report.clips if all(name in clip.words for name in RECOGNIZERS)]
    words = sum(clip.words[RECOGNIZERS[0]].words for clip in clips)
    errors = sum(
        skipped_or_repeated(clip.clip.text, [clip.transcripts[name] for name in RECOGNIZERS])
        for clip in clips
    )
    return 10_000 * errors / words if words else None


def share_with_errors(report: Quality, recognizer: str) -> float | None:
    """Return the percentage of clips in which the recognizer has a wrong word."""
    wrong = [clip.words[recognizer].errors > 0 for clip in report.clips if recognizer in clip.words]
    return 100 * statistics.fmean(wrong) if wrong else None


def cold_start_s(model: Path | None) -> float:
    """Return the seconds of `nightingale say` from a fresh process to the file; the better of two."""
    with tempfile.TemporaryDirectory() as scratch:
        given = ["say", SENTENCE, "-o", str(Path(scratch) / "x.wav"), "--quiet"]
        command = [sys.executable, "-m", "nightingale", *given, *(["-m", str(model)] if model else [])]
        times = []
        for _ in range(2):
            begun = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times.append(time.perf_counter() - begun)
    return min(times)


@dataclass(slots=True, kw_only=True)
class TableResults:
    """Results of the parts of the table; None where a part did not run."""

    default: Quality | None = None
    voices: dict[str, Quality] = field(default_factory=dict)
    varied: Quality | None = None
    hard: Quality | None = None
    rises: list[float] = field(default_factory=list)
    speed: Speed | None = None
    cold_s: float | None = None


def goals(found: TableResults) -> list[Goal]:
    """Return the table of the model card. What was not measured has no value."""

    def mean_wer(reports: Iterable[Quality], name: str) -> float | None:
        rates = [rate for report in reports if (rate := report.wer(name)) is not None]
        return 100 * statistics.fmean(rates) if rates else None

    default, varied, rose, speed = found.default, found.varied, found.rises, found.speed
    own = [default] if default else []
    worst = min((mos for report in found.voices.values() if (mos := report.mos()) is not None), default=None)
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
            must=1.6 * TEACHER_HARD_PERCENT,
            aim=1.2 * TEACHER_HARD_PERCENT,
            form=".1f",
        ),
        Goal(
            what=f"skipped or repeated in 10,000, {many}",
            reached=skipped_per_10000(varied) if varied else None,
            must=3,
            aim=0,
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
        Goal(
            what="DNSMOS, default voice",
            reached=default.mos() if default else None,
            must=3.28,
            aim=3.34,
            higher=True,
        ),
        Goal(what="DNSMOS, worst voice", reached=worst, must=3.12, aim=3.25, higher=True),
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
    lines = [f"{'what':<38}{'reached':>10}{'must':>8}{'aim':>8}  verdict"]
    for row in measured:
        reached = "–" if row.reached is None else format(row.reached, row.form)
        lines.append(f"{row.what:<38}{reached:>10}{row.must:>8g}{row.aim:>8g}  {row.verdict}")
    return "\n".join(lines)


def parse(argv: Sequence[str] | None) -> Namespace:
    parser = script.parser(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="default: the model in the package")
    parser.add_argument("--references", type=Path, help="recordings of the teacher's voices: <voice>*.wav")
    parser.add_argument("--keep", type=Path, help="leave the recordings here")
    parser.add_argument("--judges", default="tiny,base,dnsmos,speaker", help="empty: none")
    parser.add_argument("--every", type=int, default=1, help="only every so many sentences")
    parser.add_argument("--profile", help="default: the model's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--per-voice", type=int, default=20, help="sentences of each voice")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--parts", default="default,voices,varied,hard,questions,speed", help="only these")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    names = tuple(name for name in args.judges.split(",") if name)
    ask = ask_with(judges_python(), args.workers) if names else None
    card = Path(str(args.folder or files("nightingale.wren"))) / CARD
    others = json.loads(card.read_text(encoding="utf-8"))["voices"]

    def some(name: str) -> list[str]:
        lines = sentences(name)[:: args.every]
        return sorted(lines, key=len)[:TINY_SENTENCES] if args.tiny else lines

    def references(voice: str) -> list[Path]:
        return sorted(args.references.glob(f"{voice}*.wav")) if args.references else []

    def progress(what: str) -> Callable[[int, int], object]:
        return lambda done, of: sys.stderr.write(f"\r{what}: {done}/{of}   ")

    def judged(clips: list[Clip], by: Sequence[str] = names) -> Quality:
        judges = [name for name in by if name != "speaker" or clips[0].reference]
        return measure(clips, ask, judges, progress("judged"))

    parts, found = frozenset(args.parts.split(",")), TableResults()
    engine = TTS(args.folder, profile=args.profile, device=args.device)
    with tempfile.TemporaryDirectory() as scratch, engine as tts:
        folder = args.keep or Path(scratch)
        lines, words_only = some("wren_200"), [name for name in names if name in RECOGNIZERS]
        if "speed" in parts:  # first, since judges would compete for the processors
            found.speed = render(tts, lines[::5], folder / "speed", on_clip=progress("timed"))[1]
        if "questions" in parts:
            found.rises = rises(tts, some("wren_questions"), folder / "questions")
        if "default" in parts:
            clips, _ = render(
                tts,
                lines,
                folder / "default",
                references=references(others[0]),
                on_clip=progress("rendered"),
            )
            found.default = judged(clips)
        if "voices" in parts:
            for name in others:
                path = card.parent / "voices" / f"{name}.safetensors"
                chosen = lines[:: max(1, len(lines) // args.per_voice)]
                clips, _ = render(tts, chosen, folder / name, voice=path, references=references(name))
                found.voices[name] = judged(clips)
        if "hard" in parts:
            clips = [
                clip
                for seed in HARD_SEEDS
                for clip in render(tts, some("wren_hard"), folder / f"hard{seed}", seed=seed)[0]
            ]
            found.hard = judged(clips, words_only)
        if "varied" in parts:
            clips, _ = render(tts, some("wren_500"), folder / "varied", on_clip=progress("varied"))
            found.varied = judged(clips, words_only)
    found.cold_s = cold_start_s(args.folder) if "speed" in parts else None
    rows = goals(found)
    sys.stderr.write("\n")
    sys.stdout.write(f"{table(rows)}\n")
    result = {
        "kind": KIND,
        "parts": sorted(parts),
        "every": args.every,
        "profile": str(engine.plan.profile.name),
        "rows": {row.what: row.reached for row in rows},
        "default": found.default.summary() if found.default else None,
        "voices": {name: report.summary() for name, report in found.voices.items()},
        "varied": found.varied.summary() if found.varied else None,
        "hard": found.hard.summary() if found.hard else None,
        "rises": [round(rise, 2) for rise in found.rises],
        "defective": [clip.report() for clip in found.varied.defective] if found.varied else None,
    }
    script.finish(result, KIND, args)


if __name__ == "__main__":
    main()
