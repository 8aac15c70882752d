"""The worker under concurrency: isolation, backpressure, cancellation and cleanup."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_helpers import is_idle

from nightingale import TTS
from nightingale.backends.noise.renderer import NoiseStream
from nightingale.backends.noise.runner import NoiseRunner
from nightingale.backends.profiles import profile_named
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.philox import stream_key
from nightingale.decoding.sampling import Logits
from nightingale.engine.load import Model
from nightingale.engine.rendering.utterance import Utterance
from nightingale.engine.requests.segments import SegmentQueue
from nightingale.engine.session import Session
from nightingale.errors import EngineFault, MemoryFull, NightingaleError, QueueFull
from nightingale.types import Samples

TEXTS = ["Hello there.", "A second voice, a little longer.", "Three.", "And the fourth one speaks as well."]
LIMIT_S = 60.0


@pytest.fixture(params=["exact", "balanced", "balanced+stream=segment"])
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def engine(model: Model, profile: str, *, tokens: int = 24, **options: Any) -> TTS:
    """An engine with short segments; `options` change the profile."""
    return TTS.over(model.with_defaults(max_new_tokens=tokens), replace(profile_named(profile), **options))


def within(seconds: float, done: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def test_exact_profile_gives_the_same_bits_at_any_concurrency(noise_model: Model) -> None:
    tts = engine(noise_model, "exact")
    alone = [tts.say(text, seed=i).sha256 for i, text in enumerate(TEXTS)]
    streams = [tts.stream(text, seed=i) for i, text in enumerate(TEXTS)]
    received = [np.concatenate([chunk.samples for chunk in stream]) for stream in streams]
    again = [tts.say(text, seed=i) for i, text in enumerate(TEXTS)]
    assert [audio.sha256 for audio in again] == alone
    for samples, audio in zip(received, again, strict=True):
        assert np.array_equal(samples, audio.samples)


def tokens_of(
    tts: TTS, open_all: Callable[[TTS], list[Iterator[Any]]], monkeypatch: pytest.MonkeyPatch
) -> list[list[int]]:
    """Return the tokens of each request, in the order the requests were opened."""
    drawn: dict[int, list[int]] = {}
    plain = Utterance.accept

    def accept(self: Utterance, token: int) -> None:
        plain(self, token)
        drawn.setdefault(self.request.seed, []).append(self.last_token)

    with monkeypatch.context() as patch:
        patch.setattr(Utterance, "accept", accept)
        for stream in open_all(tts):
            list(stream)
    return [drawn[seed] for seed in sorted(drawn)]


def test_greedy_tokens_do_not_depend_on_concurrency(
    noise_model: Model, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = engine(noise_model, profile)

    def together(tts: TTS) -> list[Iterator[Any]]:
        return [tts.stream(text, seed=i, temperature=0.0) for i, text in enumerate(TEXTS)]

    def one_by_one(tts: TTS) -> list[Iterator[Any]]:
        return [
            iter(list(stream))
            for stream in (tts.stream(t, seed=i, temperature=0.0) for i, t in enumerate(TEXTS))
        ]

    assert tokens_of(tts, together, monkeypatch) == tokens_of(tts, one_by_one, monkeypatch)


def test_requests_start_and_end_while_others_run(noise_model: Model, profile: str) -> None:
    """Different lengths, guidance on and off, different temperatures, more requests than slots."""
    tts = engine(noise_model, profile, slots=2)
    options = [{"cfg_weight": 0.0}, {"temperature": 1.2}, {}, {"cfg_weight": 1.0, "top_p": 0.8}]
    streams = [tts.stream(t, seed=i, **w) for i, (t, w) in enumerate(zip(TEXTS, options, strict=True))]
    for stream in reversed(streams):
        assert sum(len(chunk.samples) for chunk in stream) == 24 * 960
    assert is_idle(tts._worker.scheduler)


def test_closing_a_stream_frees_its_slot(noise_model: Model) -> None:
    tts = engine(noise_model, "balanced", tokens=400, slots=1)
    stream = tts.stream("This would go on for a long while.", seed=1)
    next(stream)
    stream.close()
    assert within(5, lambda: is_idle(tts._worker.scheduler) and not tts._worker._jobs)
    assert len(tts.say("Now I can speak.", seed=2).samples) > 0


def test_a_full_queue_refuses_at_once_and_recovers(noise_model: Model) -> None:
    tts = engine(noise_model, "balanced", tokens=200, slots=1, queue_limit=2)
    opened = [tts.stream(TEXTS[0], seed=0)]
    assert within(5, lambda: len(tts._worker.scheduler.running) == 1)
    opened += [tts.stream(TEXTS[0], seed=i) for i in (1, 2)]
    with pytest.raises(QueueFull):
        tts.stream(TEXTS[0], seed=3)
    for stream in opened:
        stream.close()
        list(stream)
    assert within(10, lambda: is_idle(tts._worker.scheduler))
    assert len(tts.say(TEXTS[2], seed=1).samples) > 0


def test_an_error_ends_only_its_own_request(
    noise_model: Model, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = engine(noise_model, profile)
    want = tts.say(TEXTS[1], seed=1, temperature=0.0).metrics.tokens
    plain, faulty = NoiseStream.push, stream_key(13, "source")

    def push(self: NoiseStream, tokens: list[int], *, final: bool) -> Samples:
        if self._key == faulty:
            raise RuntimeError("a fault was planted here")
        return plain(self, tokens, final=final)

    monkeypatch.setattr(NoiseStream, "push", push)
    good, bad = tts.stream(TEXTS[1], seed=1, temperature=0.0), tts.stream(TEXTS[0], seed=13)
    with pytest.raises(EngineFault, match="a fault was planted here"):
        list(bad)
    assert sum(len(chunk.samples) for chunk in good) == 960 * want
    assert within(5, lambda: is_idle(tts._worker.scheduler))


def test_out_of_memory_in_prefill_ends_only_that_request(
    noise_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = engine(noise_model, "balanced")
    plain = NoiseRunner.prefill

    def prefill(self: NoiseRunner, slot: int, prompt: Prompt, *, max_tokens: int) -> Logits:
        if len(prompt.text_ids) > 60:
            raise MemoryError("no room for a prompt this long")
        return plain(self, slot, prompt, max_tokens=max_tokens)

    monkeypatch.setattr(NoiseRunner, "prefill", prefill)
    with pytest.raises(MemoryFull, match="no room"):
        tts.say("This text is long enough to be refused by the planted fault in the runner.")
    assert len(tts.say("Short.", seed=1).samples) > 0


def test_a_failed_batch_is_retried_one_by_one(noise_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    tts = engine(noise_model, "balanced")
    plain, failed = NoiseRunner.step, []

    def step(self: NoiseRunner, inputs: Any) -> list[Logits]:
        if len(inputs) > 1:
            failed.append(len(inputs))
            raise RuntimeError("not together")
        return plain(self, inputs)

    monkeypatch.setattr(NoiseRunner, "step", step)
    streams = [tts.stream(text, seed=i) for i, text in enumerate(TEXTS)]
    received = [joined(stream) for stream in streams]
    assert failed, "no batch was tried"
    for i, text in enumerate(TEXTS):
        assert len(received[i]) == 24 * 960
        assert np.array_equal(received[i], tts.say(text, seed=i).samples)


BOOK = "Nobody reads this for now. " * 5
BOOK_SAMPLES = 5 * 6 * 960 + 4 * 2880
"""Five segments and the pauses between them."""


def with_small_buffers(model: Model, profile: str, **plan: Any) -> TTS:
    """An engine with a segment per sentence, and listeners that stall after half a second."""
    return engine(model.with_defaults(fill_segments=False), profile, tokens=6, ahead_seconds=0.5, **plan)


def stalled(tts: TTS) -> int:
    """Return how many requests wait for their listener."""
    return sum(job.parked and job.segment is not None for job in list(tts._worker._jobs.values()))


def joined(stream: Iterator[Any]) -> Any:
    return np.concatenate([chunk.samples for chunk in stream])


def test_stalled_listeners_hold_no_slots_and_lose_nothing(noise_model: Model, profile: str) -> None:
    tts = with_small_buffers(noise_model, profile)
    assert tts._worker.profile.slots == 8
    stalled_streams = [tts.stream(BOOK, seed=i) for i in range(8)]
    firsts = [next(stream).samples for stream in stalled_streams]
    assert within(LIMIT_S, lambda: stalled(tts) == 8 and not tts._worker._has_work())
    assert is_idle(tts._worker.scheduler)
    assert max(sum(chunk.seconds for chunk in s._session._chunks) for s in stalled_streams) < 1
    ninth: list[Any] = []
    thread = threading.Thread(target=lambda: ninth.append(tts.say(BOOK, seed=9)), daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert ninth, "the ninth request waits for eight stalled listeners"
    assert stalled(tts) == 8
    received = [np.concatenate([first, joined(s)]) for first, s in zip(firsts, stalled_streams, strict=True)]
    assert within(LIMIT_S, lambda: is_idle(tts._worker.scheduler) and not tts._worker._jobs)
    for seed, samples in enumerate(received):
        assert len(samples) == BOOK_SAMPLES
        if profile == "exact":
            assert np.array_equal(samples, tts.say(BOOK, seed=seed).samples)


def test_a_listener_that_stalls_in_mid_sentence_keeps_no_slot(noise_model: Model) -> None:
    tts = engine(noise_model, "balanced", tokens=100, slots=1, ahead_seconds=0.5, largest_block_tokens=8)
    stalled_stream = tts.stream("Nobody reads this for now.", seed=1)
    next(stalled_stream)
    other: list[Any] = []
    thread = threading.Thread(target=lambda: other.append(tts.say("Others go on.", seed=2)), daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert other, "a stalled listener holds the only slot"
    assert sum(len(chunk.samples) for chunk in stalled_stream) > 80 * 960


def test_a_finished_request_ends_although_its_audio_is_unread(noise_model: Model, profile: str) -> None:
    tts = engine(noise_model, profile, tokens=25, ahead_seconds=0.5)
    stream = tts.stream("Only this, and no more than that.", seed=1)
    assert within(LIMIT_S, lambda: not tts._worker._jobs)
    assert len(joined(stream)) == 25 * 960


def test_long_pauses_are_subject_to_backpressure(noise_model: Model, profile: str) -> None:
    tts = with_small_buffers(noise_model, profile)
    stream = tts.stream("Wait." + " [pause:10s]" * 100 + " Now.", seed=1)
    assert within(LIMIT_S, lambda: stalled(tts) == 1)
    assert sum(len(chunk.samples) for chunk in stream._session._chunks) < 11 * 24_000
    assert sum(len(chunk.samples) for chunk in stream) == 2 * 6 * 960 + 1000 * 24_000


def test_the_number_of_stalled_listeners_is_limited(noise_model: Model) -> None:
    tts = with_small_buffers(noise_model, "balanced", stalled_limit=2)
    stalled_streams = [tts.stream(BOOK, seed=i) for i in range(2)]
    assert within(LIMIT_S, lambda: stalled(tts) == 2)
    with pytest.raises(QueueFull, match="2 of them"):
        tts.stream(BOOK, seed=3)
    stalled_streams[0].close()
    assert within(LIMIT_S, lambda: len(tts._worker._jobs) == 1)
    assert len(tts.say(TEXTS[0], seed=4).samples) > 0


def test_text_is_not_segmented_under_the_lock(noise_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a request does not wait for the segmentation of another request's text."""
    tts = with_small_buffers(noise_model, "balanced")
    segmenting, resume = threading.Event(), threading.Event()
    plain, calls = SegmentQueue.next, iter([False, True])

    def slow(self: SegmentQueue) -> Any:
        if next(calls, False):  # the second segment, taken when the first was rendered
            segmenting.set()
            assert resume.wait(LIMIT_S)
        return plain(self)

    monkeypatch.setattr(SegmentQueue, "next", slow)
    first = tts.stream(BOOK, seed=1)
    assert segmenting.wait(LIMIT_S)
    opened: list[Any] = []
    thread = threading.Thread(target=lambda: opened.append(tts.stream(TEXTS[0], seed=2)), daemon=True)
    thread.start()
    thread.join(5)
    resume.set()
    assert opened, "opening waited for another request's text"
    assert len(joined(opened[0])) == 6 * 960
    first.close()


def test_text_added_just_before_the_end_is_spoken(
    noise_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the text may arrive between the checks for a segment and for the end."""
    tts = with_small_buffers(noise_model, "balanced")
    session = tts.session(seed=1)
    plain, held = SegmentQueue.next, threading.Event()

    def late(self: SegmentQueue) -> Any:
        piece = plain(self)
        if piece is None and not held.is_set():
            held.set()
            session.push("This came last.")
            session.end()
        return piece

    assert within(LIMIT_S, lambda: all(job.parked for job in list(tts._worker._jobs.values())))
    monkeypatch.setattr(SegmentQueue, "next", late)
    session.push("This is said first, and it is long enough. ")
    session.flush()
    assert sum(len(chunk.samples) for chunk in session) >= 2 * 6 * 960
    assert held.is_set()


def test_a_thousand_requests_leak_nothing(noise_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    tts = engine(noise_model, "balanced", tokens=2)
    tts.say("Warm up.", seed=0)
    gc.collect()
    before = sum(1 for thing in gc.get_objects() if type(thing) in (Session, Utterance))
    for i in range(1000):
        stream = tts.stream("Go.", seed=i)
        if i % 3:
            list(stream)
        else:
            stream.close()
    assert within(LIMIT_S, lambda: is_idle(tts._worker.scheduler) and not tts._worker._jobs)
    gc.collect()
    assert tts._worker.decoder.runner.kv_bytes == 0
    assert sum(1 for thing in gc.get_objects() if type(thing) in (Session, Utterance)) <= before + 2


def test_closing_the_engine_ends_running_requests(noise_model: Model) -> None:
    tts = engine(noise_model, "balanced", tokens=400)
    stream = tts.stream("This will not be finished.", seed=1)
    next(stream)
    tts.close()
    with pytest.raises(EngineFault, match="closed"):
        list(stream)
    with pytest.raises(EngineFault, match="closed"):
        tts.say("Too late.")


def test_a_collected_engine_ends_its_thread(noise_model: Model) -> None:
    tts = engine(noise_model, "balanced")
    tts.say("Hello.", seed=1)
    thread, gone = tts._worker._thread, weakref.ref(tts)
    del tts
    gc.collect()
    assert gone() is None
    assert thread is not None
    assert within(10, lambda: not thread.is_alive())


def test_a_stream_keeps_its_engine_alive(noise_model: Model) -> None:
    stream = engine(noise_model, "balanced").stream("Nobody else holds the engine.", seed=1)
    gc.collect()
    assert sum(len(chunk.samples) for chunk in stream) == 24 * 960


def test_threads_may_share_one_engine(noise_model: Model, profile: str) -> None:
    tts = engine(noise_model, profile, slots=3)
    want = [tts.say(text, seed=i, temperature=0.0).metrics.tokens for i, text in enumerate(TEXTS)]
    got: dict[int, int | NightingaleError] = {}

    def speak(i: int) -> None:
        got[i] = tts.say(TEXTS[i], seed=i, temperature=0.0).metrics.tokens

    threads = [threading.Thread(target=speak, args=(i,)) for i in range(len(TEXTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert [got[i] for i in range(len(TEXTS))] == want


def test_say_many_is_say_many_times(noise_model: Model) -> None:
    tts = engine(noise_model, "exact")
    assert [a.sha256 for a in tts.say_many(TEXTS, seed=5)] == [tts.say(t, seed=5).sha256 for t in TEXTS]


@pytest.mark.parametrize("profile", ["balanced", "fast"])
def test_a_session_without_text_does_not_count_as_concurrency(noise_model: Model, profile: str) -> None:
    with engine(noise_model, profile, tokens=200) as tts:
        alone = tts.say("A sentence that takes a while.", seed=1).sha256
        with tts.session(seed=2):
            assert within(LIMIT_S, lambda: all(job.parked for job in list(tts._worker._jobs.values())))
            assert tts.say("A sentence that takes a while.", seed=1).sha256 == alone


def test_audio_starts_before_the_last_token_is_sampled(noise_model: Model) -> None:
    tts = engine(noise_model, "balanced", tokens=200)
    audio = tts.say("A sentence that takes a while.", seed=1)
    assert audio.metrics.ttfa_ms < 0.5 * audio.metrics.total_ms
    assert len(audio.metrics.chunk_gaps_ms) >= 3
    assert audio.metrics.tokens_per_s > 0
