"""Four times as many listeners as the server can supply: those that are admitted must have no underruns.

    python -m nightingale_lab.reliability.overload
    python -m nightingale_lab.reliability.overload --tiny      # a few seconds with random weights

Each listener sends a text of several sentences, reads the answer as it arrives and plays it in real time from
its first byte on; then it sends the next one. The server admits as many as it can keep supplied
(`max_streams="auto"`), the others wait, and what exceeds the queue is answered 429. An underrun is a moment
at which a listener that has started to play has nothing left to play.

The measured `rate` is printed beside the underruns: below 1 the machine, or what other programs leave of it,
cannot supply a single listener. The exit status is 1 if a check failed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from nightingale_lab.bench import runner
from nightingale_lab.bench.runner import option
from nightingale_lab.bench.speed.load import percentile
from nightingale_lab.bench.speed.player import Playback, play
from nightingale_lab.bench.speed.targets import PCM_BYTES_PER_SECOND
from nightingale_lab.reliability.server_process import ServerProcess, serving
from nightingale_lab.reliability.soak_cases import book_case
from nightingale_lab.reliability.soak_protocols import Refused, stream_speech

OVERLOAD = 4
WARM_UP_REQUESTS = 3
"""Requests one after another from which the server measures its rate."""
MAX_QUEUE = 4
"""Small, so that a part of the requests is refused."""


@dataclass
class Answers:
    """Answers of all listeners."""

    playbacks: list[Playback] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    load_1m: list[float] = field(default_factory=list)


async def listen(http: httpx.AsyncClient, chars: int, seed: int, answers: Answers) -> None:
    begun, arrivals, lengths = time.perf_counter(), list[float](), list[float]()
    try:
        async for part in stream_speech(http, book_case(None, chars, seed)):
            arrivals.append(time.perf_counter() - begun)
            lengths.append(len(part) / PCM_BYTES_PER_SECOND)
    except Refused as refused:
        answers.statuses[refused.status] += 1
        if refused.status == 429:
            await asyncio.sleep(1.0)
        return
    except httpx.HTTPError as error:
        answers.failures.append(repr(error))
        return
    answers.statuses[200] += 1
    answers.playbacks.append(play(arrivals, lengths))
    answers.first_s.append(arrivals[0])
    # A player is still playing what it has.
    await asyncio.sleep(max(0.0, arrivals[0] + sum(lengths) - (time.perf_counter() - begun)))


async def overload(server: ServerProcess, seconds: float, chars: int, seed: int) -> dict[str, Any]:
    answers, rng = Answers(), random.Random(seed)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as http:
        for number in range(WARM_UP_REQUESTS):
            await listen(http, chars, number, Answers())
        before = server.ready()
        capacity = before["capacity"] or 1
        listeners = OVERLOAD * capacity
        until = time.monotonic() + seconds

        async def client() -> None:
            await asyncio.sleep(rng.uniform(0, 2))
            while time.monotonic() < until:
                await listen(http, chars, rng.randrange(1000), answers)

        async def watch() -> None:
            while True:
                said = (await http.get("/ready")).json()
                answers.rates += [said["rate"]] if said["rate"] else []
                answers.load_1m.append(os.getloadavg()[0])
                await asyncio.sleep(1.0)

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(client() for _ in range(listeners)))
        watching.cancel()
    stalled = [one for one in answers.playbacks if one.underruns]
    return {
        "capacity": capacity,
        "listeners": listeners,
        "seconds": seconds,
        "statuses": {str(status): count for status, count in sorted(answers.statuses.items())},
        "failures": answers.failures[:10],
        "answers": len(answers.playbacks),
        "answers_with_underruns": len(stalled),
        "underruns": sum(one.underruns for one in stalled),
        "longest_stall_s": round(max((one.stalled_s for one in stalled), default=0.0), 3),
        "first_audio_s": {
            "p50": percentile(answers.first_s, 0.5, 2),
            "p95": percentile(answers.first_s, 0.95, 2),
        },
        "rate": {"least": min(answers.rates, default=None), "median": percentile(answers.rates, 0.5, 2)},
        "load_1m": {"median": percentile(answers.load_1m, 0.5), "max": percentile(answers.load_1m, 1.0)},
    }


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    options = ["--model", asked.model, "--profile", asked.profile, "--log-level", "warning"]
    with serving([*options, "--max-streams", "auto", "--max-queue", str(MAX_QUEUE)]) as server:
        result = asyncio.run(overload(server, asked.seconds, asked.chars, asked.seed))
    result |= {"model": asked.model, "profile": asked.profile, "chars": asked.chars}
    others = set(result["statuses"]) - {"200", "429"}
    passed = not result["underruns"] and not others and not result["failures"] and result["answers"] > 0
    runner.print_rows("Overload", {name: {"": value} for name, value in result.items()})
    runner.report("\nPASS" if passed else "\nFAIL")
    return {**result, "passed": passed}


def main() -> None:
    runner.run(
        __doc__,
        "overload",
        measure,
        option("--model", default="wren"),
        option("--profile", default="balanced"),
        option("--seconds", type=float, default=120.0),
        option("--chars", type=int, default=400, help="of each text"),
        option("--seed", type=int, default=0),
        tiny={"model": "noise", "seconds": 3.0, "chars": 200},
        failed=lambda result: not result["passed"],
    )


if __name__ == "__main__":
    main()
