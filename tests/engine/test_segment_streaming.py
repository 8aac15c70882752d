"""Streaming by segments: audio starts after the first sentence, and the next one is decoded meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from engine_helpers import is_drained, wait_until
from simulated_engine import Costs, SimulatedEngine

from nightingale import TTS
from nightingale.backends.base import Block
from nightingale.backends.noise.renderer import NoiseRenderer
from nightingale.backends.noise.runner import NoiseRunner
from nightingale.backends.profiles import BALANCED
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.sampling import Logits
from nightingale.engine.load import Model
from nightingale.engine.session import Session
from nightingale.errors import ConfigError
from nightingale.types import Samples

SENTENCES = [
    "The first sentence comes right away.",
    "The second one follows it a little later.",
    "And the third one is the last of them all.",
]
TEXT = " ".join(SENTENCES)
BY_SEGMENTS = replace(BALANCED, stream="segment")


@pytest.fixture
def official(noise_model: Model) -> Model:
    """Return a model of test signals with the stream mode and the segments of the official models."""
    return noise_model.with_defaults(profile="balanced", stream="segment", max_new_tokens=20)


@pytest.fixture
def slow_renderer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let test signals be rendered in a thread beside the decoder, more slowly than tokens are decoded."""
    pool, render = ThreadPoolExecutor(max_workers=1), NoiseRenderer.render

    def render_slowly(self: NoiseRenderer, blocks: Sequence[Block]) -> list[Samples]:
        time.sleep(0.05)
        return render(self, blocks).result()

    def submit(self: NoiseRenderer, blocks: Sequence[Block]) -> Future[list[Samples]]:
        return pool.submit(render_slowly, self, blocks)

    monkeypatch.setattr(NoiseRenderer, "render", submit)
    monkeypatch.setattr(NoiseRenderer, "max_in_flight", 2)
    yield
    pool.shutdown()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each prompt and each chunk is added as it comes."""
    seen: list[str] = []
    prefill, put = NoiseRunner.prefill, Session.put

    def note_prompt(self: NoiseRunner, slot: int, prompt: Prompt, *, max_tokens: int) -> Logits:
        seen.append(prompt.text)
        return prefill(self, slot, prompt, max_tokens=max_tokens)

    def note_audio(self: Session, samples: Samples) -> None:
        seen.append("audio")
        put(self, samples)

    monkeypatch.setattr(NoiseRunner, "prefill", note_prompt)
    monkeypatch.setattr(Session, "put", note_audio)
    return seen


def segments_of(tts: TTS, text: str) -> list[str]:
    return [chunk.begins.text for chunk in tts.stream(text, seed=1) if chunk.begins is not None]


def test_audio_starts_before_the_second_segment_is_decoded(official: Model, events: list[str]) -> None:
    with TTS.over(official) as tts:
        chunks = list(tts.stream(TEXT, seed=1))
    assert len(chunks) == 2
    assert events == [SENTENCES[0], "audio", " ".join(SENTENCES[1:]), "audio"]


def test_a_segment_is_decoded_while_the_one_before_it_is_rendered(
    official: Model, events: list[str], slow_renderer: None
) -> None:
    with TTS.over(official) as tts:
        list(tts.stream(TEXT, seed=1))
    assert events == [SENTENCES[0], " ".join(SENTENCES[1:]), "audio", "audio"]


def test_exact_and_blocks_keep_a_short_text_in_one_segment(official: Model) -> None:
    for profile in ("exact", "balanced+stream=block"):
        with TTS.over(official, profile) as tts:
            assert segments_of(tts, TEXT) == [TEXT]
    with TTS.over(official) as tts:
        assert segments_of(tts, TEXT) == [SENTENCES[0], " ".join(SENTENCES[1:])]


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "[pause:200ms] " + TEXT,
        f"{SENTENCES[0]} [pause:10s][pause:2s] {SENTENCES[1]}",
        f"{TEXT}\n\n{TEXT} {TEXT}\n\n{SENTENCES[0]}",
    ],
)
def test_a_renderer_beside_the_decoder_changes_nothing_but_the_time(
    official: Model, text: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Samples, the order of pauses, and which chunk begins which segment stay the same."""

    def speak() -> list[tuple[Any, Samples]]:
        with TTS.over(official) as tts:
            spoken = [(chunk.begins, chunk.samples) for chunk in tts.stream(text, seed=3)]
            assert is_drained(tts)
        return spoken

    expected = speak()
    request.getfixturevalue("slow_renderer")
    got = speak()
    assert [begins for begins, _ in got] == [begins for begins, _ in expected]
    for (_, one), (_, other) in zip(got, expected, strict=True):
        assert np.array_equal(one, other)


def test_text_that_arrives_later_is_spoken_in_order(official: Model, slow_renderer: None) -> None:
    with TTS.over(official) as tts, tts.session(seed=1) as session:
        chunks = iter(session)
        for sentence in SENTENCES:
            session.push(sentence + " ")
        session.flush()
        spoken = [next(chunks).begins for _ in SENTENCES]
        assert wait_until(lambda: all(job.parked for job in tts._worker._jobs.values()))
        session.push("A late sentence, after a while.")
        session.end()
        spoken += [chunk.begins for chunk in chunks]
    texts = [begins.text.strip() for begins in spoken if begins is not None]
    assert texts == [*SENTENCES, "A late sentence, after a while."]


def test_a_stream_left_early_frees_both_of_its_segments(official: Model, slow_renderer: None) -> None:
    with TTS.over(official) as tts:
        stream = tts.stream(" ".join([TEXT] * 20), seed=1)
        next(stream)
        stream.close()
        assert is_drained(tts)
        assert len(tts.say(SENTENCES[0], seed=1).samples) > 0


@pytest.mark.parametrize("cores", [2, 4])
def test_segments_overlap_in_simulated_time(
    noise_model: Model, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    costs = Costs()
    engine = SimulatedEngine(noise_model, profile=BY_SEGMENTS, costs=costs, cores=cores)
    most, step = [0], engine.worker._step

    def count() -> None:
        step()
        most.append(max((len(job.utterances) for job in engine.worker._jobs.values()), default=0))

    monkeypatch.setattr(engine.worker, "_step", count)
    listener = engine.open(40, 100, 100, 100)
    engine.run()
    render_s = sum(costs.flow_s) + sum(costs.vocoder_s) + 99 * (costs.flow_s[1] + costs.vocoder_s[1])
    decode_s = costs.prefill_s + 100 * costs.step_s
    times_s = [time_s for time_s, _ in listener.arrivals]
    assert len(times_s) == 4
    assert listener.first_audio_s < 0.4 * (decode_s + render_s) + 0.1
    for one_s, next_s in pairwise(times_s[1:]):
        assert next_s - one_s < 1.1 * max(render_s, decode_s), "one is decoded while the other is rendered"
    assert max(most) == 2, "no more are decoded ahead of the renderer"


@pytest.mark.parametrize(("count", "last_s"), [(4, 1.0), (16, 6.0)])
def test_listeners_of_segments_have_no_underruns(noise_model: Model, count: int, last_s: float) -> None:
    """The engine makes 30 s of audio per second; half of that is given to listeners, so some of 16 wait."""
    costs = Costs(prefill_s=0.01, step_s=0.001, row_s=0.0001, flow_s=(0.01, 0.001), vocoder_s=(0.01, 0.001))
    engine = SimulatedEngine(noise_model, profile=BY_SEGMENTS, costs=costs)
    listeners = [engine.open(40, 80, 160, 160) for _ in range(count)]
    engine.run()
    assert [listener.underruns for listener in listeners] == [0] * count
    assert max(listener.first_audio_s for listener in listeners) < last_s


def test_python_options_are_those_of_the_profile() -> None:
    with TTS("noise", profile="balanced", stream="segment", flow_steps=4) as tts:
        assert tts.plan.profile.name == "balanced+stream=segment+flow_steps=4"
        assert (tts.plan.profile.stream, tts.plan.profile.flow_steps) == ("segment", 4)
    with TTS("noise", profile="balanced", first_block_tokens=6) as tts:
        assert len(next(tts.stream(TEXT, seed=1)).samples) == 6 * 960
    with TTS("noise", profile="default") as tts:
        assert (tts.plan.profile.name, tts.plan.profile.stream) == ("balanced", "block")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"stream": "blocks"}, "stream"),
        ({"stream": "block", "profile": "exact"}, "stream"),
        ({"stream": True}, "stream"),
        ({"flow_steps": 0}, "flow_steps"),
        ({"flow_steps": 2.5}, "flow_steps"),
        ({"first_block_tokens": 100}, "first_block_tokens"),
        ({"first_block_tokens": 8, "stream": "segment"}, "first_block_tokens"),
    ],
)
def test_python_options_out_of_range_are_refused(options: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TTS("noise", **{"profile": "balanced", **options})
    assert caught.value.param == param
    assert caught.value.allowed
    assert caught.value.fix
