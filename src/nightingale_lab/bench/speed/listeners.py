"""Concurrent listeners, each with a voice and a player of its own.

Two patterns of arrival:

together    All listeners ask at the same moment, the worst case for first audio. When all have finished, all
            ask for their next sentence.
poisson     Callers arrive at random, independently of each other, as those of a public server do. Each hears
            one sentence and leaves. Their rate is such that on average the wanted number listens at once:
            listeners / mean length of a sentence (Little's law). The first arrivals fill the server and are
            not counted.

An underrun is counted as a player sees it: it plays in real time from its first chunk on, and each time it has
played everything before the next chunk arrives, although the utterance has not ended, counts one.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple, get_args

from nightingale_lab.bench.speed.load import percentile
from nightingale_lab.bench.speed.memory import memory_now_mb
from nightingale_lab.bench.speed.request import RequestTimes, Target, open_request, time_request

Arrivals = Literal["together", "poisson"]
ARRIVALS: tuple[Arrivals, ...] = get_args(Arrivals)
SHOWN_BY_ARRIVAL = 8
"""Up to so many listeners, the row has the first audio of each."""
LEAST_CALLERS = 20
"""Callers that are counted at least when they arrive at random."""


class Call(NamedTuple):
    """A request of one listener, made so many seconds after the begin."""

    target: Target
    text: str
    seed: int
    at_s: float = 0.0


def run_calls(calls: Sequence[Call], on_request: Callable[[], object] = lambda: None) -> list[RequestTimes]:
    """Make each call at its time, read them all at once, and return their times in this order.

    Raises:
        Exception: The first error of a call, after all of them have ended.
    """
    times: list[RequestTimes | BaseException] = [RuntimeError("not read")] * len(calls)

    def read(place: int, finish: Callable[[], RequestTimes]) -> None:
        try:
            times[place] = finish()
        except BaseException as error:
            times[place] = error
        on_request()

    threads, begun = [], time.perf_counter()
    for place, call in enumerate(calls):
        time.sleep(max(0.0, begun + call.at_s - time.perf_counter()))
        try:
            finish = open_request(call.target, call.text, call.seed)
        except Exception as error:
            times[place] = error
            break
        threads.append(threading.Thread(target=read, args=(place, finish), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()
    spoken = []
    for one in times:
        if isinstance(one, BaseException):
            raise one
        spoken.append(one)
    return spoken


def measure_listeners(
    targets: Sequence[Target],
    sentences: Sequence[str],
    listeners: int,
    *,
    arrivals: Arrivals = "together",
    rounds: int | None = None,
    on_request: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Measure so many listeners at once, and return a row of the results.

    targets: one per voice; listener number n has voice n, and they repeat if there are fewer voices.
    rounds: sentences of each listener, by default all of them.
    """
    measure = _together if arrivals == "together" else _poisson
    by_listener, wall_s = measure(targets, sentences, listeners, rounds or len(sentences), on_request)
    spoken = [one for own in by_listener for one in own]
    stalled = sum(any(one.playback.underruns for one in own) for own in by_listener)
    row: dict[str, Any] = {
        "listeners": listeners,
        "voices": min(len(targets), listeners),
        "arrivals": arrivals,
        "sentences": len(spoken),
        "underruns": sum(one.playback.underruns for one in spoken),
        "stalled_listeners": stalled,
        "stalled_share": round(stalled / len(by_listener), 4),
        "stalled_s": round(sum(one.playback.stalled_s for one in spoken), 3),
        "ttfa_ms_p50": percentile([one.ttfa_ms for one in spoken], 0.5),
        "ttfa_ms_p95": percentile([one.ttfa_ms for one in spoken], 0.95),
        "rtf_p50": percentile([one.rtf for one in spoken], 0.5, 4),
        "audio_seconds_per_s": round(sum(one.audio_seconds for one in spoken) / wall_s, 3),
        **memory_now_mb(),
    }
    if arrivals == "together" and listeners <= SHOWN_BY_ARRIVAL:
        row["ttfa_ms_by_arrival"] = [percentile([one.ttfa_ms for one in own], 0.5) for own in by_listener]
    return row


def _together(
    targets: Sequence[Target],
    sentences: Sequence[str],
    listeners: int,
    rounds: int,
    on_request: Callable[[], object],
) -> tuple[list[list[RequestTimes]], float]:
    """Return the requests of each listener, and the seconds of all rounds.

    A first round is not counted: the engine measures its rate in it.
    """
    by_listener: list[list[RequestTimes]] = []
    begun = time.perf_counter()
    for number in range(-1, rounds):
        if number <= 0:
            by_listener, begun = [[] for _ in range(listeners)], time.perf_counter()
        calls = [
            Call(
                targets[place % len(targets)],
                sentences[(number + place) % len(sentences)],
                seed=100 * (number + 1) + place,
            )
            for place in range(listeners)
        ]
        for own, one in zip(by_listener, run_calls(calls, on_request), strict=True):
            own.append(one)
    return by_listener, time.perf_counter() - begun


def _poisson(
    targets: Sequence[Target],
    sentences: Sequence[str],
    listeners: int,
    rounds: int,
    on_request: Callable[[], object],
) -> tuple[list[list[RequestTimes]], float]:
    """Return the requests of each counted caller, and the seconds from the first of them to the end."""
    known = [time_request(targets[0], text, seed).audio_seconds for seed, text in enumerate(sentences[:2])]
    gap_s = statistics.fmean(known) / listeners
    counted = max(rounds * listeners, LEAST_CALLERS)
    rng = random.Random(listeners)
    at_s = list(accumulate(rng.expovariate(1 / gap_s) for _ in range(listeners + counted)))
    calls = [
        Call(targets[number % len(targets)], sentences[number % len(sentences)], seed=number, at_s=at)
        for number, at in enumerate(at_s)
    ]
    begun = time.perf_counter()
    spoken = run_calls(calls, on_request)[listeners:]
    return [[one] for one in spoken], time.perf_counter() - begun - at_s[listeners]
