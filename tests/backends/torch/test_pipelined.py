"""The pipelined renderer: the same samples, sooner; an error in it ends one request alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from nightingale.backends.base import Block
from nightingale.backends.shared.capability_checks import SMALL_MODEL_WEIGHTS
from nightingale.backends.shared.pipeline import CoreShares
from nightingale.backends.torch import opening
from nightingale.backends.torch.devices import use_threads
from nightingale.backends.torch.pipelined import PipelinedRenderer, share_cores
from nightingale.backends.torch.renderer import TorchRenderer
from nightingale.engine.load import Model
from nightingale.engine.tts import TTS
from nightingale.errors import EngineFault
from nightingale.types import Samples

TEXTS = ["Hello there, everyone.", "Another one.", "And a third, which is somewhat longer."]


@pytest.fixture
def beside(tiny_model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[TTS]:
    monkeypatch.setattr(opening, "share_cores", lambda weights: CoreShares(1, 1, 1, 2))
    with TTS.over(tiny_model, "balanced") as tts:
        assert isinstance(tts._worker.renderer, PipelinedRenderer)
        yield tts


def test_the_samples_are_those_of_the_reference(
    beside: TTS, tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "share_cores", lambda weights: None)
    with TTS.over(tiny_model, "balanced") as plain:
        assert isinstance(plain._worker.renderer, TorchRenderer)
        for seed, text in enumerate(TEXTS):
            ours, theirs = (tts.say(text, seed=seed).samples for tts in (beside, plain))
            assert np.array_equal(ours, theirs)


def test_concurrent_requests_get_the_samples_of_single_ones(beside: TTS) -> None:
    check_concurrent(beside)


def test_wren_gives_the_same_samples_under_concurrency() -> None:
    with TTS() as wren:
        check_concurrent(wren)


def check_concurrent(tts: TTS) -> None:
    """Compare up to rounding: the last block of a request that runs alone is vocoded by more threads."""
    alone = [tts.say(text, seed=1).samples for text in TEXTS]
    for among, own in zip(tts.say_many(TEXTS, seed=1), alone, strict=True):
        assert len(among.samples) == len(own)
        assert np.abs(among.samples - own).max() < 1e-4


def test_what_fails_in_the_other_thread_ends_that_request_alone(
    beside: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, failed = TorchRenderer.samples, []

    def once(self: TorchRenderer, block: Block, mel: Tensor) -> Samples:
        if not failed:
            failed.append(block)
            raise RuntimeError("no sound")
        return samples(self, block, mel)

    monkeypatch.setattr(TorchRenderer, "samples", once)
    with pytest.raises(EngineFault, match="no sound"):
        beside.say(TEXTS[0], seed=1)
    assert len(beside.say(TEXTS[0], seed=1).samples)


def test_only_a_small_models_stages_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert share_cores(SMALL_MODEL_WEIGHTS) == CoreShares(decoder=2, flow=2, vocoder=4, last_block=8)
    assert share_cores(SMALL_MODEL_WEIGHTS + 1) is None
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert share_cores(SMALL_MODEL_WEIGHTS + 1) == CoreShares(decoder=1, flow=1, vocoder=1, last_block=1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    assert share_cores(SMALL_MODEL_WEIGHTS) is None


def test_a_threads_number_is_its_own() -> None:
    def other() -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.get_num_threads).result()

    def mine() -> tuple[int, int]:
        use_threads(before + 1)
        return torch.get_num_threads(), other()

    before = torch.get_num_threads()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(mine).result() == (before + 1, before)
    assert torch.get_num_threads() == before


def test_threads_that_count_at_the_same_time_leave_the_number_of_others_alone() -> None:
    def for_threads_to_come() -> int:
        with ThreadPoolExecutor(max_workers=1) as fresh:
            return fresh.submit(torch.get_num_threads).result()

    def count(number: int) -> int:
        for _ in range(20):
            use_threads(number)
        return torch.get_num_threads()

    before = for_threads_to_come()
    with ThreadPoolExecutor(max_workers=6) as pool:
        assert list(pool.map(count, [1, 2, 3] * 2)) == [1, 2, 3] * 2
    assert for_threads_to_come() == before
