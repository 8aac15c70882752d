"""What the server adds to the engine, what it carries, and what it does when it is asked for more.

    python benchmarks/server.py                    # starts a server of its own: the model in the box
    python benchmarks/server.py --model noise --clients 32 --seconds 60 --profile exact

- overhead: time from sending a request to its first byte of sound, less the engine's own time to first audio
  (`Server-Timing: ttfa`), one request at a time, by format.
- load: so many clients, each asking again when it has heard the end. Every response is checked to be its own:
  in the profile `exact` its SHA-256 is that of the same request alone. Otherwise sound depends on the company
  it was made in, so a recognizer (`make judges`) reads a sample of them back once the server has stopped:
  how many words are wrong, beside those of the same requests alone, and whether one says another's text.
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
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import wave
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from nightingale.errors import ConfigError

TEXTS = (
    "Good morning, and welcome back.",
    "Your train leaves in ten minutes from platform four.",
    "The quick brown fox jumps over the lazy dog, and nobody minds.",
    "Shall I call a taxi, or would you rather walk through the park?",
    "My sister bought a green bicycle for her birthday last summer.",
    "Please put the milk back in the fridge before you leave the house.",
    "The old captain never told anyone what he had seen on the island.",
    "We have time for one more question, and then we must go home.",
)
RECOGNIZED = 0.5
"""A text is what was heard if fewer of its words than this are wrong."""
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
    sounds: list[tuple[int, bytes]] = field(default_factory=list)
    """Every response with its request's number, in the profiles where a recognizer will read some."""


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


async def overhead(client: httpx.AsyncClient, rounds: int) -> dict[str, float]:
    """Median milliseconds by format."""
    found = {}
    for form in ("pcm", "mp3", "opus"):
        added = []
        for number in range(rounds):
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
                if not exact:
                    heard.sounds.append((number % len(expected), sound))
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
) -> tuple[dict[str, Any], list[tuple[int, bytes]]]:
    """The row of the table, and what was heard."""
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
    row = {
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
    return row, heard.sounds


def read_back(
    sounds: list[tuple[int, bytes]], expected: dict[int, bytes], count: int, judge: str
) -> dict[str, Any]:
    """What a recognizer hears in a sample of the load, and in the same requests alone."""
    from nightingale_lab.bench.judges.client import judges_python, run_judges
    from nightingale_lab.bench.wer import compare, corpus_rate

    python = judges_python()
    sample = random.Random(0).sample(sounds, min(count, len(sounds)))
    asked = {f"load-{place:03d}": one for place, one in enumerate(sample)}
    asked |= {f"alone-{number:03d}": (number, sound) for number, sound in expected.items()}
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for name, (number, sound) in asked.items():
            path = Path(folder) / f"{name}.wav"
            with wave.open(str(path), "wb") as file:
                file.setparams((1, 2, 24_000, 0, "NONE", "not compressed"))
                file.writeframes(sound)
            jobs.append({"wav": str(path), "text": body(number)["input"]})
        scores = run_judges(jobs, only=(judge,), python=python)
        words = {Path(score["wav"]).stem: score[judge]["heard"] for score in scores}
    rates, said = {}, Counter[str]()
    for name, (number, _) in asked.items():
        by_text = {text: compare(text, words[name]) for text in TEXTS}
        own = body(number)["input"]
        rates[name] = by_text[own]
        nearest = min(TEXTS, key=lambda text: (by_text[text].rate, text != own))
        if name.startswith("load"):
            clear = by_text[nearest].rate < RECOGNIZED
            said["own" if clear and nearest == own else "another's" if clear else "unclear"] += 1
            if nearest != own or not clear:
                print(f"asked for {own!r}, heard {words[name]!r}", file=sys.stderr)

    def rate(kind: str) -> float | None:
        chosen = [found for name, found in rates.items() if name.startswith(kind)]
        return round(corpus_rate(chosen), 4) if chosen else None

    return {
        "recognizer": judge,
        "sampled": len(sample),
        "of": len(sounds),
        "says": {kind: said[kind] for kind in ("own", "another's", "unclear")},
        "wer": rate("load"),
        "wer_alone": rate("alone"),
    }


def _share(values: list[float], share: float) -> float | None:
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))], 1) if values else None


def _sha(sound: bytes) -> str:
    return hashlib.sha256(sound).hexdigest()


async def measure(
    server: Server, clients: int, seconds: float, profile: str | None, rounds: int
) -> tuple[dict[str, Any], list[tuple[int, bytes]], dict[int, bytes]]:
    """The result, what was heard under load, and the same requests alone."""
    exact = profile == "exact"
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        expected = {number: (await ask(client, number))[3] for number in range(len(TEXTS))}
        added = await overhead(client, rounds)
        if not seconds:
            return {"overhead_ms_p50": added}, [], {}
        load, sounds = await phase(server, clients, seconds, expected, exact)
        over, _ = await phase(server, 4 * (SLOTS + QUEUE), seconds / 2, expected, exact)
        after = await ask(client, 0)
    result = {
        "overhead_ms_p50": added,
        "load": load,
        "overload": over,
        "recovered": after[0] == 200 and (not exact or _sha(after[3]) == _sha(expected[0])),
    }
    return result, sounds, expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--profile", choices=["exact", "balanced"])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load; 0 measures the overhead only")
    parser.add_argument("--rounds", type=int, default=20, help="of the overhead, for each format")
    parser.add_argument("--sample", type=int, default=24, help="responses that are read back; 0 is none")
    parser.add_argument("--judge", default="base", help="who reads them: tiny, base or moonshine")
    asked = parser.parse_args()
    with serving(asked.model, asked.profile) as server:
        work = measure(server, asked.clients, asked.seconds, asked.profile, asked.rounds)
        result, sounds, expected = asyncio.run(work)
    if sounds and asked.sample:
        try:
            result["read_back"] = read_back(sounds, expected, asked.sample, asked.judge)
        except ConfigError as error:  # without judges the rest still counts, and says what is missing
            result["read_back"] = {"not_read": str(error)}
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
