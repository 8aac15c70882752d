"""The places in the engine at which a fault can be planted, and the faults.

A planted fault replaces one method for a while. It lets calls pass until its turn comes, misbehaves once, and
lets calls pass again.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from nightingale.backends.noise.encoders import NoiseEncoders
from nightingale.decoding.decoding import Decoding
from nightingale.engine.tts import TTS
from nightingale.engine.worker import Worker
from nightingale.server.service import model_loading

STALL_S = 0.3
CLOCK_JUMP_S = 3600.0


class PlantedError(RuntimeError):
    """The error that a fault of the kind "error" raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A method of the engine, and what can go wrong in it."""

    name: str
    find: Callable[[TTS], tuple[Any, str]]
    """Returns the object and the name of the method."""
    kinds: tuple[str, ...] = ("error", "error after", "memory")
    kills_engine: bool = False
    """True if the engine's thread may end: then all requests fail, and the engine is loaded again."""
    calls: int = 8
    """The fault hits one of so many first calls."""
    action: str = "speak"
    """The extra request that passes this site: speak, or add a voice."""


@dataclass(slots=True)
class Trigger:
    """Decides which call misbehaves."""

    kind: str
    left: int
    """Calls until the fault."""
    fired_s: float | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def due(self) -> bool:
        with self.lock:
            self.left -= 1
            if self.left == 0:
                self.fired_s = time.monotonic()
            return self.left == 0


def _worker(tts: TTS) -> Worker:
    return tts._worker


def _runner(tts: TTS) -> Any:
    return getattr(_worker(tts).decoder, "runner")  # noqa: B009, not in the protocol


SITES = (
    Site(
        name="T3 prefill",
        find=lambda tts: (_runner(tts), "prefill"),
        kinds=("error", "error after", "memory", "nan"),
        calls=4,
    ),
    Site(
        name="T3 step",
        find=lambda tts: (_runner(tts), "step"),
        kinds=("error", "error after", "memory", "nan", "stall"),
        calls=30,
    ),
    Site(name="sampling", find=lambda _: (Decoding, "sample"), kinds=("error", "memory"), calls=30),
    Site(name="slot release", find=lambda tts: (_runner(tts), "release"), calls=4),
    Site(name="slot move", find=lambda tts: (_runner(tts), "move"), calls=2),
    Site(name="renderer: open a stream", find=lambda tts: (_worker(tts).renderer, "open"), calls=4),
    Site(
        name="renderer: render",
        find=lambda tts: (_worker(tts).renderer, "render"),
        kinds=("error", "error after", "memory", "failed future", "nan", "stall"),
    ),
    Site(name="renderer: decoder_busy", find=lambda tts: (_worker(tts).renderer, "decoder_busy")),
    Site(name="tokenizer", find=lambda tts: (tts._model.frontend.tokenizer, "encode"), calls=4),
    Site(
        name="watermark", find=lambda tts: (tts._engine, "_marks"), kinds=("mark error", "mark nan"), calls=3
    ),
    Site(
        name="cloning: encoders",
        find=lambda _: (NoiseEncoders, "speaker"),
        kinds=("error", "memory", "nan"),
        calls=1,
        action="add a voice",
    ),
    Site(
        name="full disk",
        find=lambda _: (os, "fsync"),
        kinds=("no space",),
        calls=1,
        action="add a voice",
    ),
    Site(name="clock", find=lambda tts: (_worker(tts), "_sweep"), kinds=("forward", "backward"), calls=6),
    Site(
        name="engine thread",
        find=lambda tts: (_worker(tts), "_step"),
        kinds=("error", "error after", "memory"),
        kills_engine=True,
        calls=20,
    ),
    Site(
        name="engine thread, and loading fails once",
        find=lambda tts: (_worker(tts), "_step"),
        kinds=("no reload",),
        kills_engine=True,
        calls=20,
    ),
)


@contextmanager
def planted(site: Site, kind: str, nth: int, tts: TTS) -> Iterator[Trigger]:
    """Let the nth call of a site misbehave while the context is open."""
    trigger = Trigger(kind, nth)
    target, name = site.find(tts)
    plain, had_own = getattr(target, name), name in vars(target)

    def call(*args: Any, **options: Any) -> Any:
        if not trigger.due():
            return plain(*args, **options)
        return misbehave(kind, lambda: plain(*args, **options))

    setattr(target, name, call)
    try:
        with failing_reload() if kind == "no reload" else restored_clock():
            yield trigger
    finally:
        if had_own:
            setattr(target, name, plain)
        else:
            delattr(target, name)


def misbehave(kind: str, plain: Callable[[], Any]) -> Any:
    """Do once what a fault of this kind does."""
    match kind:
        case "error" | "no reload":
            raise PlantedError("planted")
        case "error after":
            plain()
            raise PlantedError("planted, after the work was done")
        case "memory":
            raise MemoryError("planted")
        case "no space":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        case "stall":
            time.sleep(STALL_S)
            return plain()
        case "nan":
            return with_nan(plain())
        case "failed future":
            failed: Future[Any] = Future()
            failed.set_exception(PlantedError("planted, while rendering"))
            return failed
        case "mark error" | "mark nan":
            return lambda samples: misbehave(kind.removeprefix("mark "), lambda: samples)
        case "forward" | "backward":
            # Clocks that count from some moment never go back; that of the day may.
            jump_clock(
                CLOCK_JUMP_S, ("time", "monotonic", "perf_counter")
            ) if kind == "forward" else jump_clock(-CLOCK_JUMP_S, ("time",))
            return plain()
    raise ValueError(kind)


def with_nan(result: Any) -> Any:
    """Return what a call returned with NaN in its first array: a fault of one row."""
    if isinstance(result, Future):
        spoiled: Future[Any] = Future()
        spoiled.set_result(with_nan(result.result()))
        return spoiled
    if isinstance(result, list):
        return [np.full_like(result[0], np.nan), *result[1:]]
    return np.full_like(result, np.nan)


def jump_clock(seconds: float, names: tuple[str, ...]) -> None:
    """Move the clocks that the engine and the server read; the clocks of asyncio stay."""

    def moved(clock: Callable[[], float]) -> Callable[[], float]:
        return lambda: clock() + seconds

    clocks = {name: moved(getattr(time, name)) for name in names}
    _set_clock(SimpleNamespace(**{**vars(time), **clocks}))


@contextmanager
def restored_clock() -> Iterator[None]:
    """Put back the clocks at the end, which is a jump, too."""
    try:
        yield
    finally:
        _set_clock(time)


def _set_clock(module: Any) -> None:
    for name, loaded in list(sys.modules.items()):
        if name.startswith(("nightingale.engine", "nightingale.server")) and hasattr(loaded, "time"):
            loaded.time = module  # type: ignore[attr-defined]


@contextmanager
def failing_reload() -> Iterator[None]:
    """Let the next loading of the engine fail."""
    plain, left = model_loading.load_engine, iter([True])

    def load(settings: Any) -> TTS:
        if next(left, False):
            raise MemoryError("planted, while loading")
        return plain(settings)

    model_loading.load_engine = load
    try:
        yield
    finally:
        model_loading.load_engine = plain
