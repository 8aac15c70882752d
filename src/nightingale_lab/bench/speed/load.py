"""Many requests at a fixed concurrency, and their statistics."""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, log
from typing import Any

from nightingale_lab.bench.speed.request import RequestTimes, Target, time_request


@dataclass(kw_only=True)
class Load:
    """Requests that were made with at most `concurrency` of them at a time."""

    concurrency: int
    times: list[RequestTimes] = field(default_factory=list)
    wall_s: float = 0.0
    failures: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Return the statistics for tables and JSON."""
        times = self.times
        gaps = [gap for one in times for gap in one.gaps_ms]
        audio = sum(one.audio_seconds for one in times)
        return {
            "concurrency": self.concurrency,
            "requests": len(times),
            "failed": len(self.failures),
            "ttfa_ms_p50": percentile([one.ttfa_ms for one in times], 0.5),
            "ttfa_ms_p95": percentile([one.ttfa_ms for one in times], 0.95),
            "rtf_p50": percentile([one.rtf for one in times], 0.5, 4),
            "rtf_p95": percentile([one.rtf for one in times], 0.95, 4),
            "total_ms_p50": percentile([one.total_ms for one in times], 0.5),
            "gap_ms_p95": percentile(gaps, 0.95),
            "underruns": sum(one.playback.underruns for one in times),
            "stalled_s": round(sum(one.playback.stalled_s for one in times), 3),
            "audio_seconds": round(audio, 2),
            "audio_seconds_per_s": round(audio / self.wall_s, 3) if self.wall_s else None,
            **stage_rates(times),
        }


def stage_rates(times: Sequence[RequestTimes]) -> dict[str, Any]:
    """Return T3's rate and each stage's ms per second of audio; empty if the target reports no stages."""
    tokens = sum(one.details.tokens for one in times)
    audio = sum(one.audio_seconds for one in times)
    if not tokens or not audio:
        return {}
    spent: Counter[str] = Counter()  # of floats
    for one in times:
        spent.update(one.details.stage_ms)
    t3_ms = spent["t3"]
    return {
        "tokens": tokens,
        "t3_ms_per_step": round(t3_ms / tokens, 3),
        "t3_tokens_per_s": round(1000 * tokens / t3_ms, 1) if t3_ms else None,
        "stage_ms_per_audio_s": {stage: round(ms / audio, 2) for stage, ms in spent.items()},
    }


def percentile(values: Sequence[float], share: float, digits: int = 1) -> float | None:
    """Return the smallest measured value that this share of them does not exceed; None without values."""
    if not values:
        return None
    place = max(0, ceil(round(share * len(values), 6)) - 1)
    return round(sorted(values)[place], digits)


def run_load(
    target: Target,
    texts: Sequence[str],
    *,
    concurrency: int,
    requests: int,
    on_request: Callable[[], object] = lambda: None,
) -> Load:
    """Make `requests` requests with the texts in turn, at most `concurrency` at a time.

    Raises:
        Interrupted: Ctrl-C. Requests in progress end first; the exception holds the load so far.
    """
    load = Load(concurrency=concurrency)
    waiting = [(texts[number % len(texts)], number) for number in range(requests)][::-1]
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                text, seed = waiting.pop()
            try:
                one = time_request(target, text, seed)
            except Exception as error:
                with lock:
                    load.failures.append(f"{type(error).__name__}: {error}")
                continue
            with lock:
                load.times.append(one)
            on_request()

    begun = time.perf_counter()
    threads = [threading.Thread(target=work, daemon=True) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # in steps, so that Ctrl-C is handled soon
    except KeyboardInterrupt:
        with lock:
            waiting.clear()
        for thread in threads:
            thread.join(30)
        raise Interrupted(load) from None
    finally:
        load.wall_s = time.perf_counter() - begun
    return load


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with what was measured before it."""

    def __init__(self, load: Load) -> None:
        super().__init__()
        self.load = load


def growth(sizes: Sequence[float], costs: Sequence[float]) -> float | None:
    """Return the exponent with which cost grows with size: 1 is in proportion."""
    pairs = {size: cost for size, cost in zip(sizes, costs, strict=True) if size > 0 and cost > 0}
    if len(pairs) < 2:
        return None
    slope, _ = statistics.linear_regression([log(s) for s in pairs], [log(c) for c in pairs.values()])
    return round(slope, 3)
