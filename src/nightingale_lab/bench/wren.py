"""The table of wren's model card, by one command: a table, then one line of JSON, last.

    python -m nightingale_lab.bench.wren [FOLDER] [--references DIR] [--quick]

FOLDER is what `nightingale train export` wrote (default: the model in the package). Sentences are rendered
one by one with a seed each, as a user would ask for them, then judged. References are recordings of the
teacher's voices, `<voice>*.wav`; without them the speaker is not judged.
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
from typing import Any

from nightingale_lab.bench.judges.client import judges_python
from nightingale_lab.bench.quality import Clip, ClipQuality, Quality, measure
from nightingale.clocks import CLOCKS
from nightingale.engine import TTS

CARD = "card.json"
SENTENCE = "The birch canoe slid on the smooth planks."


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How long rendering took."""

    real_time_factor: float
    """Median over sentences: seconds of work for a second of speech."""
    first_audio_ms: float
    """Median, warm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    what: str
    reached: float | None
    must: float
    aim: float
    form: str = ".2f"
    higher: bool = False
    """Whether more is better."""

    @property
    def verdict(self) -> str:
        if self.reached is None:
            return "not measured"
        sign = 1 if self.higher else -1
        over = [sign * (self.reached - bound) >= 0 for bound in (self.must, self.aim)]
        return "aim" if over[1] else "must" if over[0] else "missed"


def texts(name: str) -> list[str]:
    held = (files("nightingale_lab.bench") / "texts" / f"{name}.txt").read_text(encoding="utf-8")
    return [line.strip() for line in held.splitlines() if line.strip()]


def render(
    tts: TTS,
    lines: Sequence[str],
    folder: Path,
    *,
    voice: Path | None = None,
    references: Sequence[Path] = (),
    on_clip: Callable[[int, int], object] = lambda *_: None,
) -> tuple[list[Clip], Speed]:
    """One recording per line, `000.wav` onwards, and what it took."""
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    clips, factors, firsts = [], [], []
    tts.say(SENTENCE, voice=voice, seed=0)  # warm
    for number, line in enumerate(lines):
        begun, first_s, pieces = time.perf_counter(), None, []
        stream = tts.stream(line, voice=voice, seed=number)
        for chunk in stream:
            first_s = first_s if first_s is not None else time.perf_counter() - begun
            pieces.append(chunk.samples)
        spent_s = time.perf_counter() - begun
        samples = _joined(pieces)
        path = folder / f"{number:03d}.wav"
        soundfile.write(path, samples, tts.sample_rate_hz, subtype="PCM_16")
        clips.append(Clip(wav=path, text=line, reference=tuple(references)))
        # Of what was spoken: pauses between and after the pieces cost nothing, and count for nothing.
        factors.append(spent_s * CLOCKS.token_rate_hz / max(1, stream.metrics.tokens))
        firsts.append(1000 * (first_s or spent_s))
        on_clip(number + 1, len(lines))
    speed = Speed(real_time_factor=statistics.median(factors), first_audio_ms=statistics.median(firsts))
    return clips, speed


def _joined(pieces: Sequence[Any]) -> Any:
    import numpy as np

    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def heard_again(first: Quality, ask: Callable[[list[Clip]], Quality]) -> Quality:
    """A recognizer alone proves nothing about an ending (endings.py): what one doubts, two listen to."""
    doubted = [found.clip for found in first.defective]
    again = {found.clip: found for found in ask(doubted).clips} if doubted else {}
    return Quality(clips=tuple(again.get(found.clip, found) for found in first.clips))


def told(found: ClipQuality) -> dict[str, Any]:
    return {
        "wav": found.clip.wav.name,
        "text": found.clip.text,
        "defects": found.defects,
        "heard": dict(found.heard),
        "error": found.error,
    }


def cold_start_s(model: Path | None) -> float:
    """`nightingale say` from a fresh process to the finished file; the better of two."""
    with tempfile.TemporaryDirectory() as scratch:
        given = ["say", SENTENCE, "-o", str(Path(scratch) / "x.wav"), "--quiet"]
        command = [sys.executable, "-m", "nightingale", *given, *(["-m", str(model)] if model else [])]
        times = []
        for _ in range(2):
            begun = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times.append(time.perf_counter() - begun)
    return min(times)


def rows(
    default: Quality | None,
    voices: Sequence[Quality],
    varied: Quality | None,
    speed: Speed | None,
    cold_s: float | None,
) -> list[Row]:
    """The issue's table; what was not measured has no value."""

    def percent(value: float | None) -> float | None:
        return None if value is None else 100 * value

    def over_voices(name: str) -> float | None:
        rates = [rate for report in voices if (rate := report.wer(name)) is not None]
        return percent(statistics.fmean(rates)) if rates else None

    asked = ("tiny", "base")
    words = [
        Row(
            what=f"WER %, default voice, {n}",
            reached=percent(default.wer(n)) if default else None,
            must=4,
            aim=2,
        )
        for n in asked
    ]
    words += [Row(what=f"WER %, all voices, {n}", reached=over_voices(n), must=6, aim=3) for n in asked]
    bad = float(len(varied.defective)) if varied else None
    many = len(varied.clips) if varied else 500
    mos, cosine = (default.mos(), default.cosine) if default else (None, None)
    factor, first_ms = (speed.real_time_factor, speed.first_audio_ms) if speed else (None, None)
    return [
        *words,
        Row(what="DNSMOS overall, default voice", reached=mos, must=3.0, aim=3.25, higher=True),
        Row(what="speaker cosine to the teacher", reached=cosine, must=0.85, aim=0.92, higher=True),
        Row(what=f"defects in {many} varied", reached=bad, must=0, aim=0, form=".0f"),
        Row(what="real-time factor", reached=factor, must=0.35, aim=0.12, form=".3f"),
        Row(what="first audio, ms, warm", reached=first_ms, must=250, aim=80, form=".0f"),
        Row(what="say, cold process, s", reached=cold_s, must=6.0, aim=2.5),
    ]


def table(measured: Sequence[Row]) -> str:
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
    parser.add_argument("--profile", help="a swap is judged beside the same of another")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--per-voice", type=int, default=20, help="sentences of each other voice")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--parts",
        default="default,voices,varied,speed",
        help="only these, if the whole takes too long",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    share = 10 if args.quick else 1
    names = tuple(name for name in args.judges.split(",") if name)
    python = judges_python() if names else None
    card = Path(str(args.folder or files("nightingale.wren"))) / CARD
    others = json.loads(card.read_text(encoding="utf-8"))["voices"]

    def references(voice: str) -> list[Path]:
        return sorted(args.references.glob(f"{voice}*.wav")) if args.references else []

    def progress(what: str) -> Callable[[int, int], object]:
        return lambda done, of: sys.stderr.write(f"\r{what}: {done}/{of}   ")

    def judged(clips: list[Clip], by: Sequence[str]) -> Quality:
        wanted = [name for name in by if name != "speaker" or clips[0].reference]
        judge = {"judges": wanted, "python": python, "workers": args.workers, "on_clip": progress("judged")}
        return measure(clips, **judge) if wanted else measure(clips)

    parts = frozenset(args.parts.split(","))
    default, spoken, varied, speed = None, [], None, None
    engine = TTS(args.folder, profile=args.profile, device=args.device)
    with tempfile.TemporaryDirectory() as scratch, engine as tts:
        folder = args.keep or Path(scratch)
        lines = texts("wren_200")[::share]
        if "speed" in parts:  # first, and by itself: judges beside it would take its processors
            speed = render(tts, lines[::5], folder / "speed", on_clip=progress("timed"))[1]
        if "default" in parts:
            clips, _ = render(
                tts, lines, folder / "default", references=references(others[0]), on_clip=progress("rendered")
            )
            default = judged(clips, names)
        if "voices" in parts:
            some = lines[:: max(1, len(lines) // args.per_voice)]
            for name in others:
                path = card.parent / "voices" / f"{name}.safetensors"
                clips, _ = render(tts, some, folder / name, voice=path, references=references(name))
                spoken.append(judged(clips, names))
        if "varied" in parts:
            clips, _ = render(tts, texts("wren_500")[::share], folder / "varied", on_clip=progress("varied"))
            varied = judged(clips, [n for n in names if n == "tiny"])
            if names:
                varied = heard_again(varied, lambda doubted: judged(doubted, ("tiny", "base")))
    cold_s = cold_start_s(args.folder) if "speed" in parts else None
    measured = rows(default, spoken, varied, speed, cold_s)
    sys.stderr.write("\n")
    sys.stdout.write(table(measured) + "\n")
    result = {
        "rows": {row.what: row.reached for row in measured},
        "default": default.summary() if default else None,
        "voices": {name: report.summary() for name, report in zip(others, spoken, strict=False)},
        "varied": varied.summary() if varied else None,
        "defective": [told(clip) for clip in varied.defective] if varied else None,
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
