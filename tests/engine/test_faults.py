"""Faults: an error ends the request it belongs to, and no other. Every wait has a limit."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from engine_helpers import LIMIT_S, TOKEN_SAMPLES, call_in_thread, is_drained, open_engine, wait_until

from nightingale.backends.profiles import PROFILES
from nightingale.engine.load import Model
from nightingale.engine.worker import Worker
from nightingale.errors import EngineFault, MemoryFull, TextError


@pytest.fixture(params=["exact", "balanced"])
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_fails_ends_every_request(noise_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    tts = open_engine(noise_model, max_new_tokens=200)
    streams = [tts.stream("This will not be finished.", seed=i) for i in range(3)]
    next(streams[0])

    def fail(self: Worker) -> None:
        raise SystemError("a planted fault")

    monkeypatch.setattr(Worker, "_step", fail)
    for stream in streams:
        fault = call_in_thread(lambda s=stream: list(s))
        assert isinstance(fault, EngineFault)
        assert "SystemError: a planted fault" in str(fault)
    assert isinstance(call_in_thread(lambda: tts.say("Too late.", seed=1)), EngineFault)
    assert call_in_thread(tts.close) is None


def test_a_text_of_too_many_ids_is_split_and_spoken(noise_model: Model, profile: str) -> None:
    """The text is short, but each emoji has four ids."""
    tts = open_engine(noise_model, profile, max_new_tokens=4, max_text_ids=100)
    audio = tts.say("Look " + "😀 a " * 60 + "here.", seed=1)
    assert len(audio.samples) > 4 * 4 * TOKEN_SAMPLES
    assert is_drained(tts)


def test_a_text_of_too_many_ids_that_may_not_be_split_is_refused_alone(
    noise_model: Model, profile: str
) -> None:
    tts = open_engine(noise_model, profile, max_new_tokens=4, max_text_ids=50, split_chars=None)
    other = tts.stream("Another request.", seed=1)
    error = call_in_thread(lambda: tts.say("This is longer than there is memory for. " * 20, seed=2))
    assert isinstance(error, MemoryFull | TextError)
    assert sum(len(chunk.samples) for chunk in other) == 4 * TOKEN_SAMPLES
    assert is_drained(tts)
    assert len(tts.say("Next.", seed=3).samples) == 4 * TOKEN_SAMPLES


def test_a_tokenizer_error_in_a_later_segment_ends_its_request_alone(
    noise_model: Model, profile: str
) -> None:
    """Text is segmented while it is spoken, so an error on a later page comes late."""

    class FailingTokenizer:
        vocab_size = 256

        def encode(self, text: str, language: str | None = None) -> list[int]:
            if "bad" in text:
                raise RuntimeError("a tokenizer that fails")
            return list(text.encode())

    model = replace(noise_model, frontend=replace(noise_model.frontend, tokenizer=FailingTokenizer()))
    tts = open_engine(model, profile, max_new_tokens=4, fill_segments=False)
    sentence = "This page can be read by the model. "
    failing = tts.stream(sentence * 5 + "This page is a bad one, however. " + sentence * 5, seed=1)
    healthy = tts.stream(sentence * 8, seed=2)
    samples = 0

    def read() -> None:
        nonlocal samples
        for chunk in failing:
            samples += len(chunk.samples)

    fault = call_in_thread(read)
    assert isinstance(fault, EngineFault)
    assert "a tokenizer that fails" in str(fault)
    assert samples >= 3 * 4 * TOKEN_SAMPLES
    assert sum(len(chunk.samples) for chunk in healthy) == 8 * 4 * TOKEN_SAMPLES + 7 * 2880
    assert is_drained(tts)


def test_a_normalizer_error_after_a_stalled_reader_ends_its_request_alone(
    noise_model: Model, profile: str
) -> None:
    def spell_out(text: str) -> str:
        if "bad" in text:
            raise RuntimeError("a normalizer that fails")
        return text

    model = replace(noise_model, frontend=replace(noise_model.frontend, spell_out=spell_out))
    stalling = replace(PROFILES[profile], ahead_seconds=0.2)
    tts = open_engine(model, stalling, max_new_tokens=4, fill_segments=False)
    failing = tts.stream("\n\n".join(["This page can be read."] * 5 + ["A bad page."]), seed=1)
    jobs = tts._worker._jobs
    assert wait_until(lambda: any(job.parked and job.segment is not None for job in list(jobs.values())))
    fault = call_in_thread(lambda: list(failing))
    assert isinstance(fault, EngineFault)
    assert "a normalizer that fails" in str(fault)
    assert len(tts.say("Next.", seed=3).samples) == 4 * TOKEN_SAMPLES


def test_streams_closed_or_dropped_at_any_moment_free_their_slots(noise_model: Model, profile: str) -> None:
    tts = open_engine(noise_model, profile, max_new_tokens=12)
    kept = tts.stream("This request runs to its end.", seed=0)
    for number in range(12):
        stream = tts.stream("This request ends soon. This is never read.", seed=number)
        if number % 3:
            next(stream)
        if number % 2:
            stream.close()
        del stream
    assert sum(len(chunk.samples) for chunk in kept) == 12 * TOKEN_SAMPLES
    assert is_drained(tts)


def test_an_error_in_prefill_frees_the_slot(
    noise_model: Model, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = open_engine(noise_model, profile, max_new_tokens=4)
    decoder = tts._worker.decoder
    plain, fails = decoder.prefill, iter([True, False])

    def prefill(*args: Any, **options: Any) -> Any:
        if next(fails, False):
            raise MemoryError("out of memory")
        return plain(*args, **options)

    monkeypatch.setattr(decoder, "prefill", prefill)
    fault = call_in_thread(lambda: tts.say("First.", seed=1))
    assert isinstance(fault, MemoryFull)
    assert "out of memory" in str(fault)
    assert is_drained(tts)
    assert len(tts.say("Second.", seed=1).samples) == 4 * TOKEN_SAMPLES


SHUTDOWN = """
import sys
from nightingale import TTS
model = TTS("noise")._model
tts = TTS.over(model.with_defaults(max_new_tokens=400), "balanced")
stream = tts.stream("This is spoken while the program ends.", seed=1)
print(len(next(stream).samples), flush=True)
{}
"""
READS = """
import threading
from nightingale import EngineFault
def read():
    try:
        list(stream)
    except EngineFault as fault:
        print(fault, file=sys.stderr)
threading.Thread(target=read, daemon=True).start()
"""
ENDINGS = {"sys.exit": ("sys.exit(3)", 3), "a reader in another thread": (READS, 0)}


@pytest.mark.parametrize(("ending", "code"), ENDINGS.values(), ids=ENDINGS)
def test_a_program_may_end_while_the_engine_runs(ending: str, code: int) -> None:
    program = subprocess.run(
        [sys.executable, "-c", SHUTDOWN.format(ending)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S * 2,
        check=False,
    )
    assert program.returncode == code, program.stderr
    assert int(program.stdout) > 0
    assert "Exception" not in program.stderr
    assert "Fatal" not in program.stderr
    assert "Traceback" not in program.stderr
