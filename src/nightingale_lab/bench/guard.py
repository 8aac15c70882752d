"""Detect performance regressions: ratios to a fixed unit of work, against the last accepted run.

    python -m nightingale_lab.bench.guard [--accept] [--model M]        (make bench-check)

Times of different days cannot be compared, since other programs use the machine too. So every time is divided
by that of a fixed piece of torch work done right before and after it in the same thread, and only these
ratios are compared. Their noise is measured in the same run: a quantity is slower if it grew by more than a
tenth and by more than three times the noise of both runs. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightingale_lab.bench import store
from nightingale_lab.bench.speed.bench_texts import TEXTS

KIND = "guard"
ROUNDS, LEAST_ROUNDS = 40, 5
BUDGET_S = 100.0
"""No round is begun later than this, once there were the fewest rounds."""
ALLOWED = 0.10
NOISES = 3.0
BATCH = 4
SLOWER = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A quantity over the unit of work."""

    value: float
    noise: float
    """Standard error of the median, as a share of it."""
    rounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    name: str
    before: float
    now: float
    noise: float

    @property
    def change(self) -> float:
        return self.now / self.before - 1.0

    @property
    def limit(self) -> float:
        return max(ALLOWED, NOISES * self.noise)

    @property
    def slower(self) -> bool:
        return self.change > self.limit

    @property
    def line(self) -> str:
        verdict = "SLOWER" if self.slower else "faster" if self.change < -self.limit else "the same"
        return (
            f"{self.name:<28}{self.before:>9.3f}{self.now:>9.3f}{self.change:>+9.1%}"
            f"{self.noise:>8.1%}{self.limit:>8.1%}  {verdict}"
        )


def summary(ratios: Sequence[float]) -> Measured:
    """Return the median and its standard error, from the median deviation, which ignores single delays."""
    middle = statistics.median(ratios)
    deviation = statistics.median(abs(ratio - middle) for ratio in ratios)
    error = 1.4826 * deviation * 1.2533 / len(ratios) ** 0.5
    return Measured(value=middle, noise=error / middle if middle else 0.0, rounds=len(ratios))


def compare(before: Mapping[str, Mapping[str, float]], now: Mapping[str, Measured]) -> list[Change]:
    """Return the changes of the quantities that both runs have."""
    return [
        Change(
            name=name,
            before=before[name]["value"],
            now=measured.value,
            noise=float((before[name]["noise"] ** 2 + measured.noise**2) ** 0.5),
        )
        for name, measured in now.items()
        if name in before
    ]


def last_accepted(lines: Sequence[Mapping[str, Any]], like: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the newest accepted line of the same model, kind of machine and number of threads."""
    keys = ("arch", "cpu", "cores", "threads", "gpu")
    alike = [
        line
        for line in lines
        if line.get("accepted")
        and line["fingerprint"] == like["fingerprint"]
        and all(line["machine"].get(key) == like["machine"].get(key) for key in keys)
    ]
    return alike[-1] if alike else None


def measure(
    acts: Mapping[str, Callable[[int], float]],
    unit: Callable[[], object],
    rounds: int,
    budget_s: float = BUDGET_S,
) -> dict[str, Measured]:
    """Run every act once per round. Each returns the seconds that count."""
    ratios: dict[str, list[float]] = {name: [] for name in acts}
    begun = time.monotonic()
    for number in range(rounds):
        if number >= LEAST_ROUNDS and time.monotonic() - begun > budget_s:
            break
        for name, act in acts.items():
            before = _seconds(unit)
            took = act(number)
            after = _seconds(unit)
            ratios[name].append(2 * took / (before + after))
    return {name: summary(values) for name, values in ratios.items()}


def _seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def unit_of_work() -> Callable[[], object]:
    """Return about 30 ms of work: matrix-vector products like T3's, matrix products like the vocoder's."""
    import torch

    rng = torch.Generator().manual_seed(0)
    tall, vector = torch.randn(4096, 1024, generator=rng), torch.randn(1024, generator=rng)
    left, right = torch.randn(512, 512, generator=rng), torch.randn(512, 512, generator=rng)

    def work() -> None:
        for _ in range(3):
            torch.mv(tall, vector)
            torch.mm(left, right)

    return work


def quantities(model: Any) -> dict[str, Callable[[int], float]]:
    """Return the measured quantities of a nightingale.engine.load.Model."""
    from nightingale.engine.tts import TTS

    streaming, exact = TTS.over(model, "balanced"), TTS.over(model, "exact")
    text = TEXTS["word"]

    def first_audio(seed: int) -> float:
        stream = streaming.stream(text, seed=seed)
        list(stream)
        return stream.metrics.ttfa_ms / 1000

    def per_audio(tts: TTS, seed: int) -> float:
        return tts.say(text, seed=seed).metrics.rtf

    def batched(seed: int) -> float:
        begun = time.perf_counter()
        audios = streaming.say_many([text] * BATCH, seed=seed)
        return (time.perf_counter() - begun) / sum(audio.seconds for audio in audios)

    return {
        "first audio": first_audio,
        "a second of audio, balanced": lambda seed: per_audio(streaming, seed),
        "a second of audio, exact": lambda seed: per_audio(exact, seed),
        f"a second of audio, {BATCH} at once": batched,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="nightingale_lab.bench.guard", description=__doc__)
    parser.add_argument("--model", default=None, help="default: the model in the package")
    parser.add_argument("--accept", action="store_true", help="compare later runs with this one")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at most")
    parser.add_argument("--results", type=Path, default=store.results_folder())
    asked = parser.parse_args(argv)
    begun = time.monotonic()
    from nightingale_lab.reference import load

    model = load(asked.model)
    acts = quantities(model)
    for act in acts.values():
        act(0)  # warm up
    now = measure(acts, unit_of_work(), asked.rounds)
    values = {name: {"value": one.value, "noise": one.noise} for name, one in now.items()}
    about = {"kind": KIND, "model": model.name, "fingerprint": model.fingerprint, "accepted": asked.accept}
    line = store.signed({**about, "values": values})
    before = last_accepted(store.read_lines(asked.results, KIND), line) if asked.results else None
    changes = compare(before["values"], now) if before else []
    sys.stdout.write(render(changes, before, now) + "\n")
    if before is None:
        hint = "Later runs are compared with this one." if asked.accept else "Accept one with --accept."
        sys.stdout.write(f"Nothing accepted so far for this model on this machine. {hint}\n")
    rounds = max((one.rounds for one in now.values()), default=0)
    took_s, load_1m = time.monotonic() - begun, line["machine"].get("load_1m")
    sys.stdout.write(f"{rounds} rounds in {took_s:.0f} s; load of the last minute {load_1m}\n")
    if asked.accept:
        store.append(line, KIND, asked.results)
    slower = [one.name for one in changes if one.slower]
    sys.stdout.write(json.dumps({**line, "slower": slower}) + "\n")
    return SLOWER if slower and not asked.accept else 0


def render(changes: Sequence[Change], before: Mapping[str, Any] | None, now: Mapping[str, Measured]) -> str:
    if before is None:
        lines = [f"{name:<28}{one.value:>9.3f}  noise {one.noise:.1%}" for name, one in now.items()]
        return "\n".join(lines)
    head = f"{'times the unit of work':<28}{'accepted':>9}{'now':>9}{'change':>9}{'noise':>8}{'limit':>8}"
    return "\n".join(
        [f"against {store.commit_label(before)} of {before['date']}", head, *(one.line for one in changes)]
    )


if __name__ == "__main__":
    sys.exit(main())
