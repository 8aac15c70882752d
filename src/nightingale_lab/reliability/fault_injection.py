"""Plant faults in the engine while requests run; each may end one request, and must not disturb the others.

    python -m nightingale_lab.reliability.fault_injection --count 1000 --seed 0
    python -m nightingale_lab.reliability.fault_injection --tiny        # two of each kind

The server's service runs in this process with the model of random tones and the profile `exact`. For every
fault several requests run at once, one of them is cancelled now and then, and one call in the engine
misbehaves (fault_sites.py). Afterwards:

- at most one request has failed, with one of Nightingale's errors, and all others have the same samples as
  alone. If the fault ends the engine's thread, all running requests may fail, but the next ones are served;
- a new request is answered, with the right samples, within 5 s of the fault;
- nothing is left: slots, KV cache rows, requests, streams, threads, file descriptors, temporary files.

The engine has no worker processes: a killed process is the whole server's (its supervisor starts a new one) or a
replica's on a Ray cluster (`python -m nightingale_lab.bench cluster --only kill`). The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import logging
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from nightingale.audio.samples import wav_bytes
from nightingale.backends.profiles import PROFILES
from nightingale.engine.load import load_model
from nightingale.engine.tts import TTS
from nightingale.errors import NightingaleError
from nightingale.server.service import model_loading
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.settings import ServerSettings
from nightingale_lab.bench import runner
from nightingale_lab.bench.runner import option
from nightingale_lab.reliability.fault_sites import SITES, Site, Trigger, planted

RECOVERY_S = 5.0
REQUESTS = 4
LIMIT_S = 30.0
"""Longest wait for a request: far more than any of them needs."""
TEXTS = (
    "A short text.",
    "This one has two parts.\n\nHere is the second of them.",
    "One.\n\nTwo.\n\nThree.",
    "A text that is a little longer than the others, to its very end.",
)
EXTRA_THREADS = 2
"""Threads that may be added over all faults: those of executors start on demand."""


@dataclass
class Outcome:
    """The effects of the faults of one site and kind."""

    planted: int = 0
    fired: int = 0
    """Faults whose call was reached."""
    right: int = 0
    failed: int = 0
    """Requests that ended with one of Nightingale's errors."""
    cancelled: int = 0
    slowest_recovery_s: float = 0.0
    problems: list[str] = field(default_factory=list)


@contextmanager
def short_engines() -> Iterator[None]:
    """Load engines whose segments have a few tokens."""
    plain = model_loading.load_engine

    def load(settings: ServerSettings) -> TTS:
        model = load_model("noise", offline=True, options={}).with_defaults(
            max_new_tokens=10, fill_segments=False
        )
        profile = replace(PROFILES["exact"], slots=settings.slots, queue_limit=settings.max_queue)
        return TTS.over(model, profile, max_streams=3)

    model_loading.load_engine = load
    try:
        yield
    finally:
        model_loading.load_engine = plain


class Injector:
    """Runs requests against a service and plants faults in its engine."""

    def __init__(self, service: SpeechService, rng: random.Random) -> None:
        self._service, self._rng = service, rng
        self._expected: dict[tuple[str, int], str] = {}
        self._names = iter(range(10**9))
        self._clip = wav_bytes(clip(), 24_000)

    @property
    def engine(self) -> TTS:
        assert self._service._tts is not None
        return self._service._tts

    async def speak(self, text: str, seed: int, *, stop_after: int | None = None) -> str:
        """Return the digest of a request's samples, or "" if it was cancelled after some chunks."""
        digest = hashlib.sha256()
        async with await self._service.open(text, seed=seed) as stream:
            number = 0
            async for chunk in stream:
                digest.update(chunk.samples.tobytes())
                number += 1
                if number == stop_after:
                    return ""
        return digest.hexdigest()

    async def learn_expected(self) -> None:
        for text in TEXTS:
            for seed in range(REQUESTS):
                self._expected[text, seed] = await self.speak(text, seed)
        # Executors start their threads on demand: those are no leak.
        await asyncio.gather(*(self.speak(text, seed) for text, seed in self._expected))

    async def one_request(self, text: str, seed: int, outcome: Outcome, *, cancels: bool) -> None:
        stop_after = 1 if cancels else None
        try:
            digest = await asyncio.wait_for(self.speak(text, seed, stop_after=stop_after), LIMIT_S)
        except NightingaleError:
            outcome.failed += 1
        except TimeoutError:
            outcome.problems.append(f"no answer to {text!r} within {LIMIT_S:.0f} s")
        except Exception as error:
            outcome.problems.append(f"not one of Nightingale's errors: {error!r}")
        else:
            if not digest:
                outcome.cancelled += 1
            elif digest == self._expected[text, seed]:
                outcome.right += 1
            else:
                outcome.problems.append(f"other samples than alone: {text!r}, seed {seed}")

    async def add_voice(self, outcome: Outcome) -> None:
        """Upload a clip; if that fails, no voice of that name may be left."""
        name = f"fault-{next(self._names)}"
        try:
            await self._service.add_voice(name, self._clip)
        except NightingaleError:
            outcome.failed += 1
            if name in {voice.id for voice in await self._service.voices()}:
                outcome.problems.append("a voice that could not be stored is listed")
        except Exception as error:
            outcome.problems.append(f"not one of Nightingale's errors: {error!r}")
        else:
            await self._service.remove_voice(name)
            outcome.right += 1

    async def inject(self, site: Site, kind: str, outcome: Outcome) -> None:
        """Plant one fault, run requests, and check everything afterwards."""
        rng, before = self._rng, (outcome.failed, len(outcome.problems))
        outcome.planted += 1
        # If the requests do not make so many calls, the first one is hit.
        for nth in (rng.randint(1, site.calls), 1):
            trigger = await self._run_with(site, kind, nth, outcome)
            if trigger.fired_s is not None:
                break
        if trigger.fired_s is not None:
            outcome.fired += 1
            await self._recover(trigger.fired_s, outcome)
        failed = outcome.failed - before[0]
        if failed > 1 and not site.kills_engine:
            outcome.problems.append(f"{failed} requests failed by one fault")
        if leaked := await self._leaks():
            outcome.problems.append(f"left behind: {leaked}")
        del outcome.problems[before[1] + 3 :]

    async def _run_with(self, site: Site, kind: str, nth: int, outcome: Outcome) -> Trigger:
        """Run requests while the nth call of a site misbehaves. One of them may be cancelled."""
        rng = self._rng
        cancels = rng.random() < 0.3
        with planted(site, kind, nth, self.engine) as trigger:
            requests = [
                self.one_request(
                    rng.choice(TEXTS), rng.randrange(REQUESTS), outcome, cancels=cancels and not n
                )
                for n in range(REQUESTS)
            ]
            if site.action == "add a voice":
                requests.append(self.add_voice(outcome))
            await asyncio.gather(*requests)
        return trigger

    async def _recover(self, fired_s: float, outcome: Outcome) -> None:
        """Repeat a request until it is answered; note the time since the fault."""
        text, seed = TEXTS[0], 0
        while time.monotonic() - fired_s < LIMIT_S:
            try:
                digest = await asyncio.wait_for(self.speak(text, seed), LIMIT_S)
            except NightingaleError:
                continue
            took_s = time.monotonic() - fired_s
            outcome.slowest_recovery_s = max(outcome.slowest_recovery_s, round(took_s, 3))
            if digest != self._expected[text, seed]:
                outcome.problems.append("the request after the fault has other samples")
            if took_s > RECOVERY_S:
                outcome.problems.append(f"answered only {took_s:.1f} s after the fault")
            return
        outcome.problems.append("no request was answered after the fault")

    async def _leaks(self) -> dict[str, int]:
        """Return what the engine and the service still hold after a moment."""
        held: dict[str, int] = {}
        deadline = time.monotonic() + RECOVERY_S
        while time.monotonic() < deadline:
            worker = self.engine._worker
            runner: Any = getattr(worker.decoder, "runner")  # noqa: B009, not in the protocol
            held = {
                "requests": len(worker._jobs),
                "slots": len(worker.scheduler.running) + len(worker.scheduler.waiting),
                "KV cache rows": len(runner._states),
                "blocks": len(worker._ready) + len(worker._in_flight),
                "streams": len(self._service._open_streams),
                "counted as active": int(self._service.metrics.active),
            }
            if not any(held.values()):
                return {}
            await asyncio.sleep(0.005)
        return {name: count for name, count in held.items() if count}


def clip() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return eight seconds of a tone with a syllable's rhythm."""
    at = np.arange(8 * 24_000) / 24_000
    return (0.3 * np.sin(2 * np.pi * 140 * at) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * at))).astype(np.float32)


def usage() -> dict[str, int]:
    """Return what this process holds that a fault could leak."""
    gc.collect()
    handles = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    home = Path(os.environ["NIGHTINGALE_HOME"])
    unfinished = len([path for path in home.rglob("*") if path.name.endswith(".part")])
    return {"threads": threading.active_count(), "descriptors": handles, "unfinished files": unfinished}


async def run(count: int, seed: int) -> dict[str, Any]:
    """Plant so many faults, in a seeded order that gives every site and kind its share."""
    rng = random.Random(seed)
    service = SpeechService(ServerSettings.model_validate({"model": "noise", "slots": 4, "max_queue": 64}))
    await service.start()
    injector = Injector(service, rng)
    await injector.learn_expected()
    kinds = [(site, kind) for site in SITES for kind in site.kinds]
    order = [kinds[number % len(kinds)] for number in range(count)]
    rng.shuffle(order)
    outcomes: dict[tuple[str, str], Outcome] = defaultdict(Outcome)
    before, begun = usage(), time.monotonic()
    for site, kind in order:
        await injector.inject(site, kind, outcomes[site.name, kind])
    after = usage()
    await service.stop()
    rows = [
        {"site": site.name, "kind": kind, **vars(outcomes[site.name, kind])}
        for site, kind in kinds
        if (site.name, kind) in outcomes
    ]
    total = Counter[str]()
    for row in rows:
        total.update({name: value for name, value in row.items() if isinstance(value, int)})
    grown = {name: after[name] - before[name] for name in before}
    problems = [f"{row['site']}, {row['kind']}: {text}" for row in rows for text in row["problems"]]
    if grown["threads"] > EXTRA_THREADS or grown["descriptors"] > EXTRA_THREADS or after["unfinished files"]:
        problems.append(f"left behind by all faults together: {grown}")
    return {
        "seed": seed,
        "seconds": round(time.monotonic() - begun, 1),
        "rows": [{**row, "problems": len(row["problems"])} for row in rows],
        "total": dict(total),
        "slowest_recovery_s": max((row["slowest_recovery_s"] for row in rows), default=0.0),
        "grown": grown,
        "problems": problems[:40],
        "problem_count": len(problems),
    }


def inject_faults(count: int, seed: int) -> dict[str, Any]:
    """Run in a home folder of its own, without the log lines that faults cause."""
    logging.disable(logging.CRITICAL)
    kept = {name: os.environ.get(name) for name in ("NIGHTINGALE_HOME", "NIGHTINGALE_VOICES")}
    with tempfile.TemporaryDirectory(prefix="nightingale-faults-") as home, short_engines():
        os.environ["NIGHTINGALE_HOME"] = home
        os.environ.pop("NIGHTINGALE_VOICES", None)
        try:
            return asyncio.run(run(count, seed))
        finally:
            logging.disable(logging.NOTSET)
            for name, value in kept.items():
                os.environ.pop(name, None)
                os.environ.update({name: value} if value is not None else {})


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    count = 2 * sum(len(site.kinds) for site in SITES) if asked.tiny else asked.count
    result = inject_faults(count, asked.seed)
    runner.print_records("Faults", *result["rows"])
    for problem in result["problems"]:
        runner.report(str(problem))
    runner.report(f"\n{result['problem_count']} problems in {result['seconds']} s")
    return result


def main() -> None:
    runner.run(
        __doc__,
        "faults",
        measure,
        option("--count", type=int, default=1000),
        option("--seed", type=int, default=0),
        failed=lambda result: bool(result["problem_count"]),
    )


if __name__ == "__main__":
    main()
