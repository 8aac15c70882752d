"""What the server adds to the engine, what it carries, and what it does when it is asked for more.

    python benchmarks/server.py                    # starts a server of its own: the model in the box
    python benchmarks/server.py --model noise --clients 32 --seconds 60 --profile exact

- overhead: time from sending a request to its first byte of sound, less the engine's own time to first audio
  (`Server-Timing: ttfa`), one request at a time, by format.
- load: so many clients, each asking again when it has heard the end. Every response is checked to be its own:
  in the profile `exact` its SHA-256 is that of the same request alone; otherwise that it is not empty.
- overload: four times as many clients as there are places. Who is not served must be told 429; /health is
  timed meanwhile, and afterwards one request must be served.

The client is another process than the server, on the same machine. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

TEXTS = (
    "Good morning, and welcome back.",
    "Your train leaves in ten minutes from platform four.",
    "The quick brown fox jumps over the lazy dog, and nobody minds.",
    "Shall I call a taxi, or would you rather walk through the park?",
)
OVERHEAD_ROUNDS = 20
SLOTS, QUEUE = 8, 64


@dataclass
class Server:
    url: str
    pid: int

    @property
    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) / 1000 if found else float("nan")


@dataclass
class Heard:
    """What the clients of one phase saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    first_ms: list[float] = field(default_factory=list)
    audio_seconds: float = 0.0
    wrong: int = 0


@contextmanager
def serving(model: str | None, profile: str | None) -> Iterator[Server]:
    command = [sys.executable, "-m", "nightingale", "serve", "--port", "0", "--log-level", "warning"]
    command += ["--slots", str(SLOTS), "--max-queue", str(QUEUE)]
    command += ["--model", model] if model else []
    command += ["--profile", profile] if profile else []
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        address = ""
        for line in process.stderr:
            print(line, end="", file=sys.stderr)
            if found := re.search(r"listens on (\S+)", line):
                address = found[1]
            if line.startswith("ready"):
                yield Server(address, process.pid)
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        process.wait(60)


def body(number: int, form: str = "pcm") -> dict[str, Any]:
    return {"input": TEXTS[number % len(TEXTS)], "response_format": form, "seed": number}


async def ask(client: httpx.AsyncClient, number: int, form: str = "pcm") -> tuple[int, float, float, bytes]:
    """Status, milliseconds to the first byte of sound, those of the engine, and the sound."""
    at, first_ms, sound = time.perf_counter(), 0.0, b""
    async with client.stream("POST", "/v1/audio/speech", json=body(number, form)) as answer:
        async for part in answer.aiter_raw():
            first_ms = first_ms or 1000 * (time.perf_counter() - at)
            sound += part
        timing = re.search(r"ttfa;dur=([\d.]+)", answer.headers.get("server-timing", ""))
        return answer.status_code, first_ms, float(timing[1]) if timing else 0.0, sound


async def overhead(client: httpx.AsyncClient) -> dict[str, float]:
    """Median milliseconds by format."""
    found = {}
    for form in ("pcm", "mp3", "opus"):
        added = []
        for number in range(OVERHEAD_ROUNDS):
            _, first_ms, engine_ms, _ = await ask(client, number, form)
            added.append(first_ms - engine_ms)
        found[form] = round(statistics.median(added), 2)
    return found


async def crowd(
    client: httpx.AsyncClient, clients: int, seconds: float, expected: dict[int, bytes], exact: bool
) -> Heard:
    heard, until = Heard(), time.perf_counter() + seconds

    async def one(name: int) -> None:
        number = name
        while time.perf_counter() < until:
            try:
                status, first_ms, _, sound = await ask(client, number % len(expected))
            except httpx.HTTPError:
                status, first_ms, sound = 0, 0.0, b""
            heard.statuses[status] += 1
            if status == 200:
                heard.first_ms.append(first_ms)
                heard.audio_seconds += len(sound) / 48_000
                alone = expected[number % len(expected)]
                same = _sha(sound) == _sha(alone) if exact else len(sound) > 0
                heard.wrong += not same
            elif status == 429:
                await asyncio.sleep(0.2)
            number += clients

    await asyncio.gather(*(one(name) for name in range(clients)))
    return heard


async def watch(client: httpx.AsyncClient, server: Server, took_ms: list[float], memory: list[float]) -> None:
    while True:
        at = time.perf_counter()
        await client.get("/health")
        took_ms.append(1000 * (time.perf_counter() - at))
        memory.append(server.memory_mb)
        await asyncio.sleep(0.5)


async def phase(
    server: Server, clients: int, seconds: float, expected: dict[int, bytes], exact: bool
) -> dict[str, Any]:
    limits = httpx.Limits(max_connections=None)
    health_ms: list[float] = []
    memory: list[float] = []
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client,
        httpx.AsyncClient(base_url=server.url, timeout=30) as probe,
    ):
        watching = asyncio.create_task(watch(probe, server, health_ms, memory))
        at = time.perf_counter()
        heard = await crowd(client, clients, seconds, expected, exact)
        took_s = time.perf_counter() - at
        watching.cancel()
    quarter = max(1, len(memory) // 4)
    return {
        "clients": clients,
        "seconds": round(took_s, 1),
        "statuses": {str(status): count for status, count in sorted(heard.statuses.items())},
        "wrong": heard.wrong,
        "first_ms_p50": _share(heard.first_ms, 0.5),
        "first_ms_p95": _share(heard.first_ms, 0.95),
        "audio_seconds_per_s": round(heard.audio_seconds / took_s, 2),
        "health_ms_p95": _share(health_ms, 0.95),
        "memory_mb": [round(statistics.mean(memory[:quarter])), round(statistics.mean(memory[-quarter:]))],
    }


def _share(values: list[float], share: float) -> float | None:
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))], 1) if values else None


def _sha(sound: bytes) -> str:
    return hashlib.sha256(sound).hexdigest()


async def measure(server: Server, clients: int, seconds: float, profile: str | None) -> dict[str, Any]:
    exact = profile == "exact"
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        expected = {number: (await ask(client, number))[3] for number in range(2 * len(TEXTS))}
        added = await overhead(client)
        if not seconds:
            return {"overhead_ms_p50": added}
        load = await phase(server, clients, seconds, expected, exact)
        over = await phase(server, 4 * (SLOTS + QUEUE), seconds / 2, expected, exact)
        after = await ask(client, 0)
    return {
        "overhead_ms_p50": added,
        "load": load,
        "overload": over,
        "recovered": after[0] == 200 and (not exact or _sha(after[3]) == _sha(expected[0])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--profile", choices=["exact", "balanced"])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load; 0 measures the overhead only")
    asked = parser.parse_args()
    with serving(asked.model, asked.profile) as server:
        result = asyncio.run(measure(server, asked.clients, asked.seconds, asked.profile))
    for name, value in result.items():
        print(f"{name}: {json.dumps(value)}", file=sys.stderr)
    machine = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 1),
    }
    print(json.dumps({"model": asked.model or "default", "profile": asked.profile, **machine, **result}))


if __name__ == "__main__":
    main()
