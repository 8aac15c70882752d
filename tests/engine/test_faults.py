"""What breaks, breaks alone and says so: nothing hangs, nothing is lost. Every wait here has a limit."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nightingale import TTS
from nightingale.engine.model import Model
from nightingale.backends.profiles import PROFILES
from nightingale.engine.worker import Worker
from nightingale.errors import EngineFault, MemoryFull, NightingaleError, TextError

LIMIT_S = 30.0


def engine(model: Model, profile: str = "balanced", **defaults: Any) -> TTS:
    return TTS.over(
        replace(model, defaults=replace(model.defaults, **{"max_new_tokens": 200, **defaults})), profile
    )


def within(seconds: float, done: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def in_time(act: Callable[[], object]) -> object:
    """The result of `act`, or its error; a hang is a failure."""
    got: list[object] = []

    def run() -> None:
        try:
            got.append(act())
        except NightingaleError as error:
            got.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert got, "still waiting"
    return got[0]


@pytest.fixture(params=["exact", "balanced"])
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_tells_everybody_and_nobody_waits_for_ever(
    noise_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = engine(noise_model)
    streams = [tts.stream("This will not be finished.", seed=i) for i in range(3)]
    next(streams[0])

    def dies(self: Worker) -> None:
        raise SystemError("a fault was planted in the worker's own step")

    monkeypatch.setattr(Worker, "_step", dies)
    for stream in streams:
        assert isinstance(in_time(lambda s=stream: list(s)), EngineFault)
    late = in_time(lambda: tts.say("Too late.", seed=1))
    assert isinstance(late, EngineFault)
    assert in_time(tts.close) is None


def test_a_text_that_would_outgrow_its_memory_is_cut_and_spoken(noise_model: Model, profile: str) -> None:
    """Short to look at, long in ids: four for each sign."""
    tts = engine(noise_model, profile, max_new_tokens=4, max_text_ids=100)
    audio = tts.say("Look " + "😀 a " * 60 + "here.", seed=1)
    assert len(audio.samples) > 4 * 4 * 960
    assert tts._worker.scheduler.idle


def test_a_text_that_must_not_be_cut_and_outgrows_its_memory_is_refused_alone(
    noise_model: Model, profile: str
) -> None:
    tts = engine(noise_model, profile, max_new_tokens=4, max_text_ids=50, split_chars=None)
    other = tts.stream("Somebody else speaks.", seed=1)
    refusal = in_time(lambda: tts.say("This is longer than there is memory for. " * 20, seed=2))
    assert isinstance(refusal, MemoryFull | TextError)
    assert sum(len(chunk.samples) for chunk in other) == 4 * 960
    assert within(LIMIT_S, lambda: tts._worker.scheduler.idle and not tts._worker._jobs)
    assert len(tts.say("Next.", seed=3).samples) == 4 * 960


def test_a_page_that_cannot_be_read_ends_its_book_and_no_other(noise_model: Model, profile: str) -> None:
    """Text is cut while it is spoken, so what is wrong with a later page comes late; it comes typed."""

    class Stumbling:
        vocab_size = 256

        def encode(self, text: str, language: str | None = None) -> list[int]:
            if "stumble" in text:
                raise RuntimeError("a tokenizer that breaks")
            return list(text.encode())

    model = replace(noise_model, frontend=replace(noise_model.frontend, tokenizer=Stumbling()))
    tts = engine(model, profile, max_new_tokens=4, fill_pieces=False)
    sentence = "This page can be read by anybody. "
    bad = tts.stream(sentence * 5 + "Here they stumble over a word. " + sentence * 5, seed=1)
    good = tts.stream(sentence * 8, seed=2)
    heard = 0

    def listen() -> None:
        nonlocal heard
        for chunk in bad:
            heard += len(chunk.samples)

    fault = in_time(listen)
    assert isinstance(fault, EngineFault)
    assert "a tokenizer that breaks" in str(fault)
    assert heard >= 3 * 4 * 960
    assert sum(len(chunk.samples) for chunk in good) == 8 * 4 * 960 + 7 * 2880
    assert within(LIMIT_S, lambda: tts._worker.scheduler.idle and not tts._worker._jobs)


def test_a_page_that_cannot_be_read_after_its_listener_slept_ends_its_book_alone(
    noise_model: Model, profile: str
) -> None:
    """It is found after a sleep, in the midst of others' work: typed all the same, and nobody else's end."""

    def spell_out(text: str) -> str:
        if "stumble" in text:
            raise RuntimeError("a normalizer that breaks")
        return text

    model = replace(noise_model, frontend=replace(noise_model.frontend, spell_out=spell_out))
    model = replace(model, defaults=replace(model.defaults, max_new_tokens=4, fill_pieces=False))
    tts = TTS.over(model, replace(PROFILES[profile], ahead_seconds=0.2))
    text = "\n\n".join(["This page can be read by anybody."] * 5 + ["Here they stumble."])
    bad = tts.stream(text, seed=1)
    jobs = tts._worker._jobs
    assert within(LIMIT_S, lambda: any(job.parked and job.piece is not None for job in list(jobs.values())))
    assert "a normalizer that breaks" in str(in_time(lambda: list(bad)))
    assert len(tts.say("Next.", seed=3).samples) == 4 * 960


def test_listeners_that_leave_at_any_moment_cost_nobody_a_slot(noise_model: Model, profile: str) -> None:
    tts = engine(noise_model, profile, max_new_tokens=12)
    kept = tts.stream("I stay to the end of it.", seed=0)
    for number in range(12):
        stream = tts.stream("I leave soon. I never heard this.", seed=number)
        if number % 3:
            next(stream)
        if number % 2:
            stream.close()
        del stream
    assert sum(len(chunk.samples) for chunk in kept) == 12 * 960
    assert within(LIMIT_S, lambda: tts._worker.scheduler.idle and not tts._worker._jobs)


def test_an_error_in_the_first_token_frees_the_slot(
    noise_model: Model, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = engine(noise_model, profile, max_new_tokens=4)
    runner: Any = tts._worker.draws.runner  # type: ignore[attr-defined]
    plain, calls = runner.begin, iter([True, False])

    def begin(*args: Any, **options: Any) -> Any:
        if next(calls, False):
            raise MemoryError("no room")
        return plain(*args, **options)

    monkeypatch.setattr(runner, "begin", begin)
    assert isinstance(in_time(lambda: tts.say("First.", seed=1)), EngineFault)
    assert tts._worker.scheduler.idle
    assert len(tts.say("Second.", seed=1).samples) == 4 * 960


SHUTDOWN = """
import sys
from dataclasses import replace
import torch
torch.set_num_threads(1)
from nightingale import TTS
model = TTS("noise")._model
tts = TTS.over(replace(model, defaults=replace(model.defaults, max_new_tokens=400)), "balanced")
stream = tts.stream("This is being said while the program ends.", seed=1)
print(len(next(stream).samples), flush=True)
{}
"""
LISTENS = """
import threading
from nightingale import EngineFault
def listen():
    try:
        list(stream)
    except EngineFault as fault:
        print(fault, file=sys.stderr)
threading.Thread(target=listen, daemon=True).start()
"""
ENDINGS = {"sys.exit": ("sys.exit(3)", 3), "a listener in another thread": (LISTENS, 0)}


@pytest.mark.parametrize(("ending", "code"), ENDINGS.values(), ids=ENDINGS)
def test_a_program_may_end_while_somebody_speaks(ending: str, code: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SHUTDOWN.format(ending)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S * 2,
        check=False,
    )
    assert ran.returncode == code, ran.stderr
    assert int(ran.stdout) > 0
    noise = [line for line in ran.stderr.splitlines() if "planted" not in line]
    assert "Exception" not in " ".join(noise)
    assert "Fatal" not in " ".join(noise)
