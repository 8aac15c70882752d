"""The program that runs inside the judges' environment: jobs in, scores out, one JSON object per line.

    .venv-judges/bin/python src/nightingale_lab/bench/judges/worker.py --only tiny,dnsmos < jobs.jsonl

A job: {"wav": path, "reference": [clips of the speaker], "language": "en"}; only `wav` is required. For the judge
"speaker" it may also have "speakers": {name: [clips]} and "vector": true; "aligner" needs "text". The
answer keeps `wav` and adds `seconds`, one entry per judge, and `cost` in seconds:
    "tiny", "base", "moonshine": {"transcript": the words}
    "dnsmos": {"ovrl", "sig", "bak", "p808"}
    "distillmos": {"mos"}
    "speaker": {"cosine", "cosines" by name, "vector"}, each if it was asked for
    "aligner": {"words": [[word, start, end], …]} in seconds, or {"failed": why}
    "error": why a clip could not be judged; the other clips are judged nevertheless.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import types
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

JUDGES = ("tiny", "base", "moonshine", "dnsmos", "distillmos", "speaker", "aligner")
RATE_HZ = 16_000
SHORTEST_SECONDS = 0.1

Judge = Callable[[Any, dict[str, Any]], dict[str, Any]]
"""Takes samples at 16 kHz and the job."""


def make_lab_importable() -> None:
    """Make `nightingale_lab` importable without adding its environment's packages to this one."""
    if "nightingale_lab" not in sys.modules:
        lab = types.ModuleType("nightingale_lab")
        lab.__path__ = [str(Path(__file__).resolve().parents[2])]
        sys.modules["nightingale_lab"] = lab


def read_clip(path: str) -> Any:
    """Return mono float32 samples at 16 kHz."""
    import soundfile
    import soxr

    samples, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    mono = samples.mean(axis=1)
    if len(mono) < SHORTEST_SECONDS * rate_hz:
        raise ValueError(f"{len(mono) / rate_hz:.3f} s of audio; a judge needs {SHORTEST_SECONDS} s")
    return mono if rate_hz == RATE_HZ else soxr.resample(mono, rate_hz, RATE_HZ)


def speaker_judge(encoder: Any) -> Judge:
    import numpy as np

    @cache
    def voice(paths: tuple[str, ...]) -> Any:
        mean = np.mean([encoder.embed(read_clip(path)) for path in paths], axis=0)
        return mean / np.linalg.norm(mean)

    def judge(samples: Any, job: dict[str, Any]) -> dict[str, Any]:
        reference, speakers = job.get("reference"), job.get("speakers", {})
        if not (reference or speakers or job.get("vector")):
            return {}
        found = encoder.embed(samples)
        answer: dict[str, Any] = {}
        if reference:
            paths = (reference,) if isinstance(reference, str) else tuple(reference)
            answer["cosine"] = float(found @ voice(paths))
        if speakers:
            answer["cosines"] = {name: float(found @ voice(tuple(clips))) for name, clips in speakers.items()}
        if job.get("vector"):
            answer["vector"] = found.tolist()
        return answer

    return judge


def load_judge(name: str, folder: Path, *, threads: int, most_windows: int) -> Judge:
    from nightingale_lab.bench.judges.dnsmos import Dnsmos
    from nightingale_lab.bench.judges.recognizers import Moonshine, Whisper
    from nightingale_lab.bench.judges.speaker import SpeakerEncoder

    if name == "dnsmos":
        dnsmos = Dnsmos(folder / name, threads=threads, most_windows=most_windows)
        return lambda samples, _: dict(dnsmos.score(samples))
    if name == "distillmos":
        from nightingale_lab.bench.judges.distill_mos import DistillMos

        distill_mos = DistillMos(folder / name)
        return lambda samples, _: {"mos": distill_mos.score(samples)}
    if name == "speaker":
        return speaker_judge(SpeakerEncoder(folder / name / "pretrained.pt"))
    if name == "aligner":
        from nightingale_lab.bench.judges.aligner import ForcedAligner, aligner_judge

        return partial(aligner_judge, aligner=ForcedAligner())
    kind = Moonshine if name == "moonshine" else Whisper
    recognizer = kind(folder / name, threads=threads)
    return lambda samples, job: {"transcript": recognizer.transcribe(samples, job.get("language", "en"))}


def judge_clip(job: dict[str, Any], judges: dict[str, Judge]) -> dict[str, Any]:
    answer: dict[str, Any] = {"wav": job["wav"]}
    try:
        samples = read_clip(job["wav"])
        answer["seconds"] = len(samples) / RATE_HZ
        costs: dict[str, float] = {}
        for name, judge in judges.items():
            started = time.perf_counter()
            answer[name] = judge(samples, job)
            costs[name] = round(time.perf_counter() - started, 4)
        answer["cost"] = costs
    except (OSError, ValueError, RuntimeError) as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description="Score clips of speech; JSON lines in, JSON lines out.")
    parser.add_argument(
        "--only", default="tiny,base,dnsmos,distillmos,speaker", help=f"of {','.join(JUDGES)}"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dnsmos-windows", type=int, default=2, help="windows per clip; 0 scores all (slow)")
    parser.add_argument("--weights", type=Path, default=Path(sys.prefix) / "share" / "judges")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(JUDGES):
        parser.error(f"no judge named {', '.join(sorted(unknown))}; there are {', '.join(JUDGES)}")
    make_lab_importable()
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
