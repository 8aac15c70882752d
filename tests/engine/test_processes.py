"""Use in several processes, threads and event loops, and pickling of values."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from nightingale import TTS, AsyncTTS, Audio, ConfigError, EngineFault, QueueFull, VoiceNotFound
from nightingale.engine.load import Model

FORKED = """
import os, sys
from nightingale import TTS, EngineFault

tts = TTS("noise")
before = tts.say("Hello.", seed=1).sha256
child = os.fork()
if child == 0:
    try:
        tts.say("Hello.", seed=1)
        sys.exit(1)
    except EngineFault as error:
        assert "another process" in error.what, error
    tts.close()  # has no effect on the parent's engine
    with TTS("noise") as own:
        assert own.say("Hello.", seed=1).sha256 == before
    sys.exit(7)  # runs the finalizers of both engines
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert status == 7, status
assert tts.say("Hello.", seed=1).sha256 == before
print("done")
"""


def say_in_a_process(seed: int) -> Audio:
    with TTS("noise") as tts:
        return tts.say("Hello.", seed=seed)


@pytest.mark.skipif(
    not hasattr(multiprocessing, "get_context") or sys.platform == "win32", reason="needs fork"
)
def test_a_forked_process_opens_an_engine_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


def test_spawned_processes_return_audio() -> None:
    here = say_in_a_process(3)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        there = pool.submit(say_in_a_process, 3).result(timeout=120)
    assert there.sha256 == here.sha256
    assert there.metrics.tokens == here.metrics.tokens


def test_threads_and_an_event_loop_share_an_engine(brief: TTS) -> None:
    alone = [brief.say("Hello.", seed=seed).sha256 for seed in range(4)]

    async def in_a_loop() -> list[Audio]:
        tts = AsyncTTS(brief)
        return list(await asyncio.gather(*(tts.say("Hello.", seed=seed) for seed in range(4))))

    with ThreadPoolExecutor(5) as pool:
        loop = pool.submit(asyncio.run, in_a_loop())
        threads = list(pool.map(lambda seed: brief.say("Hello.", seed=seed).sha256, range(4)))
    assert threads == [audio.sha256 for audio in loop.result()] == alone


def test_values_survive_pickling(brief: TTS, noise_model: Model) -> None:
    audio = brief.say("Hello.", seed=1)
    again = pickle.loads(pickle.dumps(audio))
    assert again.sha256 == audio.sha256
    assert (again.metrics, again.seed) == (audio.metrics, 1)
    chunk = next(brief.stream("Hello.", seed=1))
    assert pickle.loads(pickle.dumps(chunk)).begins == chunk.begins
    voice = noise_model.default_voice
    assert voice is not None
    copied = pickle.loads(pickle.dumps(replace(voice, name="copied")))
    assert (copied, copied.name, copied.provenance) == (voice, "copied", voice.provenance)
    with pytest.raises(ValueError, match="read-only"):
        copied.speaker[0] = 1.0
    assert np.array_equal(brief.say("Hello.", seed=1, voice=copied).samples, audio.samples)


def test_errors_survive_pickling_with_their_parts(brief: TTS) -> None:
    with pytest.raises(VoiceNotFound) as refusal:
        brief.say("Hello.", voice="nobody")
    error = refusal.value
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is VoiceNotFound
    assert (str(again), again.what, again.got, again.fix) == (str(error), error.what, error.got, error.fix)
    full = QueueFull("too many requests are waiting", param="queue")
    full.retry_after_s = 2.5
    again = pickle.loads(pickle.dumps(full))
    assert (again.retry_after_s, again.param) == (2.5, "queue")


def test_an_engine_is_not_pickled(brief: TTS) -> None:
    with pytest.raises(ConfigError, match=r"cannot be pickled.*in each process"):
        pickle.dumps(brief)


def test_an_engine_of_another_process_is_refused(brief: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief._engine, "_process_id", -1)
    for call in (brief.say, brief.stream, lambda _: brief.session()):
        with pytest.raises(EngineFault, match="another process"):
            call("Hello.")
