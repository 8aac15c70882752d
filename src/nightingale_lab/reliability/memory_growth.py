"""Does the server's memory grow with the number of requests, and does unloading the model give it back?

    python -m nightingale_lab.reliability.memory_growth                  # 2,000 requests to wren
    python -m nightingale_lab.reliability.memory_growth --tiny           # 100 with random weights

Mixed requests (short and long texts, all voices, all formats, several at a time, some cancelled) are sent to
one server. Its memory (RSS) after all of them is compared with that after the first tenth (at tiny sizes: the
first half), both while it is idle. Then the model is unloaded, loaded again for a request, and unloaded once
more: what the process keeps must not add up. The exit status is 1 if a check failed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from dataclasses import asdict
from typing import Any

import httpx

from nightingale_lab.bench import runner
from nightingale_lab.bench.runner import option
from nightingale_lab.reliability.server_process import ServerProcess, Usage, serving
from nightingale_lab.reliability.soak import least_usage, no_streams, wait_for
from nightingale_lab.reliability.soak_cases import CODECS, SpeechCase, book_case
from nightingale_lab.reliability.soak_protocols import Refused, stream_speech

GROWTH = 0.10
"""Allowed growth from a tenth of the requests to all of them."""
LONG_EVERY, CANCELLED_EVERY = 100, 10
TEXTS = (
    "Yes.",
    "Good morning.",
    "It is 5:30.",
    "Shall we go?",
    "One, two, three; four and five.",
    "The train leaves at noon.",
    "Please wait for the 2nd of May, and call me.",
)
"""Short, so that many fit into a run."""
KEEP_ALIVE_S = 5.0
KEPT_SHARE = 0.5
"""Allowed share of the memory that is still held after unloading."""


def case_of(number: int, voices: list[str], long_chars: int) -> SpeechCase:
    """Return the request of that number. One in a hundred is long."""
    voice = voices[number % len(voices)]
    if number % LONG_EVERY == LONG_EVERY // 2:
        return book_case(voice, long_chars, number)
    text = TEXTS[number % len(TEXTS)]
    return SpeechCase(text=text, voice=voice, seed=number, codec=CODECS[number % len(CODECS)])


async def send(http: httpx.AsyncClient, case: SpeechCase, left_bytes: int | None) -> None:
    """Read an answer, or its first bytes only; wait and try again while the queue is full."""
    while True:
        try:
            async for part in stream_speech(http, case):
                if left_bytes is not None and (left_bytes := left_bytes - len(part)) <= 0:
                    return
            return
        except Refused as refused:
            if refused.status != 429:
                raise
            await asyncio.sleep(0.5)


async def grow(
    server: ServerProcess, requests: int, clients: int, long_chars: int, steps: int
) -> dict[str, Any]:
    """Return the memory after each step of the requests, and after unloading twice."""
    rows: list[dict[str, Any]] = []
    numbers = iter(range(requests))
    async with httpx.AsyncClient(base_url=server.url, timeout=900) as http:
        voices = [voice["id"] for voice in (await http.get("/v1/audio/voices")).json()["voices"]]
        started = server.usage()
        for step in range(1, steps + 1):
            stop_at = requests * step // steps

            async def client(stop_at: int = stop_at) -> None:
                for number in numbers:
                    rng = random.Random(number)
                    left = rng.randrange(1, 50_000) if number % CANCELLED_EVERY == 3 else None
                    await send(http, case_of(number, voices, long_chars), left)
                    if number >= stop_at - clients:
                        return

            await asyncio.gather(*(client() for _ in range(clients)))
            if not await wait_for(lambda: no_streams(server), 120.0):
                raise SystemExit("streams are left although all clients have ended")
            rows.append({"requests": stop_at, **asdict(server.usage())})
            sys.stdout.write(f"{stop_at} requests: {server.usage()}\n")
            sys.stdout.flush()
        unloaded = []
        for _ in range(2):
            unloaded.append(await unload(server))
            await send(http, case_of(0, voices, long_chars), None)
    return {"started": asdict(started), "rows": rows, "unloaded": [asdict(usage) for usage in unloaded]}


async def unload(server: ServerProcess) -> Usage:
    """Wait until the model is unloaded, and return what the process holds then."""
    if not await wait_for(lambda: server.ready()["state"] == "idle", KEEP_ALIVE_S + 60):
        raise SystemExit("the model was not unloaded")
    return await least_usage(server)


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    steps = 2 if asked.tiny else 10
    options = ["--model", asked.model, "--profile", asked.profile, "--log-level", "warning"]
    options += ["--keep-alive", f"{KEEP_ALIVE_S}s"]
    begun = time.monotonic()
    with serving(options) as server:
        result = asyncio.run(grow(server, asked.requests, asked.clients, asked.long_chars, steps))
        errors = server.logged_problems()
    first, last = result["rows"][0]["rss_mb"], result["rows"][-1]["rss_mb"]
    again = result["unloaded"][1]["rss_mb"] / result["unloaded"][0]["rss_mb"] - 1
    result |= {
        "model": asked.model,
        "profile": asked.profile,
        "seconds": round(time.monotonic() - begun),
        "growth": round(last / first - 1, 4),
        "kept": round(result["unloaded"][0]["rss_mb"] / last, 4),
        "growth_over_unloads": round(again, 4),
        "logged_errors": errors[:10],
        "load_1m": round(os.getloadavg()[0], 1),
    }
    result["checks"] = [
        check(f"memory after {asked.requests} requests over that after {asked.requests // steps}",
              result["growth"], GROWTH),
        check("memory after a second unload over that after the first", result["growth_over_unloads"], GROWTH),
    ]  # fmt: skip
    if not asked.tiny:  # random weights have no size
        share = result["kept"]
        result["checks"].append(check("share of the memory that unloading keeps", share, KEPT_SHARE))
    runner.print_records("Memory", *result["rows"])
    runner.print_records("After unloading", *result["unloaded"])
    runner.print_checks(result["checks"])
    return result


def check(what: str, value: float, bound: float) -> dict[str, Any]:
    return {"what": what, "value": f"{value:.1%}", "bound": f"at most {bound:.0%}", "passed": value <= bound}


def main() -> None:
    runner.run(
        __doc__,
        "memory",
        measure,
        option("--model", default="wren"),
        option("--profile", default="balanced"),
        option("--requests", type=int, default=2000),
        option("--clients", type=int, default=4),
        option("--long-chars", type=int, default=1000, help="length of every 100th text"),
        tiny={"model": "noise", "requests": 100},
        failed=lambda result: runner.failed_checks(result) or bool(result["logged_errors"]),
    )


if __name__ == "__main__":
    main()
