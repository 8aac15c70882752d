"""The decode loop gives the tokens of the host, and the host reads nothing in between."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from backends.conftest import Family, family_named
from backends.watching import HostWatch

from nightingale.backends.cuda.t3.decode_loop import DecodeLoop, DecodePlan
from nightingale.errors import ConfigError, DeviceError, MemoryFull
from nightingale.models.chatterbox.t3.config import STOP_SPEECH
from nightingale.types import Sampling

BUDGET, CAPACITY = 14, 60
PLAN = DecodePlan(slots=(1, 2, 4), spans=(24, 40), steps=4)


def decoder_of(family: Family, plan: DecodePlan = PLAN) -> DecodeLoop:
    return DecodeLoop(family.t3, order=family.order, guided=family.guided, capacity=CAPACITY, plan=plan)


def run(decoder: DecodeLoop, slots: int, launches: int, steps: int = 4) -> list[list[int]]:
    """Return the tokens of each slot; each launch is read after the next one was made."""
    tokens: list[list[int]] = [[] for _ in range(slots)]
    before = decoder.launch(steps)
    for turn in range(launches):
        after = decoder.launch(steps) if turn + 1 < launches else None
        for slot, fresh in enumerate(before.take()[:slots]):
            tokens[slot] += fresh
        if after is not None:
            before = after
    return tokens


def greedy(family: Family) -> Sampling:
    return replace(family.defaults.sampling, temperature=0.0)


def test_greedy_tokens_are_those_of_the_host(family: Family) -> None:
    decoder, sampling = decoder_of(family), greedy(family)
    prompts = [family.prompt(length, seed) for seed, length in enumerate([7, 33, 12])]
    expected = [family.plain(prompt, sampling, budget=BUDGET) for prompt in prompts]
    for slot, prompt in enumerate(prompts):
        decoder.prefill(slot, prompt, sampling=sampling, seed=slot, budget=BUDGET)
    assert run(decoder, 3, launches=4) == expected
    assert all(len(set(tokens)) > 3 for tokens in expected), "a model that repeats itself proves nothing"


def test_packed_weights_leave_the_network_as_it_was(family: Family) -> None:
    prompt, sampling = family.prompt(9, 1), greedy(family)
    before = family.plain(prompt, sampling, budget=BUDGET)
    state = {name: value.clone() for name, value in family.t3.state_dict().items()}
    decoder_of(family)
    assert family.plain(prompt, sampling, budget=BUDGET) == before
    assert all(torch.equal(value, state[name]) for name, value in family.t3.state_dict().items())


def test_a_seed_gives_the_same_tokens_in_any_slot_and_batch(family: Family) -> None:
    sampling, prompt = family.defaults.sampling, family.prompt(9, 1)
    alone = decoder_of(family)
    alone.prefill(0, prompt, sampling=sampling, seed=5, budget=BUDGET)
    expected = run(alone, 1, launches=4)[0]
    batch = decoder_of(family)
    for slot, seed in enumerate([3, 4, 5]):
        batch.prefill(
            slot,
            prompt if seed == 5 else family.prompt(20, seed),
            sampling=sampling,
            seed=seed,
            budget=BUDGET,
        )
    tokens = run(batch, 3, launches=4)
    assert tokens[2] == expected
    assert tokens[0] != tokens[2]


def test_another_seed_gives_other_tokens(family: Family) -> None:
    sampling, prompt = family.defaults.sampling, family.prompt(9, 1)
    decoder = decoder_of(family)
    for slot in range(2):
        decoder.prefill(slot, prompt, sampling=sampling, seed=slot, budget=BUDGET)
    tokens = run(decoder, 2, launches=4)
    assert tokens[0] != tokens[1]


def test_a_slot_that_stops_gives_no_more_tokens_and_disturbs_no_other(family: Family) -> None:
    decoder, sampling = decoder_of(family), greedy(family)
    prompts = [family.prompt(8, seed) for seed in range(2)]
    expected = family.plain(prompts[1], sampling, budget=BUDGET)
    with torch.inference_mode():
        decoder.prefill(0, prompts[0], sampling=sampling, seed=0, budget=BUDGET)
        decoder.prefill(1, prompts[1], sampling=sampling, seed=1, budget=BUDGET)
        decoder.launch(3)
        decoder.state.logits[0, :, STOP_SPEECH] = 1e4
    tokens = run(decoder, 2, launches=3)
    assert tokens == [[STOP_SPEECH], expected[3:]]


def test_turbo_does_not_stop_at_its_first_draw() -> None:
    family = family_named("turbo")
    decoder = decoder_of(family)
    decoder.prefill(0, family.prompt(8, 1), sampling=greedy(family), seed=0, budget=5)
    decoder.compute_prompts()
    with torch.inference_mode():
        decoder.state.logits[0, :, STOP_SPEECH] = 1e4
    tokens = run(decoder, 1, launches=2)[0]
    assert tokens[0] == STOP_SPEECH
    assert len(tokens) == 5


def test_a_moved_utterance_continues_as_if_it_had_stayed(family: Family) -> None:
    decoder, sampling = decoder_of(family), family.defaults.sampling
    decoder.prefill(2, family.prompt(9, 1), sampling=sampling, seed=5, budget=BUDGET)
    stayed = [run(decoder, 3, launches=1)[2], run(decoder, 3, launches=1)[2]]
    decoder.prefill(2, family.prompt(9, 1), sampling=sampling, seed=5, budget=BUDGET)
    first = run(decoder, 3, launches=1)[2]
    decoder.move(2, 0)
    assert [first, run(decoder, 1, launches=1)[0]] == stayed


def test_an_unguided_request_in_a_guided_pool_gives_the_tokens_of_the_host() -> None:
    family = family_named("multilingual")
    sampling, prompt = replace(greedy(family), cfg_weight=0.0), family.prompt(9, 1)[:1]
    decoder = decoder_of(family)
    decoder.prefill(0, prompt, sampling=sampling, seed=0, budget=BUDGET)
    assert run(decoder, 1, launches=4)[0] == family.plain(prompt, sampling, budget=BUDGET)


def test_an_utterance_that_does_not_fit_is_refused() -> None:
    family = family_named("wren")
    decoder = decoder_of(family)
    with pytest.raises(MemoryFull, match="50 positions and 14 tokens"):
        decoder.prefill(0, family.prompt(50, 1), sampling=greedy(family), seed=0, budget=BUDGET)
    decoder.prefill(0, family.prompt(5, 1), sampling=greedy(family), seed=0, budget=BUDGET)
    with pytest.raises(ConfigError, match="steps at a time"):
        decoder.launch(5)


def test_without_a_gpu_the_library_is_chosen_and_kernels_that_cannot_run_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    package = "nightingale.backends.cuda.t3"
    for name in ("t3_kernels", "fused_step"):
        monkeypatch.delitem(sys.modules, f"{package}.{name}", raising=False)
        monkeypatch.delattr(sys.modules[package], name, raising=False)
    family = family_named("turbo")
    assert decoder_of(family, replace(PLAN, kernels="auto")).packed.kernels.name == "library"
    with pytest.raises(ConfigError, match="the kernels of T3 need Triton"):
        decoder_of(family, replace(PLAN, kernels="triton"))


def test_angles_are_not_rounded_with_the_weights() -> None:
    family = family_named("multilingual")
    exact = decoder_of(family).packed
    half = decoder_of(replace(family, t3=family_named("multilingual").t3.bfloat16())).packed
    rotations = [packed._rotation(torch.tensor([[1000]]), torch.float32) for packed in (half, exact)]
    for one, other in zip(*rotations, strict=True):
        assert torch.equal(one, other)


def test_graphs_are_named_after_their_sizes_and_kernels(family: Family) -> None:
    decoder = decoder_of(family)
    decoder.capture(sorting=False)
    names = [graph.name for graph in decoder._graphs.values()]
    assert names[0] == "T3 step of 1, 24 positions, library"
    assert len(names) == len(decoder.plan.spans), "those of one utterance; others when they are first used"
    for slot in range(2):
        decoder.prefill(slot, family.prompt(9, slot), sampling=family.defaults.sampling, seed=0, budget=5)
    decoder.compute_prompts()
    assert [graph.name for graph in decoder._graphs.values()][-1] == "4 T3 prompts of 32"


def test_prompts_of_one_length_are_computed_together_and_as_if_alone(family: Family) -> None:
    prompts = [family.prompt(length, seed) for seed, length in enumerate([9, 20, 31, 7, 12])]
    together, alone = decoder_of(family), decoder_of(family)
    for slot, prompt in enumerate(prompts[: together.plan.slots[-1]]):
        together.prefill(slot, prompt, sampling=greedy(family), seed=0, budget=5)
        alone.prefill(slot, prompt, sampling=greedy(family), seed=0, budget=5)
        alone.compute_prompts()
    together.compute_prompts()
    torch.testing.assert_close(together.state.logits, alone.state.logits, rtol=1e-4, atol=1e-4)
    for (keys, values), (other_keys, other_values) in zip(together._caches, alone._caches, strict=True):
        torch.testing.assert_close(keys, other_keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(values, other_values, rtol=1e-4, atol=1e-4)


def test_graphs_without_a_gpu_are_refused() -> None:
    with pytest.raises(DeviceError, match="CUDA graphs cannot be captured: got the device 'cpu'"):
        decoder_of(family_named("wren"), replace(PLAN, mode="graph"))


def test_the_host_reads_nothing(family: Family) -> None:
    decoder = decoder_of(family)
    decoder.prefill(0, family.prompt(9, 1), sampling=family.defaults.sampling, seed=0, budget=5)
    caches = [(keys[: decoder.rows], values[: decoder.rows]) for keys, values in decoder._caches]
    prompt, state, last = family.prompt(9, 1), decoder.state.first(1), torch.full((decoder.rows,), 8)
    with torch.no_grad(), HostWatch() as watch:
        decoder._step(state, caches, sorting=True)
        decoder.packed.prefill(prompt, last, caches, torch.arange(decoder.rows))
    assert not watch.found
    assert watch.operations > 50


@pytest.mark.requires_cuda
def test_graphs_give_the_greedy_tokens_of_the_host(family: Family) -> None:
    prompt, sampling = family.prompt(9, 1), greedy(family)
    expected = family.plain(prompt, sampling, budget=BUDGET)
    family.t3.cuda()
    decoder = decoder_of(family)
    decoder.capture(sorting=family.order == "turbo")
    for slot in range(2):
        decoder.prefill(slot, prompt.cuda(), sampling=sampling, seed=0, budget=BUDGET)
    assert run(decoder, 2, launches=4) == [expected, expected]
    assert {graph.mode for graph in decoder._graphs.values()} == {"graph"}
