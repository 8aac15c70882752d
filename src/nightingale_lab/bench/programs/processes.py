"""One server process on all cores, or one on each core: which one makes more audio, and for how many listeners?

    python -m nightingale_lab.bench processes
    python -m nightingale_lab.bench processes --tiny      # random weights, a second for each row

Each listener sends its next request when it has the last answer, to one server in turn. An underrun is a moment at
which a player that started with the first byte has nothing left to play. Linux only: processes are pinned to cores
as `taskset` does. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import httpx

from nightingale_lab.bench import runner
from nightingale_lab.bench.runner import option
from nightingale_lab.bench.speed.load import percentile
from nightingale_lab.bench.speed.player import play
from nightingale_lab.bench.speed.targets import PCM_BYTES_PER_SECOND
from nightingale_lab.reliability.server_process import ServerProcess, serving
from nightingale_lab.reliability.soak_cases import book_case
from nightingale_lab.reliability.soak_protocols import stream_speech

LISTENERS = (1, 2, 4, 8)


async def measure(
    servers: Sequence[ServerProcess], listeners: int, seconds: float, chars: int
) -> dict[str, Any]:
    """Return what so many listeners get from these servers."""
    first_s, underruns, answers, audio_s = list[float](), 0, 0, 0.0
    begun_s = time.perf_counter()

    async def listen(number: int) -> None:
        nonlocal underruns, answers, audio_s
        url = servers[number % len(servers)].url
        async with httpx.AsyncClient(base_url=url, timeout=600) as http:
            for turn in range(1000):
                sent_s, arrivals, lengths = time.perf_counter(), list[float](), list[float]()
                async for part in stream_speech(http, book_case(None, chars, 100 * number + turn)):
                    arrivals.append(time.perf_counter() - sent_s)
                    lengths.append(len(part) / PCM_BYTES_PER_SECOND)
                first_s.append(arrivals[0])
                underruns, answers = underruns + play(arrivals, lengths).underruns, answers + 1
                audio_s += sum(lengths)
                if time.perf_counter() > begun_s + seconds:
                    return

    await asyncio.gather(*(listen(number) for number in range(listeners)))
    return {
        "listeners": listeners,
        "audio_s_per_s": round(audio_s / (time.perf_counter() - begun_s), 2),
        "first_audio_p95_ms": round(1000 * (percentile(first_s, 0.95, 4) or 0.0)),
        "underruns": underruns,
        "answers": answers,
        "memory_mb": round(sum(server.usage().rss_mb for server in servers)),
        "load_1m": round(os.getloadavg()[0], 1),
    }


def compare(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the rows of one process and of one on each core."""
    cores, rows = sorted(os.sched_getaffinity(0)), list[dict[str, Any]]()
    for processes in (1, len(cores)):
        groups = [cores] if processes == 1 else [[core] for core in cores]
        with ExitStack() as stack:
            servers = []
            for group in groups:
                # The server inherits the cores of this thread, and sizes its thread pools by them.
                os.sched_setaffinity(0, group)
                servers.append(
                    stack.enter_context(serving(["--model", asked.model, "--log-level", "warning"]))
                )
            os.sched_setaffinity(0, cores)
            asyncio.run(measure(servers, len(servers), 1.0, asked.chars))
            for listeners in LISTENERS:
                found = asyncio.run(measure(servers, listeners, asked.seconds, asked.chars))
                rows.append({"processes": processes, **found})
    runner.print_records("Processes", *rows)
    return {"model": asked.model, "chars": asked.chars, "rows": rows}


def main(arguments: Sequence[str] | None = None) -> None:
    runner.run(
        __doc__,
        "processes",
        compare,
        option("--model", default="wren"),
        option("--seconds", type=float, default=25.0, help="for each number of listeners"),
        option("--chars", type=int, default=400, help="of each text"),
        tiny={"model": "noise", "seconds": 1.0},
        arguments=arguments,
    )
