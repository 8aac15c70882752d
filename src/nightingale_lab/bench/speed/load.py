"""Many requests: one after another, or so many at a time; and what they were like together."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nightingale_lab.bench.speed.request import Speaks, Took, take


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """So many requests at a time, for a while."""

    concurrency: int
    took: tuple[Took, ...]
    wall_s: float
    failed: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        """The numbers of this crowd, for the table and for the line of JSON."""
        took = self.took
        gaps = [gap for one in took for gap in one.gaps_ms]
        audio = sum(one.audio_seconds for one in took)
        return {
            "concurrency": self.concurrency,
            "requests": len(took),
            "failed": len(self.failed),
            "ttfa_ms_p50": share([one.ttfa_ms for one in took], 0.5),
            "ttfa_ms_p95": share([one.ttfa_ms for one in took], 0.95),
            "rtf_p50": share([one.rtf for one in took], 0.5, 4),
            "rtf_p95": share([one.rtf for one in took], 0.95, 4),
            "total_ms_p50": share([one.total_ms for one in took], 0.5),
            "gap_ms_p95": share(gaps, 0.95),
            "underruns": sum(one.playback.underruns for one in took),
            "stalled_s": round(sum(one.playback.stalled_s for one in took), 3),
            "audio_seconds": round(audio, 2),
            "audio_seconds_per_s": round(audio / self.wall_s, 3) if self.wall_s else None,
            **stages(took),
        }


def stages(took: Sequence[Took]) -> dict[str, Any]:
    """T3's rate, and each stage's milliseconds for a second of audio; nothing where nobody tells."""
    tokens = sum(one.tokens for one in took)
    audio = sum(one.audio_seconds for one in took)
    if not tokens or not audio:
        return {}
    spent: dict[str, float] = {}
    for one in took:
        for stage, ms in one.stage_ms.items():
            spent[stage] = spent.get(stage, 0.0) + ms
    t3_ms = spent.get("t3", 0.0)
    return {
        "tokens": tokens,
        "t3_ms_per_step": round(t3_ms / tokens, 3),
        "t3_tokens_per_s": round(1000 * tokens / t3_ms, 1) if t3_ms else None,
        "stage_ms_per_audio_s": {stage: round(ms / audio, 2) for stage, ms in spent.items()},
    }


def share(values: Sequence[float], part: float, digits: int = 1) -> float | None:
    """The value that this part of them does not exceed; nothing of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return round(
        ordered[min(len(ordered) - 1, max(0, -(-int(1000 * part) * len(ordered) // 1000) - 1))], digits
    )


@dataclass
class _Line:
    """Requests still to be made; shared by the threads."""

    jobs: list[tuple[str, int]]
    took: list[Took] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    stopped: bool = False


def crowd(
    speaks: Speaks,
    texts: Sequence[str],
    *,
    concurrency: int,
    requests: int,
    on_request: Callable[[], object] = lambda: None,
) -> Crowd:
    """`requests` of them, each text in turn, never more than `concurrency` at a time.

    A Ctrl-C lets the requests under way end, and gives what there is.
    """
    line = _Line(jobs=[(texts[number % len(texts)], number) for number in range(requests)][::-1])
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if line.stopped or not line.jobs:
                    return
                text, seed = line.jobs.pop()
            try:
                one = take(speaks, text, seed)
            except Exception as error:
                with lock:
                    line.failed.append(f"{type(error).__name__}: {error}")
                continue
            with lock:
                line.took.append(one)
            on_request()

    begun = time.perf_counter()
    threads = [threading.Thread(target=work, daemon=True) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # in steps, so that Ctrl-C is heard
    except KeyboardInterrupt:
        line.stopped = True
        for thread in threads:
            thread.join(30)
        raise Interrupted(_result(concurrency, line, begun)) from None
    return _result(concurrency, line, begun)


def _result(concurrency: int, line: _Line, begun: float) -> Crowd:
    wall = time.perf_counter() - begun
    return Crowd(concurrency=concurrency, took=tuple(line.took), wall_s=wall, failed=tuple(line.failed))


class Interrupted(KeyboardInterrupt):
    """A Ctrl-C, with what was measured before it."""

    def __init__(self, crowd: Crowd) -> None:
        super().__init__()
        self.crowd = crowd


def growth(sizes: Sequence[float], costs: Sequence[float]) -> float | None:
    """The exponent with which cost grows with size: 1 is in proportion, less is better than that."""
    pairs = {size: cost for size, cost in zip(sizes, costs, strict=True) if size > 0 and cost > 0}
    if len(pairs) < 2:
        return None
    from math import log

    slope, _ = statistics.linear_regression([log(s) for s in pairs], [log(c) for c in pairs.values()])
    return round(slope, 3)
