"""The program that runs inside the judges' environment: jobs in, scores out, one JSON object a line.

    .venv-judges/bin/python src/nightingale_lab/bench/judges/worker.py --only tiny,dnsmos < jobs.jsonl > out.jsonl

A job: {"wav": path, "text": what it should say, "reference": [clips of the speaker], "language": "en"};
only `wav` is required. The answer keeps `wav` and adds `seconds`, one entry per judge, and `cost` in seconds:
    "tiny", "base", "moonshine": {"heard": words, "errors": n, "words": n}    (the counts if `text` was given)
    "dnsmos": {"ovrl", "sig", "bak", "p808"}        "speaker": {"cosine"}     (if `reference` was given)
    "error": why a clip could not be judged; the others go on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2]
JUDGES = ("tiny", "base", "moonshine", "dnsmos", "speaker")
RATE_HZ = 16_000
SHORTEST_SECONDS = 0.1

Score = Callable[[Any, dict[str, Any]], dict[str, Any]]


def open_package() -> None:
    """Makes `nightingale_lab.bench` importable without the product's own start-up: its packages are not here."""
    if "nightingale" not in sys.modules:
        bare = types.ModuleType("nightingale")
        bare.__path__ = [str(PACKAGE)]
        sys.modules["nightingale"] = bare


def read_clip(path: str) -> Any:
    """Mono float32 at 16 kHz."""
    import soundfile
    import soxr

    samples, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    mono = samples.mean(axis=1)
    if len(mono) < SHORTEST_SECONDS * rate_hz:
        raise ValueError(f"{len(mono) / rate_hz:.3f} s of audio; a judge needs {SHORTEST_SECONDS} s")
    return mono if rate_hz == RATE_HZ else soxr.resample(mono, rate_hz, RATE_HZ)


def recognizer_score(recognizer: Any) -> Score:
    from nightingale_lab.bench.wer import compare

    def score(samples: Any, job: dict[str, Any]) -> dict[str, Any]:
        heard = recognizer.hear(samples, job.get("language", "en"))
        if "text" not in job:
            return {"heard": heard}
        result = compare(job["text"], heard)
        return {"heard": heard, "errors": result.errors, "words": result.words}

    return score


def speaker_score(encoder: Any) -> Score:
    import numpy as np

    @cache
    def voice(paths: tuple[str, ...]) -> Any:
        mean = np.mean([encoder.embed(read_clip(path)) for path in paths], axis=0)
        return mean / np.linalg.norm(mean)

    def score(samples: Any, job: dict[str, Any]) -> dict[str, Any]:
        wanted = job.get("reference")
        if not wanted:
            return {}
        paths = (wanted,) if isinstance(wanted, str) else tuple(wanted)
        return {"cosine": float(encoder.embed(samples) @ voice(paths))}

    return score


def load_judge(name: str, folder: Path, *, threads: int, most_windows: int) -> Score:
    from nightingale_lab.bench.judges.dnsmos import Dnsmos
    from nightingale_lab.bench.judges.recognizers import Moonshine, Whisper
    from nightingale_lab.bench.judges.speaker import SpeakerEncoder

    if name in ("tiny", "base"):
        return recognizer_score(Whisper(folder / name, threads=threads))
    if name == "moonshine":
        return recognizer_score(Moonshine(folder / name, threads=threads))
    if name == "dnsmos":
        judge = Dnsmos(folder / name, threads=threads, most_windows=most_windows)
        return lambda samples, _: dict(judge.score(samples))
    return speaker_score(SpeakerEncoder(folder / name / "pretrained.pt"))


def judge_clip(job: dict[str, Any], judges: dict[str, Score]) -> dict[str, Any]:
    answer: dict[str, Any] = {"wav": job["wav"]}
    try:
        samples = read_clip(job["wav"])
        answer["seconds"] = len(samples) / RATE_HZ
        costs: dict[str, float] = {}
        for name, score in judges.items():
            started = time.perf_counter()
            answer[name] = score(samples, job)
            costs[name] = round(time.perf_counter() - started, 4)
        answer["cost"] = costs
    except (OSError, ValueError, RuntimeError) as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description="Logits speech clips; JSON lines in, JSON lines out.")
    parser.add_argument("--only", default="tiny,base,dnsmos,speaker", help=f"of {','.join(JUDGES)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dnsmos-windows", type=int, default=2, help="windows per clip; 0 judges all (slow)")
    parser.add_argument("--weights", type=Path, default=Path(sys.prefix) / "share" / "judges")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(JUDGES):
        parser.error(f"no judge named {', '.join(sorted(unknown))}; there are {', '.join(JUDGES)}")
    open_package()
    judges = {
        name: load_judge(name, options.weights, threads=options.threads, most_windows=options.dnsmos_windows)
        for name in names
    }
    for line in sys.stdin:
        if line.strip():
            sys.stdout.write(json.dumps(judge_clip(json.loads(line), judges)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
