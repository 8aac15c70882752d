"""Allocation of KV blocks: sizes, admission, compaction, faults and the tables that kernels read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from backends.torch.test_paged_kv import (
    BUDGET,
    CLOSE,
    CONFIGS,
    KINDS,
    PROMPTS,
    begin,
    cell_runner,
    plan_of,
    turns,
)
from parity.tiny import fill, gaussian
from torch import Tensor

from nightingale.backends.torch.kv_pools import PagedKVPool
from nightingale.errors import MemoryFull
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_blocks import MAX_QUANTIZED, KVBlockLayout
from nightingale.models.layers.paged_kv_cache import KVBlockTables
from nightingale_lab.bench.paged_attention_reference import attend_reference


@pytest.fixture(scope="module")
def nets() -> dict[str, T3]:
    return {name: fill(T3(config)) for name, config in CONFIGS.items()}


def test_bytes_are_those_of_the_tensors(nets: dict[str, T3]) -> None:
    t3 = nets["multilingual"]
    for kind in (*KINDS, torch.float32):
        plan = plan_of(t3, kind, windows=True)
        pool = cell_runner(t3, plan).pool
        assert isinstance(pool, PagedKVPool)
        held = (
            pool.block_pool.keys,
            pool.block_pool.values,
            pool.block_pool.key_scales,
            pool.block_pool.value_scales,
        )
        assert pool.bytes == sum(part.nbytes for part in held)
    wide = KVBlockLayout(layers=1, heads=1, width=64, dtype=torch.int8)
    assert wide.block_bytes == 2 * 64 + 2 * (4 + 2)
    assert wide.block_bytes / (2 * 64 * 2) <= 0.55, "of bfloat16"


def test_a_stream_takes_what_it_may_need_and_gives_it_back(nets: dict[str, T3]) -> None:
    t3 = nets["multilingual"]
    plan = plan_of(t3, torch.int8, windows=True, spare=1)
    runner = cell_runner(t3, plan)
    begin(runner, [2, 1], {0: 3})
    short, long = (
        rows * plan.blocks(PROMPTS[slot], tokens) for slot, rows, tokens in ((0, 2, 3), (1, 1, BUDGET))
    )
    heads = plan.layers * plan.heads
    assert short == 2 * heads * (PROMPTS[0] + 3 + 1)
    assert long < heads * (PROMPTS[1] + BUDGET), "windows are shorter than the utterance"
    assert runner.pool.block_pool.used_bytes == (short + long) * plan.block_bytes
    runner.release(0)
    runner.move(1, 0)
    assert runner.pool.block_pool.used_bytes == long * plan.block_bytes
    runner.release(0)
    assert runner.pool.block_pool.used_bytes == 0


def test_what_a_stream_fills_is_counted_by_position_and_window() -> None:
    plan = KVBlockLayout(layers=2, heads=2, width=64, dtype=torch.int8, windows=((4, 8), (6, 2)))
    assert plan.held_blocks(10, 1) == 4 * 11
    assert plan.held_blocks(10, 5) == 4 * 10 + 4 + 5 + 5 + 2
    assert plan.held_blocks(10, 500) == plan.blocks(10, 500) == 4 * 10 + 20


def test_streams_are_pushed_together_when_no_hole_is_large_enough(nets: dict[str, T3]) -> None:
    t3 = nets["multilingual"]
    plan = plan_of(t3, torch.int8)
    # KVBudget for two and a half of the longest.
    tight = 5 * plan.blocks(12, BUDGET) * plan.block_bytes // 2
    runner, free = cell_runner(t3, plan, most_bytes=tight), cell_runner(t3, plan)
    longest = gaussian((1, 12, t3.config.backbone.width), 77)
    for one in (runner, free):
        begin(one, [1, 1])
        one.step(turns([0, 1], 1))
        one.release(0)
        short = gaussian((1, 5, t3.config.backbone.width), 5)
        one.prefill_embeddings(0, short, max_tokens=1)  # leaves a hole that is too small
        one.prefill_embeddings(2, longest)
    for mine, other in zip(
        runner.step(turns([0, 1, 2], 2)[1:]), free.step(turns([0, 1, 2], 2)[1:]), strict=True
    ):
        assert np.array_equal(mine, other)
    with pytest.raises(MemoryFull, match=r"(?s)no room for another sequence.*bytes for all sequences"):
        runner.prefill_embeddings(3, longest)


def test_who_outgrows_its_cells_is_told_before_anything_is_written(nets: dict[str, T3]) -> None:
    t3 = nets["multilingual"]
    runner = cell_runner(t3, plan_of(t3, torch.int8, spare=0), batched=True)
    begin(runner, [1, 1], {1: 2})
    for step in (1, 2):
        runner.step(turns([0, 1], step))
    with pytest.raises(MemoryFull, match="longer than its KV cache"):
        runner.step(turns([0, 1], 3))
    assert [layer.position for layer in runner.caches[0]] == [PROMPTS[0] + 2] * t3.config.backbone.layers


def test_an_error_does_not_harm_the_next_utterance_of_the_slot(nets: dict[str, T3]) -> None:
    t3 = nets["multilingual"]
    runner, untouched = (cell_runner(t3, plan_of(t3, torch.int8)) for _ in range(2))
    begin(runner, [1])
    pool = runner.pool
    assert isinstance(pool, PagedKVPool)
    pool.block_pool.value_scales[: pool.block_pool.extents[0].count].fill_(float("nan"))
    runner.reset(0)
    runner.release(0)
    for one in (runner, untouched):
        begin(one, [1])
    (mine,), (other,) = (one.step(turns([0], 1)) for one in (runner, untouched))
    assert np.array_equal(mine, other)


@pytest.mark.parametrize("windows", [False, True], ids=["all", "windows"])
@pytest.mark.parametrize("kind", [*KINDS, torch.float32], ids=str)
def test_the_kernels_twin_is_the_memory(kind: torch.dtype, windows: bool, nets: dict[str, T3]) -> None:
    """The tables that a kernel is given lead to the same cells, and the same is heard."""
    t3 = nets["multilingual"]
    plan = plan_of(t3, kind, windows=windows)
    by_tables, plain = (
        cell_runner(t3, plan, batched=True, attend=attend) for attend in (attend_reference, None)
    )
    for runner in (by_tables, plain):
        begin(runner, [2, 1, 2])
    for step in range(1, 16):
        slots = [0, 2] if step == 6 else [0, 1, 2]
        for mine, other in zip(
            by_tables.step(turns(slots, step)), plain.step(turns(slots, step)), strict=True
        ):
            torch.testing.assert_close(mine, other, **CLOSE)
        if step == 9:
            for runner in (by_tables, plain):
                runner.release(0)
                runner.move(2, 0)
                runner.prefill_embeddings(2, gaussian((1, 6, t3.config.backbone.width), 40))


def test_the_tables_are_used(nets: dict[str, T3], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    plain: Callable[..., Tensor] = KVBlockTables.attend

    def counted(self: KVBlockTables, *given: Tensor) -> Tensor:
        asked.append(len(given[0]))
        return plain(self, *given)

    monkeypatch.setattr(KVBlockTables, "attend", counted)
    t3 = nets["multilingual"]
    runner = cell_runner(t3, plan_of(t3, torch.int8), batched=True, attend=attend_reference)
    begin(runner, [1, 1])
    runner.step(turns([0, 1], 1))
    assert asked == [2] * t3.config.backbone.layers
    assert set(MAX_QUANTIZED) == set(KINDS)
