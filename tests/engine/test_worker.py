"""Many at once: nobody hears anybody else, nobody waits for ever, nothing is lost or left behind."""

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
import torch
from torch import Tensor

from nightingale import TTS
from nightingale.engine import profiles
from nightingale.backends.torch.pipelined import PipelinedRenderer
from nightingale.engine.model import Model
from nightingale.backends.torch.runner import PlainRunner
from nightingale.engine.session import SegmentQueue
from nightingale.backends.torch.renderer import Block, TorchRenderer
from nightingale.engine.rendering.utterance import Utterance
from nightingale.errors import EngineFault, NightingaleError, QueueFull

TEXTS = ["Hello there.", "A second voice, a little longer.", "Three.", "And the fourth one speaks as well."]
LIMIT_S = 60.0


@pytest.fixture(params=["exact", "balanced"])
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def engine(model: Model, profile: str, *, tokens: int = 24, **plan: Any) -> TTS:
    """The stand-in with a short breath; `plan` changes the profile."""
    model = replace(model, defaults=replace(model.defaults, max_new_tokens=tokens))
    tts = TTS.over(model, profile)
    if plan:
        tts.close()
        changed = replace(profiles.PROFILES[profile], **plan)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(profiles, "PROFILES", {**profiles.PROFILES, profile: changed})
            tts = TTS.over(model, profile)
    return tts


def within(seconds: float, done: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def test_in_the_exact_profile_a_crowd_changes_no_bit(noise_model: Model) -> None:
    tts = engine(noise_model, "exact")
    alone = [tts.say(text, seed=i).sha256 for i, text in enumerate(TEXTS)]
    crowd = [tts.stream(text, seed=i) for i, text in enumerate(TEXTS)]
    heard = [np.concatenate([chunk.samples for chunk in stream]) for stream in crowd]
    again = [tts.say(text, seed=i) for i, text in enumerate(TEXTS)]
    assert [audio.sha256 for audio in again] == alone
    for samples, audio in zip(heard, again, strict=True):
        assert np.array_equal(samples, audio.samples)


def tokens_of(
    tts: TTS, open_all: Callable[[TTS], list[Iterator[Any]]], monkeypatch: pytest.MonkeyPatch
) -> list[list[int]]:
    """What each request drew, in the order the requests were opened."""
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


def test_at_temperature_zero_a_crowd_changes_no_token(
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


def test_requests_join_and_leave_while_others_speak(noise_model: Model, profile: str) -> None:
    """Different lengths, guidance on and off, different temperatures, more requests than slots."""
    tts = engine(noise_model, profile, slots=2)
    wishes = [{"cfg_weight": 0.0}, {"temperature": 1.2}, {}, {"cfg_weight": 1.0, "top_p": 0.8}]
    streams = [tts.stream(t, seed=i, **w) for i, (t, w) in enumerate(zip(TEXTS, wishes, strict=True))]
    for stream in reversed(streams):
        assert sum(len(chunk.samples) for chunk in stream) == 24 * 960
    assert tts._worker.scheduler.is_idle


def test_a_listener_who_leaves_frees_the_slot(noise_model: Model) -> None:
    tts = engine(noise_model, "balanced", tokens=400, slots=1)
    stream = tts.stream("This would go on for a long while.", seed=1)
    next(stream)
    stream.close()
    assert within(5, lambda: tts._worker.scheduler.is_idle and not tts._worker._jobs)
    assert len(tts.say("Now I can speak.", seed=2).samples) > 0


def test_a_full_line_is_refused_at_once_and_recovers(noise_model: Model) -> None:
    tts = engine(noise_model, "balanced", tokens=200, slots=1, queue_limit=2)
    opened = [tts.stream(TEXTS[0], seed=0)]
    assert within(5, lambda: len(tts._worker.scheduler.running) == 1)
    opened += [tts.stream(TEXTS[0], seed=i) for i in (1, 2)]
    with pytest.raises(QueueFull):
        tts.stream(TEXTS[0], seed=3)
    for stream in opened:
        stream.close()
        list(stream)
    assert within(10, lambda: tts._worker.scheduler.is_idle)
    assert len(tts.say(TEXTS[2], seed=1).samples) > 0


def test_who_fails_fails_alone(noise_model: Model, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tts = engine(noise_model, profile)
    want = tts.say(TEXTS[1], seed=1, temperature=0.0).metrics.tokens
    plain = TorchRenderer.mel

    def mel(self: TorchRenderer, block: Block) -> Tensor:
        if block.rendering.mel._seed == 13:
            raise RuntimeError("a fault was planted here")
        return plain(self, block)

    monkeypatch.setattr(TorchRenderer, "mel", mel)
    good, bad = tts.stream(TEXTS[1], seed=1, temperature=0.0), tts.stream(TEXTS[0], seed=13)
    with pytest.raises(EngineFault, match="a fault was planted here"):
        list(bad)
    assert sum(len(chunk.samples) for chunk in good) == 960 * want
    assert within(5, lambda: tts._worker.scheduler.is_idle)


def test_out_of_memory_in_a_prompt_ends_that_request_only(
    noise_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = engine(noise_model, "balanced")
    runner: Any = tts._worker.draws.runner  # type: ignore[attr-defined]
    plain = runner.begin

    def begin(slot: int, prompt: torch.Tensor) -> torch.Tensor:
        if prompt.shape[1] > 60:
            raise torch.OutOfMemoryError("no room for a prompt this long")
        found: torch.Tensor = plain(slot, prompt)
        return found

    monkeypatch.setattr(runner, "begin", begin)
    with pytest.raises(EngineFault, match="no room"):
        tts.say("This text is long enough to be refused by the planted fault in the runner.")
    assert len(tts.say("Short.", seed=1).samples) > 0


def test_a_step_that_fails_together_is_tried_apart(
    noise_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = engine(noise_model, "balanced")
    monkeypatch.setattr(
        PlainRunner, "_together", lambda *_: (_ for _ in ()).throw(RuntimeError("not together"))
    )
    streams = [tts.stream(text, seed=i) for i, text in enumerate(TEXTS)]
    for stream in streams:
        assert sum(len(chunk.samples) for chunk in stream) == 24 * 960


BOOK = "Nobody reads this for now. " * 5
BOOK_SAMPLES = 5 * 6 * 960 + 4 * 2880
"""Five pieces, where each sentence is one, and the pauses between them."""


def sleepy(model: Model, profile: str, **plan: Any) -> TTS:
    """Each sentence is a piece of a third of a second, and half a second is far enough ahead."""
    model = replace(model, defaults=replace(model.defaults, fill_pieces=False))
    return engine(model, profile, tokens=6, ahead_seconds=0.5, **plan)


def asleep(tts: TTS) -> int:
    """How many have more to say, and wait for their listener."""
    return sum(job.parked and job.segment is not None for job in list(tts._worker._jobs.values()))


def joined(stream: Iterator[Any]) -> Any:
    return np.concatenate([chunk.samples for chunk in stream])


def test_listeners_who_do_not_read_give_up_their_slots_and_lose_nothing(
    noise_model: Model, profile: str
) -> None:
    tts = sleepy(noise_model, profile)
    assert tts._worker.profile.slots == 8
    sleepers = [tts.stream(BOOK, seed=i) for i in range(8)]
    firsts = [next(stream).samples for stream in sleepers]
    assert within(LIMIT_S, lambda: asleep(tts) == 8)
    assert tts._worker.scheduler.is_idle
    assert not tts._worker._has_work()
    assert max(sum(chunk.seconds for chunk in s._session._chunks) for s in sleepers) < 1
    ninth: list[Any] = []
    thread = threading.Thread(target=lambda: ninth.append(tts.say(BOOK, seed=9)), daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert ninth, "the ninth waits for eight who sleep"
    assert asleep(tts) == 8
    heard = [np.concatenate([first, joined(s)]) for first, s in zip(firsts, sleepers, strict=True)]
    assert within(LIMIT_S, lambda: tts._worker.scheduler.is_idle and not tts._worker._jobs)
    for seed, samples in enumerate(heard):
        assert len(samples) == BOOK_SAMPLES
        if profile == "exact":
            assert np.array_equal(samples, tts.say(BOOK, seed=seed).samples)


def test_a_listener_who_stops_reading_in_mid_sentence_keeps_no_slot(noise_model: Model) -> None:
    tts = engine(noise_model, "balanced", tokens=100, slots=1, ahead_seconds=0.5, largest_block_tokens=8)
    sleeper = tts.stream("Nobody reads this for now.", seed=1)
    next(sleeper)
    other: list[Any] = []
    thread = threading.Thread(target=lambda: other.append(tts.say("Others go on.", seed=2)), daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert other, "the only slot is held by one who sleeps"
    assert sum(len(chunk.samples) for chunk in sleeper) > 80 * 960


def test_who_has_nothing_more_to_say_ends_though_nobody_listens(noise_model: Model, profile: str) -> None:
    tts = engine(noise_model, profile, tokens=25, ahead_seconds=0.5)
    stream = tts.stream("Only this, and no more than that.", seed=1)
    assert within(LIMIT_S, lambda: not tts._worker._jobs)
    assert len(joined(stream)) == 25 * 960


def test_a_silence_of_hours_is_held_back_like_speech(noise_model: Model, profile: str) -> None:
    tts = sleepy(noise_model, profile)
    stream = tts.stream("Wait." + " [pause:10s]" * 100 + " Now.", seed=1)
    assert within(LIMIT_S, lambda: asleep(tts) == 1)
    assert sum(len(chunk.samples) for chunk in stream._session._chunks) < 11 * 24_000
    assert sum(len(chunk.samples) for chunk in stream) == 2 * 6 * 960 + 1000 * 24_000


def test_there_is_an_end_to_how_many_may_sleep(noise_model: Model) -> None:
    tts = sleepy(noise_model, "balanced", sleepers_limit=2)
    sleepers = [tts.stream(BOOK, seed=i) for i in range(2)]
    assert within(LIMIT_S, lambda: asleep(tts) == 2)
    with pytest.raises(QueueFull, match="2 of them"):
        tts.stream(BOOK, seed=3)
    sleepers[0].close()
    assert within(LIMIT_S, lambda: len(tts._worker._jobs) == 1)
    assert len(tts.say(TEXTS[0], seed=4).samples) > 0


def test_text_is_not_cut_under_the_lock(noise_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens a request while another's text is being cut does not wait for that."""
    tts = sleepy(noise_model, "balanced")
    cutting, go_on = threading.Event(), threading.Event()
    plain, calls = SegmentQueue.next, iter([False, True])

    def slow(self: SegmentQueue) -> Any:
        if next(calls, False):  # the second piece, which is cut when the first was rendered
            cutting.set()
            assert go_on.wait(LIMIT_S)
        return plain(self)

    monkeypatch.setattr(SegmentQueue, "next", slow)
    first = tts.stream(BOOK, seed=1)
    assert cutting.wait(LIMIT_S)
    opened: list[Any] = []
    thread = threading.Thread(target=lambda: opened.append(tts.stream(TEXTS[0], seed=2)), daemon=True)
    thread.start()
    thread.join(5)
    go_on.set()
    assert opened, "opening waited for somebody else's text"
    assert len(joined(opened[0])) == 6 * 960
    first.close()


def test_what_is_added_just_before_the_end_is_said(
    noise_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the text may come between the look for a piece and the look for the end."""
    tts = sleepy(noise_model, "balanced")
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


def test_a_thousand_requests_leave_nothing_behind(
    noise_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Measured is who is remembered, not the sound.
    monkeypatch.setattr(TorchRenderer, "mel", lambda *_: None)
    monkeypatch.setattr(TorchRenderer, "excite", lambda *_: None)
    monkeypatch.setattr(TorchRenderer, "samples", lambda *_: np.zeros(960, np.float32))
    tts = engine(noise_model, "balanced", tokens=2)
    pool = tts._worker.draws.bytes
    tts.say("Warm up.", seed=0)
    gc.collect()
    before = sum(1 for thing in gc.get_objects() if type(thing) is torch.Tensor)
    for i in range(1000):
        stream = tts.stream("Go.", seed=i)
        if i % 3:
            list(stream)
        else:
            stream.close()
    assert within(LIMIT_S, lambda: tts._worker.scheduler.is_idle and not tts._worker._jobs)
    gc.collect()
    assert tts._worker.draws.bytes == pool
    assert sum(1 for thing in gc.get_objects() if type(thing) is torch.Tensor) <= before + 20


def test_closing_ends_what_is_being_said(noise_model: Model) -> None:
    tts = engine(noise_model, "balanced", tokens=400)
    stream = tts.stream("This will not be finished.", seed=1)
    next(stream)
    tts.close()
    with pytest.raises(EngineFault, match="closed"):
        list(stream)
    with pytest.raises(EngineFault, match="closed"):
        tts.say("Too late.")


def test_a_forgotten_engine_takes_its_thread_along(noise_model: Model) -> None:
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
def test_who_only_waits_for_text_is_no_company(noise_model: Model, profile: str) -> None:
    with engine(noise_model, profile, tokens=200) as tts:
        alone = tts.say("A sentence that takes a while.", seed=1).sha256
        with tts.session(seed=2):
            assert within(LIMIT_S, lambda: all(job.parked for job in list(tts._worker._jobs.values())))
            assert tts.say("A sentence that takes a while.", seed=1).sha256 == alone


def test_the_stream_is_heard_before_the_last_token_is_drawn(noise_model: Model) -> None:
    tts = engine(noise_model, "balanced", tokens=200)
    audio = tts.say("A sentence that takes a while.", seed=1)
    assert audio.metrics.ttfa_ms < 0.5 * audio.metrics.total_ms
    assert len(audio.metrics.chunk_gaps_ms) >= 3
    assert audio.metrics.tokens_per_s > 0


def test_voices_are_remembered_within_bounds(noise_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    from nightingale.voices.voice import Voice

    voice = noise_model.default_voice
    assert voice is not None

    def another(number: int) -> Voice:
        return Voice.checked(
            name=f"v{number}",
            family=voice.family,
            speaker=voice.speaker,
            prompt_ids=voice.prompt_ids,
            flow_prompt_ids=voice.flow_prompt_ids,
            flow_prompt_mel=voice.flow_prompt_mel + number,
            flow_speaker=voice.flow_speaker,
        )

    tts = engine(noise_model, "balanced", tokens=2)
    tts.say("Hi.", seed=1)
    studio = tts._worker.studio
    studio = studio._plain if isinstance(studio, PipelinedRenderer) else studio
    assert isinstance(studio, TorchRenderer)
    (one,) = studio._prompts._kept.values()
    monkeypatch.setattr(studio._prompts, "_most_bytes", 3 * one.nbytes)
    for number in range(1, 6):
        tts.say("Hi.", voice=another(number), seed=1)
    assert len(studio._prompts._kept) == 3
