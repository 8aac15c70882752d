"""T3's memory in cells: what is rounded, what is kept, what is given back; and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from backends.torch.test_speculative import (
    BUDGET,
    CONFIGS,
    FREE,
    LONGEST,
    POOL,
    Batch,
    EmbeddedRunner,
    budget_for,
    check_same,
    draft_of,
)
from parity.tiny import fill, gaussian
from torch import Tensor

from nightingale.backends.torch.kv_pools import PagedKVPool
from nightingale.backends.torch.runner import TorchRunner
from nightingale.decoding.host_decoder import HostDecoder
from nightingale.decoding.runner import StepInput, VerifyInput
from nightingale.decoding.speculative import SpeculativeDecoder
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_blocks import (
    MIN_SCALE,
    KVBlockLayout,
    KVBlockPool,
    dequantize,
    quantize,
)
from nightingale.models.layers.paged_kv_cache import PagedKVSequence

CPU = torch.device("cpu")
KINDS = [torch.int8, torch.float8_e4m3fn]
PROMPTS = [5, 9, 7]
CLOSE: Any = {"rtol": 1e-3, "atol": 2e-3}
"""Tolerance of attention over quantized blocks: a value half-way between two steps may round either way."""


@pytest.fixture(scope="module")
def nets() -> dict[str, T3]:
    return {name: fill(T3(config)) for name, config in CONFIGS.items()}


def plan_of(t3: T3, kind: torch.dtype, *, windows: bool = False, spare: int = LONGEST) -> KVBlockLayout:
    backbone = t3.config.backbone
    uneven = tuple(
        tuple(4 + 3 * ((layer + head) % 2) for head in range(backbone.heads))
        for layer in range(backbone.layers)
    )
    return KVBlockLayout(
        layers=backbone.layers,
        heads=backbone.heads,
        width=backbone.width // backbone.heads,
        dtype=kind,
        windows=uneven if windows else None,
        rewind_margin=spare,
    )


def cell_runner(
    t3: T3, plan: KVBlockLayout | None, *, batched: bool = False, slots: int = 4, **more: Any
) -> TorchRunner:
    """Return a runner over paged caches, or over dense ones without a layout."""
    pool = None
    if plan is not None:
        sizes = {"slots": slots, "rows_per_slot": 2, "prompt": 12, "tokens": BUDGET}
        pool = PagedKVPool(plan, **sizes, device=CPU, **more)  # type: ignore[arg-type]
    sizes = {
        "slots": slots,
        "rows_per_slot": 2,
        "capacity": 12 + BUDGET,
        "spare": LONGEST,
        "max_new_tokens": BUDGET,
    }
    return TorchRunner(t3, **sizes, batched=batched, pool=pool)  # type: ignore[arg-type]


def begin(runner: TorchRunner, rows: list[int], max_tokens: dict[int, int] | None = None) -> None:
    width = runner.t3.config.backbone.width
    for slot, count in enumerate(rows):
        prompt = gaussian((count, PROMPTS[slot], width), slot)
        runner.prefill_embeddings(slot, prompt, max_tokens=(max_tokens or {}).get(slot))


def turns(slots: list[int], step: int) -> list[StepInput]:
    return [StepInput(slot=slot, token=10 * slot + step, position=step) for slot in slots]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_number_is_off_by_half_a_step_of_its_scale_at_most(kind: torch.dtype) -> None:
    x = gaussian((50, 3, 64), 1) * torch.logspace(-4, 4, 50)[:, None, None]
    cells, scales = quantize(x, kind, 4)
    assert scales.shape == (50, 3, 4)
    off = (dequantize(cells, scales) - x).abs()
    largest = x.unflatten(-1, (4, 16)).abs().amax(-1, keepdim=True).expand(-1, -1, -1, 16).flatten(-2)
    # Half a step of 127 steps, or of three bits and a sign; and what half precision adds to the scale.
    bound = largest / 127 / 2 if kind == torch.int8 else x.abs() / 16 + largest / 448 / 512
    # Below the least scale nothing is worth more than half of it.
    assert bool((off <= 1.02 * bound + MIN_SCALE / 2).all()), float((off / bound).max())


def test_zeros_stay_zeros() -> None:
    cells, scales = quantize(torch.zeros(2, 64), torch.int8, 2)
    assert not cells.any()
    assert bool(scales.isfinite().all())


@pytest.mark.parametrize("batched", [False, True], ids=["alone", "batched"])
@pytest.mark.parametrize("name", CONFIGS)
def test_cells_that_round_nothing_and_keep_all_are_the_dense_memory(
    name: str, batched: bool, nets: dict[str, T3]
) -> None:
    t3 = nets[name]
    dense, cells = cell_runner(t3, None), cell_runner(t3, plan_of(t3, torch.float32), batched=batched)
    for runner in (dense, cells):
        begin(runner, [2, 1, 2])
    for step, slots in enumerate([[0, 1, 2], [0, 2], [1, 2], [0, 1, 2]], start=1):
        for mine, plain in zip(cells.step(turns(slots, step)), dense.step(turns(slots, step)), strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "bound"), [(torch.int8, 0.05), (torch.float8_e4m3fn, 0.3)], ids=str)
@pytest.mark.parametrize("batched", [False, True], ids=["alone", "batched"])
@pytest.mark.parametrize("name", CONFIGS)
def test_scores_over_eight_bits_are_the_dense_ones_within_a_bound(
    name: str, batched: bool, kind: torch.dtype, bound: float, nets: dict[str, T3]
) -> None:
    """The bound: of the largest difference, in standard deviations of the scores."""
    t3 = nets[name]
    dense, cells = cell_runner(t3, None), cell_runner(t3, plan_of(t3, kind), batched=batched)
    for runner in (dense, cells):
        begin(runner, [2, 1, 2])
    for step in range(1, 13):
        for mine, plain in zip(
            cells.step(turns([0, 1, 2], step)), dense.step(turns([0, 1, 2], step)), strict=True
        ):
            off = float(np.abs(mine - plain).max() / plain.std())
            assert off < bound, f"step {step}: {off}"


@pytest.mark.parametrize("windows", [False, True], ids=["all", "windows"])
@pytest.mark.parametrize("rows", [[1, 1, 1], [2, 2, 2], [1, 2, 1]], ids=str)
def test_streams_of_different_lengths_score_together_as_alone(
    rows: list[int], windows: bool, nets: dict[str, T3]
) -> None:
    t3 = nets["multilingual"]
    plan = plan_of(t3, torch.int8, windows=windows)
    together, alone = cell_runner(t3, plan, batched=True), cell_runner(t3, plan)
    for runner in (together, alone):
        begin(runner, rows)
    for step in range(1, 16):
        slots = [slot for slot in range(3) if (step + slot) % 4]  # somebody always waits
        for one, other in zip(together.step(turns(slots, step)), alone.step(turns(slots, step)), strict=True):
            torch.testing.assert_close(one, other, **CLOSE)
        if step == 9:
            for runner in (together, alone):
                runner.release(1)
                runner.move(2, 1)
                runner.prefill_embeddings(2, gaussian((rows[2], 6, t3.config.backbone.width), 40))


def windowed(q: Tensor, keys: Tensor, values: Tensor, prompt: int, windows: tuple[int, ...]) -> Tensor:
    """Return the mask of the last position: the prompt, and for each head the window after it."""
    at, last = torch.arange(keys.shape[2]), keys.shape[2] - 1
    seen = torch.stack([(at < prompt) | (at > last - window) for window in windows])[None, :, None]
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)


@pytest.mark.parametrize("spare", [0, 3])
def test_each_head_sees_the_prompt_and_its_own_window_and_nothing_else(spare: int) -> None:
    windows, prompt, rows, tokens = (2, 5, 5), 4, 2, 20
    plan = KVBlockLayout(
        layers=1, heads=3, width=8, dtype=torch.float32, windows=(windows,), rewind_margin=spare
    )
    block_pool = KVBlockPool(blocks=500, layout=plan, device=CPU, attend=None)
    PagedKVSequence(block_pool, rows=1, prompt=3, tokens=2)  # somebody else's
    memory = PagedKVSequence(block_pool, rows=rows, prompt=prompt, tokens=tokens).layers[0]
    q, k, v = (gaussian((rows, 3, prompt + tokens, 8), seed) for seed in (1, 2, 3))
    memory.attend(q[:, :, :prompt], k[:, :, :prompt], v[:, :, :prompt])
    for at in range(prompt, prompt + tokens):
        new = slice(at, at + 1)
        assert memory.positions(q[:, 0, new]).tolist() == [at]
        attended = memory.attend(q[:, :, new], k[:, :, new], v[:, :, new])
        expected = windowed(q[:, :, new], k[:, :, : at + 1], v[:, :, : at + 1], prompt, windows)
        torch.testing.assert_close(attended, expected, msg=lambda text, at=at: f"position {at}: {text}")


def test_the_prompt_is_never_dropped_however_much_is_said(nets: dict[str, T3]) -> None:
    t3 = nets["multilingual"]
    runner = cell_runner(t3, plan_of(t3, torch.int8, windows=True))
    begin(runner, [2])

    def prompts() -> list[Tensor]:
        stream = runner.caches[0][0].sequence  # type: ignore[attr-defined]
        place = torch.from_numpy(stream.starts())[..., None] + torch.arange(PROMPTS[0])
        return [stream.block_pool.keys[place], stream.block_pool.values[place]]

    before = [part.clone() for part in prompts()]
    assert any(part.any() for part in before)
    for step in range(1, BUDGET):
        runner.step(turns([0], step))
    assert all(torch.equal(one, other) for one, other in zip(before, prompts(), strict=True))


@pytest.mark.parametrize("batched", [False, True], ids=["alone", "batched"])
@pytest.mark.parametrize("windows", [False, True], ids=["all", "windows"])
@pytest.mark.parametrize("kind", [torch.int8, torch.float32], ids=str)
def test_rewinding_equals_never_having_drafted(
    kind: torch.dtype, windows: bool, batched: bool, nets: dict[str, T3]
) -> None:
    t3 = nets["multilingual"]
    plan = plan_of(t3, kind, windows=windows)
    drafted, plain = cell_runner(t3, plan, batched=batched), cell_runner(t3, plan)
    for runner in (drafted, plain):
        begin(runner, [2, 1])
    # Far enough that every ring has come round, with drafts of every length on the way.
    for step in range(1, 21):
        count = step % (LONGEST + 1)
        trials = [
            VerifyInput(slot=slot, tokens=[10 * slot + step, *[99] * (count * slot)], position=step)
            for slot in range(2)
        ]
        passed = drafted.verify(trials)
        drafted.rewind(1, count)
        for mine, other in zip(passed, plain.step(turns([0, 1], step)), strict=True):
            torch.testing.assert_close(mine[:, 0], other, **CLOSE)


@pytest.mark.parametrize("windows", [False, True], ids=["all", "windows"])
def test_a_pass_over_several_tokens_scores_as_so_many_steps(windows: bool, nets: dict[str, T3]) -> None:
    t3 = nets["turbo"]
    plan = plan_of(t3, torch.int8, windows=windows)
    several, single = cell_runner(t3, plan), cell_runner(t3, plan)
    for runner in (several, single):
        begin(runner, [1])
    at = 1
    for count in (1, 4, 5, 3, 5):
        tokens = list(range(at, at + count))
        (scores,) = several.verify([VerifyInput(slot=0, tokens=tokens, position=at)])
        for n, token in enumerate(tokens):
            (expected,) = single.step([StepInput(slot=0, token=token, position=at + n)])
            torch.testing.assert_close(scores[:, n], expected, **CLOSE)
        at += count


@pytest.mark.parametrize("windows", [False, True], ids=["all", "windows"])
@pytest.mark.parametrize("kind", ["exit", "same"])
@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
def test_speculative_decoding_over_quantized_blocks_gives_the_tokens_of_plain_decoding(
    kind: str, windows: bool, temperature: float, nets: dict[str, T3]
) -> None:
    name = "multilingual"
    plan = plan_of(nets[name], torch.int8, windows=windows)

    def runner(batched: bool) -> TorchRunner:
        sizes = {"slots": 4, "rows_per_slot": 2, "prompt": 10, "tokens": BUDGET}
        pool = PagedKVPool(plan, **sizes, device=CPU)  # type: ignore[arg-type]
        return EmbeddedRunner(nets[name], **POOL, batched=batched, pool=pool)  # type: ignore[arg-type]

    plain = HostDecoder(runner(False), budget_for(nets[name]))
    expected = Batch(nets[name], name, plain, temperature=temperature).run()
    target = runner(True)
    draft = draft_of(kind, name, nets, target)
    budget = budget_for(nets[name])
    decoder = SpeculativeDecoder(target, draft, budget, costs=FREE, after=1, longest=LONGEST)
    batch = Batch(nets[name], name, decoder, temperature=temperature).run()
    check_same(batch, expected)
    assert batch.drafted > 0
    assert target.pool.block_pool.used_bytes == 0, "a released slot holds blocks"
