"""Measure the table of wren's model card: a table, then one line of JSON.

    python -m nightingale_lab.bench.wren [FOLDER] [--references DIR] [--quick]

FOLDER is what `nightingale train export` wrote (default: the model in the package). Sentences are synthesized
one by one, each with its own seed, then judged. References are recordings of the teacher's voices,
`<voice>*.wav`; without them the speaker is not judged.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from nightingale.clocks import CLOCKS
from nightingale.engine import TTS
from nightingale_lab.bench.judges.client import judges_python
from nightingale_lab.bench.quality import Clip, Quality, ask_with, measure
from nightingale_lab.bench.sentences import sentences

CARD = "card.json"
SENTENCE = "The birch canoe slid on the smooth planks."
TINY_SENTENCES = 2


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
    on_clip: Callable[[int, int], object] = lambda *_: None,
) -> tuple[list[Clip], Speed]:
    """Synthesize one recording per line, `000.wav` onwards, and time it."""
    import numpy as np
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    clips, factors, firsts = [], [], []
    tts.say(SENTENCE, voice=voice, seed=0)  # warm up
    for number, line in enumerate(lines):
        begun, first_s, chunks = time.perf_counter(), None, [np.zeros(0, np.float32)]
        stream = tts.stream(line, voice=voice, seed=number)
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


def judged_again(first: Quality, judge: Callable[[list[Clip]], Quality]) -> Quality:
    """Judge the defective clips again with two recognizers: one alone proves nothing about an ending."""
    doubtful = [found.clip for found in first.defective]
    again = {found.clip: found for found in judge(doubtful).clips} if doubtful else {}
    return Quality(clips=tuple(again.get(found.clip, found) for found in first.clips))


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


def goals(
    default: Quality | None,
    voices: Sequence[Quality],
    varied: Quality | None,
    speed: Speed | None,
    cold_s: float | None,
) -> list[Goal]:
    """Return the table of the model card. What was not measured has no value."""

    def mean_wer(reports: Sequence[Quality], name: str) -> float | None:
        rates = [rate for report in reports if (rate := report.wer(name)) is not None]
        return 100 * statistics.fmean(rates) if rates else None

    own, recognizers = [default] if default else [], ("tiny", "base")
    bad = float(len(varied.defective)) if varied else None
    many = len(varied.clips) if varied else 500
    mos, cosine = (default.mos(), default.cosine) if default else (None, None)
    factor, first_ms = (speed.real_time_factor, speed.first_audio_ms) if speed else (None, None)
    return [
        *(
            Goal(what=f"WER %, default voice, {n}", reached=mean_wer(own, n), must=4, aim=2)
            for n in recognizers
        ),
        *(
            Goal(what=f"WER %, all voices, {n}", reached=mean_wer(voices, n), must=6, aim=3)
            for n in recognizers
        ),
        Goal(what="DNSMOS overall, default voice", reached=mos, must=3.0, aim=3.25, higher=True),
        Goal(what="speaker cosine to the teacher", reached=cosine, must=0.85, aim=0.92, higher=True),
        Goal(what=f"defects in {many} varied", reached=bad, must=0, aim=0, form=".0f"),
        Goal(what="real-time factor", reached=factor, must=0.35, aim=0.12, form=".3f"),
        Goal(what="first audio, ms, warm", reached=first_ms, must=250, aim=80, form=".0f"),
        Goal(what="say, cold process, s", reached=cold_s, must=6.0, aim=2.5),
    ]


def table(measured: Sequence[Goal]) -> str:
    lines = [f"{'what':<34}{'reached':>10}{'must':>8}{'aim':>8}  verdict"]
    for row in measured:
        reached = "–" if row.reached is None else format(row.reached, row.form)
        lines.append(f"{row.what:<34}{reached:>10}{row.must:>8g}{row.aim:>8g}  {row.verdict}")
    return "\n".join(lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nightingale_lab.bench.wren", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="default: the model in the package")
    parser.add_argument("--references", type=Path, help="recordings of the teacher's voices: <voice>*.wav")
    parser.add_argument("--keep", type=Path, help="leave the recordings here")
    parser.add_argument("--judges", default="tiny,base,dnsmos,speaker", help="empty: none")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sentences")
    parser.add_argument("--tiny", action="store_true", help="two sentences: proves that the script runs")
    parser.add_argument("--profile", help="default: the model's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--per-voice", type=int, default=20, help="sentences of each other voice")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--parts", default="default,voices,varied,speed", help="only these")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    names = tuple(name for name in args.judges.split(",") if name)
    ask = ask_with(judges_python(), args.workers) if names else None
    card = Path(str(args.folder or files("nightingale.wren"))) / CARD
    others = json.loads(card.read_text(encoding="utf-8"))["voices"]

    def some(name: str) -> list[str]:
        lines = sentences(name)[:: 10 if args.quick else 1]
        return sorted(lines, key=len)[:TINY_SENTENCES] if args.tiny else lines

    def references(voice: str) -> list[Path]:
        return sorted(args.references.glob(f"{voice}*.wav")) if args.references else []

    def progress(what: str) -> Callable[[int, int], object]:
        return lambda done, of: sys.stderr.write(f"\r{what}: {done}/{of}   ")

    def judged(clips: list[Clip], by: Sequence[str]) -> Quality:
        judges = [name for name in by if name != "speaker" or clips[0].reference]
        return measure(clips, ask, judges, progress("judged"))

    parts = frozenset(args.parts.split(","))
    default, voices, varied, speed = None, [], None, None
    engine = TTS(args.folder, profile=args.profile, device=args.device)
    with tempfile.TemporaryDirectory() as scratch, engine as tts:
        folder = args.keep or Path(scratch)
        lines = some("wren_200")
        if "speed" in parts:  # first, since judges would compete for the processors
            speed = render(tts, lines[::5], folder / "speed", on_clip=progress("timed"))[1]
        if "default" in parts:
            reference = references(others[0])
            clips, _ = render(
                tts, lines, folder / "default", references=reference, on_clip=progress("rendered")
            )
            default = judged(clips, names)
        if "voices" in parts:
            for name in others:
                path = card.parent / "voices" / f"{name}.safetensors"
                chosen = lines[:: max(1, len(lines) // args.per_voice)]
                clips, _ = render(tts, chosen, folder / name, voice=path, references=references(name))
                voices.append(judged(clips, names))
        if "varied" in parts:
            clips, _ = render(tts, some("wren_500"), folder / "varied", on_clip=progress("varied"))
            varied = judged(clips, [n for n in names if n == "tiny"])
            if names:
                varied = judged_again(varied, lambda doubtful: judged(doubtful, ("tiny", "base")))
    cold_s = cold_start_s(args.folder) if "speed" in parts else None
    measured = goals(default, voices, varied, speed, cold_s)
    result = {
        "rows": {row.what: row.reached for row in measured},
        "default": default.summary() if default else None,
        "voices": {name: report.summary() for name, report in zip(others, voices, strict=False)},
        "varied": varied.summary() if varied else None,
        "defective": [clip.report() for clip in varied.defective] if varied else None,
    }
    sys.stderr.write("\n")
    sys.stdout.write(f"{table(measured)}\n{json.dumps(result)}\n")


if __name__ == "__main__":
    main()
