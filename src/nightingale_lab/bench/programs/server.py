"""The server's overhead over the engine, its capacity, and its behaviour under overload.

    python -m nightingale_lab.bench server                    # starts a server of its own with the model in the package
    python -m nightingale_lab.bench server --model noise --clients 32 --seconds 60 --profile exact
    python -m nightingale_lab.bench server --tiny             # two clients for a second: proves that it runs

- overhead: time from sending a request to its first byte of audio, without the engine's own time to first
  audio (`Server-Timing: ttfa`), one request at a time, by format.
- load: that many clients, each sending its next request after the end of the last. Every response must belong
  to its request: in the profile `exact` its SHA-256 is that of the same request alone. In other profiles
  samples depend on the batch, so a recognizer (`make judges`) transcribes a sample of them after the server
  has stopped: the word error rate, beside that of the same requests alone, and whose text each one says.
- overload: four times as many clients as there are places. Requests that are not served must get 429; /health
  is timed meanwhile, and afterwards one request must be served.

The client is another process than the server, on the same machine. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from nightingale.audio.samples import wav_bytes
from nightingale.errors import ConfigError
from nightingale_lab.bench import runner
from nightingale_lab.bench.judges.client import judges_python, run_judges
from nightingale_lab.bench.runner import option
from nightingale_lab.bench.speed.load import percentile
from nightingale_lab.bench.speed.targets import PCM_BYTES_PER_SECOND
from nightingale_lab.bench.wer import compare, corpus_rate
from nightingale_lab.reliability.server_process import ServerProcess, serving

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
"""A transcript is of a text if fewer of its words than this are wrong."""
SLOTS, QUEUE = 8, 64
RATE_HZ = 24_000


@dataclass
class Responses:
    """The responses to all clients of one phase."""

    statuses: Counter[int] = field(default_factory=Counter)
    first_ms: list[float] = field(default_factory=list)
    audio_seconds: float = 0.0
    wrong: int = 0
    audio: list[tuple[int, bytes]] = field(default_factory=list)
    """Request number and PCM of every response, unless the profile is `exact`."""


def text_of(number: int) -> str:
    return TEXTS[number % len(TEXTS)]


async def request(
    client: httpx.AsyncClient, number: int, form: str = "pcm"
) -> tuple[int, float, float, bytes]:
    """Return the status, the ms to the first byte of audio, those of the engine, and the audio."""
    body = {"input": text_of(number), "response_format": form, "seed": number}
    at, first_ms, audio = time.perf_counter(), 0.0, b""
    async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
        async for part in answer.aiter_raw():
            first_ms = first_ms or 1000 * (time.perf_counter() - at)
            audio += part
        timing = re.search(r"ttfa;dur=([\d.]+)", answer.headers.get("server-timing", ""))
        return answer.status_code, first_ms, float(timing[1]) if timing else 0.0, audio


async def overhead(client: httpx.AsyncClient, rounds: int) -> dict[str, float]:
    """Return the median overhead in ms by format."""
    found = {}
    for form in ("pcm", "mp3", "opus"):
        answers = [await request(client, number, form) for number in range(rounds)]
        added = [first_ms - engine_ms for _, first_ms, engine_ms, _ in answers]
        found[form] = round(statistics.median(added), 2)
    return found


async def run_clients(
    client: httpx.AsyncClient, clients: int, seconds: float, expected: dict[int, bytes], exact: bool
) -> Responses:
    seen, until = Responses(), time.perf_counter() + seconds

    async def one_client(first: int) -> None:
        number = first
        while time.perf_counter() < until:
            place = number % len(expected)
            try:
                status, first_ms, _, audio = await request(client, place)
            except httpx.HTTPError:
                status, first_ms, audio = 0, 0.0, b""
            seen.statuses[status] += 1
            if status == 200:
                seen.first_ms.append(first_ms)
                seen.audio_seconds += len(audio) / PCM_BYTES_PER_SECOND
                seen.wrong += _sha(audio) != _sha(expected[place]) if exact else not audio
                if not exact:
                    seen.audio.append((place, audio))
            elif status == 429:
                await asyncio.sleep(0.2)
            number += clients

    await asyncio.gather(*(one_client(first) for first in range(clients)))
    return seen


async def probe(
    client: httpx.AsyncClient, server: ServerProcess, took_ms: list[float], memory: list[float]
) -> None:
    """Request /health twice a second until cancelled."""
    while True:
        at = time.perf_counter()
        await client.get("/health")
        took_ms.append(1000 * (time.perf_counter() - at))
        memory.append(server.usage().rss_mb)
        await asyncio.sleep(0.5)


async def phase(
    server: ServerProcess, clients: int, seconds: float, expected: dict[int, bytes], exact: bool
) -> tuple[dict[str, Any], list[tuple[int, bytes]]]:
    """Return the row of the table, and the audio."""
    health_ms: list[float] = []
    memory: list[float] = []
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client,
        httpx.AsyncClient(base_url=server.url, timeout=30) as prober,
    ):
        probing = asyncio.create_task(probe(prober, server, health_ms, memory))
        at = time.perf_counter()
        seen = await run_clients(client, clients, seconds, expected, exact)
        took_s = time.perf_counter() - at
        probing.cancel()
    quarter = max(1, len(memory) // 4)
    row = {
        "clients": clients,
        "seconds": round(took_s, 1),
        "statuses": {str(status): count for status, count in sorted(seen.statuses.items())},
        "wrong": seen.wrong,
        "first_ms_p50": percentile(seen.first_ms, 0.5),
        "first_ms_p95": percentile(seen.first_ms, 0.95),
        "audio_seconds_per_s": round(seen.audio_seconds / took_s, 2),
        "health_ms_p95": percentile(health_ms, 0.95),
        "memory_mb": [round(statistics.mean(memory[:quarter])), round(statistics.mean(memory[-quarter:]))],
    }
    return row, seen.audio


def transcribe(
    audio: list[tuple[int, bytes]], expected: dict[int, bytes], count: int, judge: str
) -> dict[str, Any]:
    """Compare the transcripts of a sample of the load with those of the same requests alone."""
    python = judges_python()
    sample = random.Random(0).sample(audio, min(count, len(audio)))
    asked = {f"load-{place:03d}": one for place, one in enumerate(sample)}
    asked |= {f"alone-{number:03d}": (number, pcm) for number, pcm in expected.items()}
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for name, (_, pcm) in asked.items():
            path = Path(folder) / f"{name}.wav"
            samples = np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32768)
            path.write_bytes(wav_bytes(samples, RATE_HZ))
            jobs.append({"wav": str(path)})
        scores = run_judges(jobs, only=(judge,), python=python)
        words = {Path(score["wav"]).stem: score[judge]["transcript"] for score in scores}
    rates, says = {}, Counter[str]()
    for name, (number, _) in asked.items():
        by_text = {text: compare(text, words[name]) for text in TEXTS}
        own = text_of(number)
        rates[name] = by_text[own]
        nearest = min(TEXTS, key=lambda text: (by_text[text].rate, text != own))
        if name.startswith("load"):
            clear = by_text[nearest].rate < RECOGNIZED
            says["own" if clear and nearest == own else "another's" if clear else "unclear"] += 1
            if nearest != own or not clear:
                sys.stderr.write(f"expected {own!r}, recognized {words[name]!r}\n")

    def rate(kind: str) -> float | None:
        chosen = [found for name, found in rates.items() if name.startswith(kind)]
        return round(corpus_rate(chosen), 4) if chosen else None

    return {
        "recognizer": judge,
        "sampled": len(sample),
        "of": len(audio),
        "says": {kind: says[kind] for kind in ("own", "another's", "unclear")},
        "wer": rate("load"),
        "wer_alone": rate("alone"),
    }


def _sha(audio: bytes) -> str:
    return hashlib.sha256(audio).hexdigest()


async def measure(
    server: ServerProcess, clients: int, overload: int, seconds: float, exact: bool, rounds: int
) -> tuple[dict[str, Any], list[tuple[int, bytes]], dict[int, bytes]]:
    """Return the result, the audio of the load phase, and that of the same requests alone."""
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        expected = {number: (await request(client, number))[3] for number in range(len(TEXTS))}
        added = await overhead(client, rounds)
        if not seconds:
            return {"overhead_ms_p50": added}, [], {}
        load, audio = await phase(server, clients, seconds, expected, exact)
        over, _ = await phase(server, overload, seconds / 2, expected, exact)
        after = await request(client, 0)
    result = {
        "overhead_ms_p50": added,
        "load": load,
        "overload": over,
        "recovered": after[0] == 200 and (not exact or _sha(after[3]) == _sha(expected[0])),
    }
    return result, audio, expected


def measure_server(asked: argparse.Namespace) -> dict[str, Any]:
    options = ["--slots", str(SLOTS), "--max-queue", str(QUEUE), "--log-level", "warning"]
    options += ["--model", asked.model] if asked.model else []
    options += ["--profile", asked.profile] if asked.profile else []
    overload = 3 if asked.tiny else 4 * (SLOTS + QUEUE)
    with serving(options) as server:
        exact = asked.profile == "exact"
        work = measure(server, asked.clients, overload, asked.seconds, exact, asked.rounds)
        result, audio, expected = asyncio.run(work)
    if audio and asked.sample:
        try:
            result["read_back"] = transcribe(audio, expected, asked.sample, asked.judge)
        except ConfigError as error:  # without judges the rest still counts
            result["read_back"] = {"not_read": str(error)}
    for name, value in result.items():
        sys.stderr.write(f"{name}: {json.dumps(value)}\n")
    return {"model": asked.model or "default", "profile": asked.profile, **result}


def main(arguments: Sequence[str] | None = None) -> None:
    runner.run(
        __doc__,
        "server",
        measure_server,
        option("--model"),
        option("--profile", choices=["exact", "balanced"]),
        option("--clients", type=int, default=32),
        option("--seconds", type=float, default=60.0, help="of load; 0 measures the overhead only"),
        option("--rounds", type=int, default=20, help="of the overhead, for each format"),
        option("--sample", type=int, default=24, help="responses to be transcribed; 0 is none"),
        option("--judge", default="base", help="the recognizer: tiny, base or moonshine"),
        tiny={"model": "noise", "clients": 2, "seconds": 1.0, "rounds": 1, "sample": 0},
        arguments=arguments,
    )
