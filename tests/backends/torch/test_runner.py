"""A step of T3 for many: the same scores as alone, on no more rows than there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_torch import t3_of

from nightingale.backends.torch.runner import TorchRunner
from nightingale.decoding.runner import StepInput
from nightingale.engine.load import Model
from nightingale.errors import MemoryFull
from nightingale.models.layers.kv_cache import DenseKVCache, lazy_zeros

CAPACITY = 24


@pytest.fixture
def runner_of(tiny_model: Model) -> Callable[..., TorchRunner]:
    """Slots filled with prompts of `rows` rows each, every one of another length."""

    def build(rows: list[int], *, batched: bool, rows_per_slot: int = 2) -> TorchRunner:
        t3 = t3_of(tiny_model)
        pool = {
            "slots": len(rows),
            "rows_per_slot": rows_per_slot,
            "capacity": CAPACITY,
            "max_new_tokens": 10,
        }
        runner = TorchRunner(t3, **pool, batched=batched)
        for slot, count in enumerate(rows):
            rng = torch.Generator().manual_seed(slot)
            runner.prefill_embeddings(
                slot, torch.randn(count, 5 + 3 * slot, t3.config.backbone.width, generator=rng)
            )
        return runner

    return build


def turns(slots: list[int], step: int) -> list[StepInput]:
    return [StepInput(slot=slot, token=100 * slot + step, position=step) for slot in slots]


@pytest.mark.parametrize("rows", [[1, 1, 1], [2, 2, 2], [1, 2, 1], [2, 1, 1]], ids=str)
def test_a_batched_step_scores_as_each_would_alone(
    rows: list[int], runner_of: Callable[..., TorchRunner]
) -> None:
    together, alone = runner_of(rows, batched=True), runner_of(rows, batched=False)
    # Not all take part in every step: some wait for their listener. The last but one has left.
    for step, slots in enumerate([[0, 1, 2], [0, 2], [1, 2], [0, 1, 2]], start=1):
        for one, other in zip(together.step(turns(slots, step)), alone.step(turns(slots, step)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    for runner in (together, alone):
        runner.move(2, 0)
    last = turns([0, 1], 5)
    for one, other in zip(together.step(last), alone.step(last), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "computed"), [([1, 1, 1], 3), ([2, 2, 2], 6), ([1, 2, 1], 6)], ids=str)
def test_unused_rows_are_not_computed(
    rows: list[int], computed: int, runner_of: Callable[..., TorchRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, seen = runner_of(rows, batched=True), []
    layers = runner.t3.tfmr
    plain = layers.forward

    def counted(x: torch.Tensor, memory: Any) -> torch.Tensor:
        seen.append(len(x))
        return plain(x, memory)

    monkeypatch.setattr(layers, "forward", counted)
    runner.step(turns([0, 1, 2], 1))
    assert seen == [computed]


def test_who_outgrows_the_memory_is_told_before_anything_is_written(
    runner_of: Callable[..., TorchRunner],
) -> None:
    runner = runner_of([1, 1], batched=True)
    for layer in runner.caches[1]:
        layer.position = CAPACITY
    with pytest.raises(MemoryFull):
        runner.step(turns([0, 1], 1))
    assert [layer.position for layer in runner.caches[0]] == [5] * len(runner.caches[0])


def test_a_step_that_fails_for_one_is_taken_for_none(
    runner_of: Callable[..., TorchRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, untouched = (runner_of([1, 1], batched=False) for _ in range(2))
    plain = runner.t3.embed_speech

    def fail(ids: torch.Tensor, position: int) -> torch.Tensor:
        if int(ids[0, 0]) == 101:
            raise ArithmeticError
        return plain(ids, position)

    monkeypatch.setattr(runner.t3, "embed_speech", fail)
    with pytest.raises(ArithmeticError):
        runner.step(turns([0, 1], 1))
    monkeypatch.undo()
    for one, other in zip(runner.step(turns([0, 1], 1)), untouched.step(turns([0, 1], 1)), strict=True):
        assert np.array_equal(one, other)


def test_a_new_kv_cache_is_zero_and_takes_no_memory_until_it_is_written() -> None:
    shape = (8, 16, 4096, 64)
    before = resident_bytes()
    memory = DenseKVCache(*(lazy_zeros(shape, torch.bfloat16, torch.device("cpu")) for _ in range(2)))
    grown, size = resident_bytes() - before, 2 * memory.keys.numel() * memory.keys.element_size()
    assert grown < size / 10
    assert memory.keys.shape == (8, 16, 4096, 64)
    assert not memory.keys.any()
    assert not memory.values.any()


def test_after_a_fault_the_next_utterance_in_the_slot_is_unharmed(
    runner_of: Callable[..., TorchRunner],
) -> None:
    runner, untouched = (runner_of([1, 1], batched=True) for _ in range(2))
    for layer in runner.caches[1]:
        layer.keys.fill_(float("nan"))
        layer.values.fill_(float("nan"))
    runner.reset(1)
    prompt = torch.randn(1, 4, runner.t3.config.backbone.width, generator=torch.Generator().manual_seed(9))
    for one in (runner, untouched):
        one.prefill_embeddings(1, prompt)
    for mine, other in zip(runner.step(turns([0, 1], 1)), untouched.step(turns([0, 1], 1)), strict=True):
        assert np.array_equal(mine, other)


def resident_bytes() -> int:
    status = Path("/proc/self/status")
    if not status.is_file():
        pytest.skip("asks Linux how much memory the process has")
    return 1024 * int(status.read_text().partition("VmRSS:")[2].split()[0])
