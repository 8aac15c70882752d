"""A cluster on one machine: what its proxy adds, how it grows with replicas, a killed replica, and batches.

    python -m nightingale_lab.bench cluster                       # all sections, some minutes; needs the extra `ray`
    python -m nightingale_lab.bench cluster --only latency,batch
    python -m nightingale_lab.bench cluster --tiny                # one of everything: proves that it runs

The engine is one whose timing is given by numbers (`nightingale_lab.bench.paced_service`), so that many replicas run
on two cores as they would on as many GPUs.

- latency: time to the first byte of audio through Ray's proxy, and from the same server without Ray. The two are
  asked in turns, so that other work on the machine affects both.
- growth: listeners that 1, 2, 4 and 8 replicas supply at once, when a quarter more would listen: answers that
  play, averaged over a window. `efficiency` is that over the number of replicas times what one of them supplies; `late`
  is the share of chunks that came too late for a player with a buffer of a second.
- arrivals: listeners arrive at random at two replicas. How many listen and how long they wait, measured and by the
  simulator of fleets (`nightingale_lab.bench.fleet`), which is given the same arrivals and the service's timing.
- kill: 20 streams on two replicas, one of which is killed. Streams that ended early, those of the other replica that
  did not end well, requests without audio yet that failed, and the time until a new replica serves.
- batch: rows through Ray Data, which also writes files, over the time that the engine itself takes for them: the mean
  of a run before and one after, with as many rows open at a time.

The last line is JSON. Ray's processes end with the script.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from nightingale_lab.bench import runner
from nightingale_lab.bench.fleet import Fleet, simulate
from nightingale_lab.bench.replica_processes import replica_processes
from nightingale_lab.bench.runner import option, print_records, print_table
from nightingale_lab.bench.speed.load import percentile

SERVICE = "nightingale_lab.bench.paced_service:PacedService"
PORTS = {"cluster": 8791, "single": 8792}
CAPACITY = 8
BYTES_PER_S = 48_000
BUFFER_S = 1.0
SIZES: dict[str, Any] = {
    "rounds": 150,
    "replicas": (1, 2, 4, 8),
    "window_s": 18.0,
    "streams": 20,
    "rows": 240,
}
SIZES["arrivals_s"] = 90.0
ARRIVALS_PER_S = 3.2
STEP_S = 0.02
OFFERED = 1.25
"""Clients over the capacity, so that a place that becomes free is taken at once."""
RETRY_S = 1.0
"""Pause of a client that was refused; `Retry-After` would be as long as an answer, and leave places free."""
SINGLE_SERVER = """
import sys, json, uvicorn
from nightingale.server.app import create_app
from nightingale.server.settings import ServerSettings
from nightingale_lab.bench.paced_service import PacedService
settings = ServerSettings(**json.loads(sys.argv[1]))
uvicorn.run(create_app(settings, PacedService(settings)), port=int(sys.argv[2]), log_level="error", access_log=False)
"""


def paced(**options: float) -> dict[str, Any]:
    """Return settings of a server with the paced service."""
    return {"max_queue": 0, "option": {name: str(value) for name, value in options.items()}}


def deploy(replicas: int, server: dict[str, Any]) -> None:
    from ray import serve

    from nightingale.ray import build_app

    settings = {"replicas": str(replicas), "cpus_per_replica": 0.1, "grace_s": 5, "metrics_interval_s": 0.5}
    serve.run(build_app({**settings, "service": SERVICE, "server": server}), name="nightingale")


def client_of(name: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{PORTS[name]}", timeout=60, limits=limits)


async def listen(client: httpx.AsyncClient) -> dict[str, Any]:
    """Play one answer; return its status, replica, arrival times of its parts, and whether it ended well."""
    started_s, parts, replica, status, queued = time.perf_counter(), [], "", 0, None
    body = {"input": "Hello.", "response_format": "pcm"}
    try:
        async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
            replica, status = answer.headers.get("x-replica", ""), answer.status_code
            queued = re.search(r"queue;dur=([\d.]+)", answer.headers.get("server-timing", ""))
            async for part in answer.aiter_raw():
                parts.append((time.perf_counter(), len(part) / BYTES_PER_S))
    except httpx.HTTPError:
        status = -1
    queue_s = float(queued[1]) / 1000 if queued else 0.0
    found = {"status": status, "replica": replica, "parts": parts, "queue_s": queue_s}
    return {**found, "started_s": started_s, "ended_s": time.perf_counter()}


def first_ms(answer: dict[str, Any]) -> float:
    return float(1000 * (answer["parts"][0][0] - answer["started_s"]))


@contextmanager
def single_server(server: dict[str, Any]) -> Iterator[None]:
    command = [sys.executable, "-c", SINGLE_SERVER, json.dumps(server), str(PORTS["single"])]
    process = subprocess.Popen(command)
    try:
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            try:
                if httpx.get(f"http://127.0.0.1:{PORTS['single']}/ready").status_code == 200:
                    break
            except httpx.ConnectError:
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(20)


def latency() -> dict[str, Any]:
    server = paced(ttfa=0.05, seconds=0.2, block=0.1, capacity=CAPACITY)
    deploy(2, server)

    async def measure() -> dict[str, list[float]]:
        times: dict[str, list[float]] = {"cluster": [], "single": []}
        async with client_of("cluster") as cluster, client_of("single") as single:
            for number in range(SIZES["rounds"] + 5):
                for name, client in (("cluster", cluster), ("single", single)):
                    answer = await listen(client)
                    if number >= 5:  # after connections and caches are there
                        times[name].append(first_ms(answer))
        return times

    with single_server(server):
        times = asyncio.run(measure())
    pairs = list(zip(times["cluster"], times["single"], strict=True))
    added = [one - other for one, other in pairs]
    found = {
        "added_p50_ms": round(statistics.median(added), 2),
        "added_p95_ms": percentile(added, 0.95, 2),
        "cluster_p50_ms": round(statistics.median(times["cluster"]), 2),
        "single_p50_ms": round(statistics.median(times["single"]), 2),
        "rounds": len(added),
    }
    print_records("Time to first audio", found)
    return found


def growth() -> dict[str, Any]:
    server = paced(ttfa=0.1, seconds=6.0, block=1.0, capacity=CAPACITY)
    rows: dict[int, dict[str, Any]] = {}
    for replicas in SIZES["replicas"]:
        deploy(replicas, server)
        rows[replicas] = asyncio.run(offer(round(OFFERED * CAPACITY * replicas)))
    one = rows[SIZES["replicas"][0]]["listeners"]
    for replicas, row in rows.items():
        row["efficiency"] = round(row["listeners"] / (one * replicas), 3)
    print_table(
        f"Listeners that are supplied at once; each replica has capacity for {CAPACITY}",
        ("replicas", "offered", "listeners", "efficiency", "late", "refused"),
        [
            (n, round(OFFERED * CAPACITY * n), r["listeners"], r["efficiency"], r["late"], r["refused"])
            for n, r in rows.items()
        ],
    )
    return {str(replicas): row for replicas, row in rows.items()}


async def offer(clients: int) -> dict[str, Any]:
    """Let so many clients listen again and again; return what arrived in a window after the start."""
    answers: list[dict[str, Any]] = []
    from_s = time.perf_counter() + 3.0
    until_s = from_s + SIZES["window_s"]

    async def one_client(client: httpx.AsyncClient) -> None:
        while time.perf_counter() < until_s:
            answer = await listen(client)
            answers.append(answer)
            if answer["status"] != 200:
                await asyncio.sleep(RETRY_S)

    async with client_of("cluster") as client:
        await asyncio.gather(*(one_client(client) for _ in range(clients)))
    played = [answer for answer in answers if answer["status"] == 200]
    chunks = late = 0
    for answer in played:
        begun_s, got_s = answer["parts"][0][0], 0.0
        for at_s, length_s in answer["parts"]:
            chunks, late = chunks + 1, late + (at_s > begun_s + got_s + BUFFER_S)
            got_s += length_s
    playing_s = [
        min(answer["ended_s"], until_s) - max(answer["parts"][0][0], from_s)
        for answer in played
        if answer["ended_s"] > from_s and answer["parts"][0][0] < until_s
    ]
    return {
        "listeners": round(sum(playing_s) / SIZES["window_s"], 2),
        "late": round(late / max(1, chunks), 4),
        "refused": sum(answer["status"] == 429 for answer in answers),
        "failed": sum(answer["status"] not in (200, 429) for answer in answers),
        "first_audio_p50_ms": round(statistics.median(first_ms(answer) for answer in played), 1),
    }


def arrivals() -> dict[str, Any]:
    """Let listeners arrive at random, and let the simulator of fleets say what happens with the same arrivals."""
    rng, seconds = random.Random(1), SIZES["arrivals_s"]
    times_s = [0.0]
    while times_s[-1] < seconds:
        times_s.append(times_s[-1] + rng.expovariate(ARRIVALS_PER_S))
    timing = {"ttfa": 0.1, "seconds": 2.0}
    deploy(2, {**paced(**timing, block=0.5, capacity=CAPACITY // 2), "max_queue": 64})

    async def run() -> list[dict[str, Any]]:
        async with client_of("cluster") as client:
            await asyncio.gather(*(listen(client) for _ in range(4)))  # opens connections
            started_s = time.perf_counter()

            async def arrive(at_s: float) -> dict[str, Any]:
                await asyncio.sleep(max(0.0, started_s + at_s - time.perf_counter()))
                return await listen(client)

            return await asyncio.gather(*(arrive(at_s) for at_s in times_s))

    answers = asyncio.run(run())
    assert {answer["status"] for answer in answers} == {200}, "requests failed, so their times mean nothing"
    waits_s = [answer["queue_s"] for answer in answers]
    held_s = [answer["ended_s"] - answer["started_s"] - answer["queue_s"] for answer in answers]
    real = {
        "listeners_mean": sum(held_s) / times_s[-1],
        "wait_mean_s": statistics.mean(waits_s),
        "wait_p95_s": percentile(waits_s, 0.95, 3),
        "waited": sum(wait_s > STEP_S for wait_s in waits_s) / len(waits_s),
    }
    counts = np.zeros(round((times_s[-1] + 10) / STEP_S), np.int64)
    for at_s in times_s:
        counts[int(at_s / STEP_S)] += 1
    fleet = Fleet(capacity=CAPACITY // 2, load_s=0.0, least=2, largest=2)
    simulated = simulate(counts, STEP_S, [sum(timing.values())], fleet, start=2)
    other = {
        "listeners_mean": simulated.listeners_mean * len(counts) * STEP_S / times_s[-1],
        "wait_mean_s": simulated.wait_mean_s,
        "wait_p95_s": simulated.waits_s["p95"],
        "waited": simulated.waited,
    }
    rows = [("measured", *real.values()), ("simulated", *other.values())]
    print_table(f"{len(times_s)} listeners that arrive at random, two replicas", ("", *real), rows)
    return {"requests": len(times_s), "measured": real, "simulated": other}


def kill() -> dict[str, Any]:
    deploy(2, paced(ttfa=0.1, seconds=4.0, block=0.5, capacity=2 * SIZES["streams"]))
    speaking, took_s = asyncio.run(kill_during(2.0))
    deploy(2, paced(ttfa=3.0, seconds=1.0, block=0.5, capacity=2 * SIZES["streams"]))
    waiting, _ = asyncio.run(kill_during(1.0))
    killed = {answer["replica"] for answer in speaking if answer["status"] != 200}
    found = {
        "streams": len(speaking),
        "cut": sum(answer["status"] != 200 for answer in speaking),
        "others_disturbed": sum(
            answer["status"] != 200 for answer in speaking if answer["replica"] not in list(killed)[:1]
        ),
        "waiting_failed": sum(answer["status"] != 200 for answer in waiting),
        "new_replica_s": round(took_s, 2),
    }
    print_records("A killed replica of two", found)
    return found


async def kill_during(after_s: float) -> tuple[list[dict[str, Any]], float]:
    """Kill a replica while streams run; return the answers, and the time until a new replica answers."""
    async with client_of("cluster") as client:
        known = {(await client.get("/ready")).headers["x-replica"] for _ in range(20)}
        streams = [asyncio.create_task(listen(client)) for _ in range(SIZES["streams"])]
        await asyncio.sleep(after_s)
        os.kill(replica_processes()[0], signal.SIGKILL)
        killed_s = time.perf_counter()
        took_s = 0.0
        while not took_s and time.perf_counter() < killed_s + 60:
            if (await client.get("/ready")).headers["x-replica"] not in known:
                took_s = time.perf_counter() - killed_s
            await asyncio.sleep(0.05)
        return await asyncio.gather(*streams), took_s


def batch() -> dict[str, Any]:
    from nightingale.ray import batch_run
    from nightingale.ray.batch_rows import prepare_row
    from nightingale.ray.batch_worker import BATCHES_AT_ONCE, speak_rows
    from nightingale_lab.bench.paced_batch import paced_tts

    texts = [f"This is the sentence with the number {number}." for number in range(SIZES["rows"])]
    rows = [prepare_row({"text": text}, {"format": "flac"}, "noise") for text in texts]

    def alone() -> float:
        """Return the time of the engine by itself, with as many rows open as a worker has."""
        shares = [rows[number::BATCHES_AT_ONCE] for number in range(BATCHES_AT_ONCE)]
        with paced_tts() as tts, ThreadPoolExecutor(BATCHES_AT_ONCE) as threads:
            started_s = time.perf_counter()
            spoken = list(threads.map(lambda share: list(speak_rows(tts, share)), shares))
            assert sum(map(len, spoken)) == len(rows)
            return time.perf_counter() - started_s

    before_s = alone()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.jsonl"
        source.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
        settings = batch_run.BatchSettings(
            source=str(source),
            out=f"{folder}/out",
            server={"model": "noise"},
            worker="nightingale_lab.bench.paced_batch:PacedBatchWorker",
        )
        result = batch_run.run_batch(settings, None, lambda *_: None)
    after_s = alone()
    engine_s = (before_s + after_s) / 2
    found = {
        "rows": result.rows,
        "audio_s": round(result.seconds, 1),
        "engine_before_s": round(before_s, 2),
        "engine_after_s": round(after_s, 2),
        "speaking_s": round(result.speaking_s, 2),
        "overhead": round(result.speaking_s / engine_s - 1, 4),
        "with_start_s": round(result.took_s, 2),
    }
    print_records("A batch, and the engine alone", found)
    return found


@contextmanager
def serving() -> Iterator[None]:
    from ray import serve

    from nightingale.ray.connection import connected

    with connected(None, cpus=2):
        serve.start(http_options={"host": "127.0.0.1", "port": PORTS["cluster"]})
        yield
        serve.shutdown()


def measure_sections(asked: argparse.Namespace) -> dict[str, Any]:
    """Measure the sections; those with requests share a cluster."""
    if asked.tiny:
        SIZES.update(rounds=5, replicas=(1, 2), window_s=4.0, streams=6, rows=24, arrivals_s=5.0)
    sections = asked.only.split(",")
    result: dict[str, Any] = {"load_before": [round(value, 2) for value in os.getloadavg()]}
    serve_sections = {"latency": latency, "growth": growth, "arrivals": arrivals, "kill": kill}
    if set(sections) & set(serve_sections):
        with serving():
            for name in sections:
                if name in serve_sections:
                    result[name] = serve_sections[name]()
    if "batch" in sections:
        result["batch"] = batch()
    result["load_after"] = [round(value, 2) for value in os.getloadavg()]
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    sections = option("--only", default="latency,growth,arrivals,kill,batch")
    runner.run(__doc__, "cluster", measure_sections, sections, arguments=arguments)
