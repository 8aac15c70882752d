"""Playback deadlines: who is rendered first, who starts when, and how many streams run at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from engine_helpers import open_engine

from nightingale import TTS
from nightingale.backends.base import Block
from nightingale.backends.noise.renderer import NoiseRenderer
from nightingale.backends.noise.runner import NoiseRunner
from nightingale.decoding.decoding import Prompt
from nightingale.engine.load import Model
from nightingale.engine.rate import LEAST_STREAMS, RateMeter
from nightingale.engine.session import FIRST_AUDIO_S, Timing
from nightingale.engine.worker import Worker

BLOCK_S = 0.02
"""Time that the slow renderer takes for a block: longer than decoding its tokens."""
TOKENS = 600
TEXT = "This is a sentence of some length."


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a block take so long that blocks of other streams wait."""
    render = NoiseRenderer.render

    def slower(self: NoiseRenderer, blocks: Sequence[Block]) -> Any:
        time.sleep(BLOCK_S)
        return render(self, blocks)

    monkeypatch.setattr(NoiseRenderer, "render", slower)


def finish_order(tts: TTS, count: int) -> list[int]:
    """Open streams one after the other, read them at once, and return the order in which they end."""
    ended: list[int] = []
    streams = [tts.stream(TEXT, seed=number) for number in range(count)]

    def read(number: int) -> None:
        for _ in streams[number]:
            pass
        ended.append(number)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return ended


def test_the_deadline_is_when_a_player_runs_out_of_audio() -> None:
    timing = Timing()
    assert timing.deadline_s == timing.opened_s + FIRST_AUDIO_S
    timing.delivered(24_000)
    assert timing.first_audio_s is not None
    assert timing.deadline_s == timing.first_audio_s + 1.0
    timing.delivered(12_000)
    assert timing.deadline_s == timing.first_audio_s + 1.5


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("last_first", [False, True])
def test_the_block_with_the_earliest_deadline_is_rendered_first(
    noise_model: Model, last_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "_deadline_s", lambda self, request: -request if last_first else request)
    with open_engine(noise_model, max_new_tokens=TOKENS) as tts:
        order = finish_order(tts, 3)
    assert order[-1] == (0 if last_first else 2)


@pytest.mark.usefixtures("slow")
def test_a_stream_starts_after_the_first_block_of_the_one_before_it(
    noise_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, starting = NoiseRunner.prefill, []

    def count(self: NoiseRunner, slot: int, prompt: Prompt, *, max_tokens: int) -> Any:
        starting.append(sum(job.is_new and job.utterance is not None for job in tts._worker._jobs.values()))
        return prefill(self, slot, prompt, max_tokens=max_tokens)

    monkeypatch.setattr(NoiseRunner, "prefill", count)
    with open_engine(noise_model, max_new_tokens=TOKENS) as tts:
        assert len(finish_order(tts, 4)) == 4
    assert starting == [1, 1, 1, 1]


@pytest.mark.usefixtures("slow")
def test_no_more_streams_start_than_the_measured_rate_supplies(
    noise_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once: list[int] = []
    monkeypatch.setattr(RateMeter, "rate", 2.0)
    monkeypatch.setattr("nightingale.engine.worker.SOON_S", 1e6)
    with open_engine(noise_model, max_new_tokens=TOKENS) as tts:
        worker, accept = tts._worker, tts._worker._accept

        def count(request: int, tokens: list[int]) -> None:
            at_once.append(len(worker.scheduler.running))
            accept(request, tokens)

        monkeypatch.setattr(worker, "_accept", count)
        assert len(finish_order(tts, 5)) == 5, "the others waited and were served"
    assert max(at_once) <= 3, "two streams, and one that has ended its tokens"


def test_the_rate_is_measured_while_several_streams_run() -> None:
    meter = RateMeter()
    for step in range(50):
        meter.add(24_000, 0.1 * step, streams=LEAST_STREAMS - 1)
    assert meter.rate is None
    for step in range(50):
        meter.add(24_000, 10 + 0.25 * step, streams=LEAST_STREAMS)
    assert meter.rate == pytest.approx(4.0)
    for step in range(400):
        meter.add(24_000, 100 + 0.5 * step, streams=LEAST_STREAMS)
    assert meter.rate == pytest.approx(2.0, rel=0.01), "older measurements are forgotten"


@pytest.mark.usefixtures("slow")
def test_blocks_of_concurrent_streams_are_no_larger_than_their_buffers_allow(
    noise_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    render, sizes = NoiseRenderer.render, []

    def record(self: NoiseRenderer, blocks: Sequence[Block]) -> Any:
        sizes.append([len(block.tokens) for block in blocks])
        return render(self, blocks)

    monkeypatch.setattr(NoiseRenderer, "render", record)
    largest = []
    for rate in (1e6, 3.0):
        sizes.clear()
        monkeypatch.setattr(RateMeter, "rate", rate)
        with open_engine(noise_model, max_new_tokens=TOKENS) as tts:
            finish_order(tts, 2)
        largest.append(max(sizes[:8]))
    assert largest[0] > largest[1]
