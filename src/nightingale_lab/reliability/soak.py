"""A soak of the server: mixed clients for a long time, then a verdict.

    python -m nightingale_lab.reliability.soak                   # 60 minutes, wren, profile exact
    python -m nightingale_lab.reliability.soak --minutes 5       # the same in short
    python -m nightingale_lab.reliability.soak --tiny            # half a minute with random weights

A real `nightingale serve` answers clients of OpenAI's API (all formats, and events), of our WebSocket, of
ElevenLabs' API and of Wyoming, in all voices, with short texts and book-length ones; it converts recordings, and
voices are uploaded, used and deleted. Other clients cancel, are killed, read slowly, do not read, and send
malformed requests. The load has three phases; after each the clients end and the server unloads its model. In
the profile `exact` every complete answer is compared, by SHA-256, with the answer to the same request alone.

The exit status is 1 if one of the checks in the last table failed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import httpx

from nightingale_lab.bench import runner
from nightingale_lab.bench.runner import option
from nightingale_lab.bench.speed.load import percentile
from nightingale_lab.reliability.server_process import ServerProcess, Usage, serving
from nightingale_lab.reliability.soak_cases import book_case, speech_cases
from nightingale_lab.reliability.soak_clients import CONVERSION, UPLOADED_VOICE, Clients, SoakTally
from nightingale_lab.reliability.soak_protocols import convert, digest, fetch, speak_with_upload

PHASES = 3
HEALTH_P95_MS = 250.0
RSS_GROWTH = 0.10
"""Allowed growth of the memory from the end of the first phase to the end of the last."""
HANDLES_GROWTH = 4
"""Allowed growth of the number of threads, and of file descriptors, over the same time."""
RETURN_S = 10
"""Time that the server has to return the memory of an unloaded model."""
END_LIMIT_S = 150.0
"""Time that clients have to finish their last request at the end of a phase."""


@dataclass(kw_only=True)
class Sizes:
    """The sizes of a run."""

    phase_s: float
    cases: int
    books: int
    book_chars: int
    """Length of the longest one; the second has half of it, and so on."""
    keep_alive_s: float
    listeners: int = 3


@dataclass
class Probe:
    """A thread that asks /health twice a second, and notes the load of the machine."""

    server: ServerProcess
    took_ms: list[float] = field(default_factory=list)
    load_1m: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.stopped.wait(0.5):
            begun = time.perf_counter()
            try:
                status, _ = self.server.get("/health")
                if status != 200:
                    self.failures.append(f"/health answered {status}")
            except OSError as error:
                self.failures.append(f"/health: {error!r}")
            self.took_ms.append(1000 * (time.perf_counter() - begun))
            self.load_1m.append(os.getloadavg()[0])


async def repeat(
    act: Callable[[], Awaitable[None]], until_s: float, pause_s: float, tally: SoakTally
) -> None:
    """Act again and again until a time, and finish the last action."""
    while time.monotonic() < until_s:
        try:
            await act()
        except Exception as error:
            tally.problem(getattr(act, "__name__", "client"), repr(error))
        await asyncio.sleep(pause_s)


async def run_phase(clients: Clients, sizes: Sizes) -> None:
    until = time.monotonic() + sizes.phase_s
    short = sizes.phase_s < 60
    kinds: list[tuple[Callable[[], Awaitable[None]], float]] = [
        *[(clients.listen, 0.0 if short else 2.0)] * sizes.listeners,
        (clients.read_book, 0.0 if short else 5.0),
        (clients.read_slowly, 1.0),
        (clients.convert, 0.5 if short else 20.0),
        (clients.upload_voice, 0.5 if short else 40.0),
        (clients.ask_without_seed, 0.5),
        (clients.cancel, 0.5 if short else 5.0),
        (clients.be_killed, 0.5 if short else 8.0),
        (clients.stall, 1.0 if short else 30.0),
        (clients.send_malformed, 0.2),
    ]
    tasks = [asyncio.create_task(repeat(act, until, pause, clients.tally)) for act, pause in kinds]
    _, late = await asyncio.wait(tasks, timeout=sizes.phase_s + END_LIMIT_S)
    for task in late:
        clients.tally.outcomes["unfinished at the end of a phase"] += 1
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)


async def wait_for(condition: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.1)
    return True


async def soak(server: ServerProcess, sizes: Sizes, seed: int, exact: bool) -> dict[str, Any]:
    """Run all phases; return the result without the checks."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
    tally, rng = SoakTally(), random.Random(seed)
    async with httpx.AsyncClient(base_url=server.url, timeout=900, limits=limits) as http:
        voices = await list_voices(http)
        cases = speech_cases(voices, sizes.cases)
        books = [
            book_case(voices[number % len(voices)], sizes.book_chars // (1 + number), number)
            for number in range(sizes.books)
        ]
        clip = await fetch(server, http, replace(books[-1], text=books[-1].text[:150], codec="wav"))
        expected: dict[Hashable, str] = {}
        if exact:
            for case in dict.fromkeys(case.reference for case in [*cases, *books]):
                expected[case] = digest(await fetch(server, http, case))
            expected[CONVERSION] = digest(await convert(http, clip, books[0].voice or ""))
            expected[UPLOADED_VOICE] = digest(await speak_with_upload(http, clip, "alone", cases[0]))
        runner.report(f"{len(expected)} requests alone; {len(voices)} voices; the load begins")
        probe = Probe(server)
        thread = threading.Thread(target=probe.run, daemon=True)
        thread.start()
        phases, unloads = [], 0
        for number in range(PHASES):
            clients = Clients(server, http, expected, cases, books, clip, tally, rng)
            await run_phase(clients, sizes)
            drained = await wait_for(lambda: no_streams(server), 60.0)
            await fetch(server, http, cases[0])  # loads the model, if it has been unloaded already
            loaded = unloaded = server.usage()
            if number < PHASES - 1 or not drained:
                unloads += await wait_for(
                    lambda: server.ready()["state"] == "idle", sizes.keep_alive_s + 60.0
                )
                unloaded = await least_usage(server)
            phases.append({"loaded": asdict(loaded), "unloaded": asdict(unloaded), "drained": drained})
            runner.report(f"phase {number + 1}: {sum(tally.outcomes.values())} requests, {loaded}")
        probe.stopped.set()
        thread.join(10)
        after = await fetch(server, http, cases[0])
        if (left := await list_voices(http)) != voices:
            tally.problem("uploaded voice", f"voices at the end: {left}")
    recovered = bool(after) and (not exact or digest(after) == expected[cases[0].reference])
    statuses = server.metric("nightingale_requests_total")
    return {
        "outcomes": dict(sorted(tally.outcomes.items())),
        "longest_s": {kind: round(took_s, 1) for kind, took_s in sorted(tally.longest_s.items())},
        "statuses": {str(status): count for status, count in sorted(tally.statuses.items())},
        "server_5xx": sum(count for labels, count in statuses.items() if 'status="5' in labels),
        "problems": [*tally.problems, *probe.failures][:20],
        "problem_count": len(tally.problems) + len(probe.failures),
        "logged_errors": server.logged_problems()[:20],
        "phases": phases,
        "unloads": unloads,
        "recovered": recovered,
        "health_ms": {"p50": percentile(probe.took_ms, 0.5), "p95": percentile(probe.took_ms, 0.95)},
        "health_ms_max": percentile(probe.took_ms, 1.0),
        "load_1m": {
            "median": round(statistics.median(probe.load_1m), 1),
            "max": round(max(probe.load_1m), 1),
        },
    }


async def least_usage(server: ServerProcess) -> Usage:
    """Return what an unloaded server holds. On a busy machine it returns memory seconds after it says so."""
    found = [server.usage()]
    for _ in range(RETURN_S):
        await asyncio.sleep(1.0)
        found.append(server.usage())
    return min(found, key=lambda usage: usage.rss_mb)


async def list_voices(http: httpx.AsyncClient) -> list[str]:
    return [voice["id"] for voice in (await http.get("/v1/audio/voices")).json()["voices"]]


def no_streams(server: ServerProcess) -> bool:
    return not any(server.metric("nightingale_active_streams").values())


def check(result: dict[str, Any], exact: bool) -> list[dict[str, Any]]:
    """Return the checks: what, value, bound and whether it passed."""
    first, last = result["phases"][0]["loaded"], result["phases"][-1]["loaded"]
    right = sum(n for name, n in result["outcomes"].items() if name.endswith((": right", ": complete")))
    growth = last["rss_mb"] / first["rss_mb"] - 1

    def row(what: str, value: object, bound: str, passed: bool) -> dict[str, Any]:
        return {"what": what, "value": value, "bound": bound, "passed": bool(passed)}

    compared = "complete answers, all equal to the same request alone" if exact else "complete answers"
    return [
        row(compared, right, "more than 0", right > 0),
        row("wrong, cut off or unexpected answers", result["problem_count"], "0", not result["problem_count"]),
        row("answers 5xx, by the server's own count", result["server_5xx"], "0", not result["server_5xx"]),
        row("errors in the log", len(result["logged_errors"]), "0", not result["logged_errors"]),
        row("unloads of the model", result["unloads"], "2", result["unloads"] == PHASES - 1),
        row("streams left after a phase", sum(not p["drained"] for p in result["phases"]), "0",
            all(p["drained"] for p in result["phases"])),
        row("memory, end of the last phase over the first", f"{growth:+.1%}", f"at most {RSS_GROWTH:+.0%}",
            growth <= RSS_GROWTH),
        *[row(f"{name}, the same", last[name] - first[name], f"at most +{HANDLES_GROWTH}",
              last[name] - first[name] <= HANDLES_GROWTH) for name in ("threads", "descriptors")],
        row("/health p95, ms", result["health_ms"]["p95"], f"at most {HEALTH_P95_MS:.0f}",
            (result["health_ms"]["p95"] or 0) <= HEALTH_P95_MS),
        row("a request afterwards is right", result["recovered"], "True", result["recovered"]),
    ]  # fmt: skip


def report(result: dict[str, Any]) -> None:
    rows = [(name, count) for name, count in result["outcomes"].items()]
    runner.print_table("Requests", ("client: outcome", "count"), rows)
    runner.print_table("Slowest complete answers", ("client", "seconds"), result["longest_s"].items())
    held = [
        (number + 1, when, *phase[when].values())
        for number, phase in enumerate(result["phases"])
        for when in ("loaded", "unloaded")
    ]
    runner.print_table("The process", ("phase", "after it", *Usage.__dataclass_fields__), held)
    for title in ("problems", "logged_errors"):
        for line in result[title]:
            runner.report(f"{title}: {line}")
    load = result["load_1m"]
    runner.report(f"\nload average of the machine: median {load['median']}, highest {load['max']}")
    runner.print_checks(result["checks"])


def sizes_for(minutes: float, tiny: bool) -> Sizes:
    if tiny:
        return Sizes(phase_s=4, cases=12, books=2, book_chars=1500, keep_alive_s=1, listeners=2)
    if minutes < 20:
        return Sizes(phase_s=20 * minutes, cases=14, books=2, book_chars=1000, keep_alive_s=3)
    return Sizes(phase_s=20 * minutes, cases=36, books=2, book_chars=3500, keep_alive_s=10, listeners=2)


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    sizes = sizes_for(asked.minutes, asked.tiny)
    exact = asked.profile == "exact"
    options = ["--model", asked.model, "--profile", asked.profile, "--log-level", "warning"]
    options += ["--keep-alive", f"{sizes.keep_alive_s}s", "--send-timeout", "10s"]
    begun = time.monotonic()
    with serving(options) as server:
        result = asyncio.run(soak(server, sizes, asked.seed, exact))
    result |= {"model": asked.model, "profile": asked.profile, "sizes": asdict(sizes)}
    result["minutes"] = round((time.monotonic() - begun) / 60, 1)
    result["checks"] = check(result, exact)
    report(result)
    return result


def main() -> None:
    runner.run(
        __doc__,
        "soak",
        measure,
        option("--minutes", type=float, default=60.0, help="of load, in three phases"),
        option("--model", default="wren"),
        option("--profile", choices=["exact", "balanced"], default="exact"),
        option("--seed", type=int, default=0, help="of the order of requests"),
        tiny={"model": "noise"},
        failed=runner.failed_checks,
    )


if __name__ == "__main__":
    main()
