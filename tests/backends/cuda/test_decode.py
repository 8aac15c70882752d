"""Decoding by graphs: the plain path's tokens, without asking the host."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from backends.conftest import Family, family_named
from backends.watching import HostWatch

from nightingale.backends.cuda.decoder import DecodeLoop, DecodePlan
from nightingale.backends.cuda.t3_layers import Way
from nightingale.errors import ConfigError, DeviceError, MemoryFull
from nightingale.models.chatterbox.t3.config import STOP_SPEECH
from nightingale.types import Sampling

BUDGET, CAPACITY = 14, 60
PLAN = DecodePlan(slots=(1, 2, 4), spans=(24, 40), steps=4)


def decoder_of(family: Family, plan: DecodePlan = PLAN) -> DecodeLoop:
    return DecodeLoop(family.t3, order=family.order, guided=family.guided, capacity=CAPACITY, plan=plan)


def run(decoder: DecodeLoop, slots: int, launches: int, steps: int = 4) -> list[list[int]]:
    """The tokens of each slot, the next launch always under way before the last one is read."""
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


@pytest.mark.parametrize("way", ["sdpa", "sums"])
def test_greedy_tokens_are_the_plain_ones(family: Family, way: Way) -> None:
    decoder, sampling = decoder_of(family, replace(PLAN, way=way)), greedy(family)
    prompts = [family.prompt(length, seed) for seed, length in enumerate([7, 33, 12])]
    expected = [family.plain(prompt, sampling, budget=BUDGET) for prompt in prompts]
    for slot, prompt in enumerate(prompts):
        decoder.begin(slot, prompt, sampling=sampling, seed=slot, budget=BUDGET)
    assert run(decoder, 3, launches=4) == expected
    assert all(len(set(tokens)) > 3 for tokens in expected), "a model that repeats itself proves nothing"


def test_the_joined_weights_leave_the_plain_path_as_it_was(family: Family) -> None:
    prompt, sampling = family.prompt(9, 1), greedy(family)
    before = family.plain(prompt, sampling, budget=BUDGET)
    state = {name: value.clone() for name, value in family.t3.state_dict().items()}
    decoder_of(family)
    assert family.plain(prompt, sampling, budget=BUDGET) == before
    assert all(torch.equal(value, state[name]) for name, value in family.t3.state_dict().items())


def test_a_seed_gives_the_same_tokens_in_any_slot_and_company(family: Family) -> None:
    sampling, prompt = family.defaults.sampling, family.prompt(9, 1)
    alone = decoder_of(family)
    alone.begin(0, prompt, sampling=sampling, seed=5, budget=BUDGET)
    expected = run(alone, 1, launches=4)[0]
    crowd = decoder_of(family)
    for slot, seed in enumerate([3, 4, 5]):
        crowd.begin(
            slot,
            prompt if seed == 5 else family.prompt(20, seed),
            sampling=sampling,
            seed=seed,
            budget=BUDGET,
        )
    tokens = run(crowd, 3, launches=4)
    assert tokens[2] == expected
    assert tokens[0] != tokens[2]


def test_another_seed_gives_other_tokens(family: Family) -> None:
    sampling, prompt = family.defaults.sampling, family.prompt(9, 1)
    decoder = decoder_of(family)
    for slot in range(2):
        decoder.begin(slot, prompt, sampling=sampling, seed=slot, budget=BUDGET)
    tokens = run(decoder, 2, launches=4)
    assert tokens[0] != tokens[1]


def test_who_stops_says_nothing_more_and_disturbs_nobody(family: Family) -> None:
    decoder, sampling = decoder_of(family), greedy(family)
    prompts = [family.prompt(8, seed) for seed in range(2)]
    expected = family.plain(prompts[1], sampling, budget=BUDGET)
    with torch.inference_mode():
        decoder.begin(0, prompts[0], sampling=sampling, seed=0, budget=BUDGET)
        decoder.begin(1, prompts[1], sampling=sampling, seed=1, budget=BUDGET)
        decoder.launch(3)
        decoder.state.scores[0, :, STOP_SPEECH] = 1e4
    tokens = run(decoder, 2, launches=3)
    assert tokens == [[STOP_SPEECH], expected[3:]]


def test_turbo_does_not_stop_at_its_first_draw() -> None:
    family = family_named("turbo")
    decoder = decoder_of(family)
    decoder.begin(0, family.prompt(8, 1), sampling=greedy(family), seed=0, budget=5)
    with torch.inference_mode():
        decoder.state.scores[0, :, STOP_SPEECH] = 1e4
    tokens = run(decoder, 1, launches=2)[0]
    assert tokens[0] == STOP_SPEECH
    assert len(tokens) == 5


def test_a_moved_utterance_goes_on_as_if_it_had_stayed(family: Family) -> None:
    decoder, sampling = decoder_of(family), family.defaults.sampling
    decoder.begin(2, family.prompt(9, 1), sampling=sampling, seed=5, budget=BUDGET)
    stayed = [run(decoder, 3, launches=1)[2], run(decoder, 3, launches=1)[2]]
    decoder.begin(2, family.prompt(9, 1), sampling=sampling, seed=5, budget=BUDGET)
    first = run(decoder, 3, launches=1)[2]
    decoder.move(2, 0)
    assert [first, run(decoder, 1, launches=1)[0]] == stayed


def test_an_unguided_request_in_a_guided_pool_is_the_plain_unguided_one() -> None:
    family = family_named("multilingual")
    sampling, prompt = replace(greedy(family), cfg_weight=0.0), family.prompt(9, 1)[:1]
    decoder = decoder_of(family)
    decoder.begin(0, prompt, sampling=sampling, seed=0, budget=BUDGET)
    assert run(decoder, 1, launches=4)[0] == family.plain(prompt, sampling, budget=BUDGET)


def test_what_does_not_fit_is_refused_in_words() -> None:
    family = family_named("wren")
    decoder = decoder_of(family)
    with pytest.raises(MemoryFull, match="50 positions and 14 tokens"):
        decoder.begin(0, family.prompt(50, 1), sampling=greedy(family), seed=0, budget=BUDGET)
    decoder.begin(0, family.prompt(5, 1), sampling=greedy(family), seed=0, budget=BUDGET)
    with pytest.raises(ConfigError, match="steps at a time"):
        decoder.launch(5)


def test_without_a_gpu_the_library_is_chosen_and_kernels_that_cannot_run_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in ("t3_kernels", "t3_fused"):
        monkeypatch.delitem(sys.modules, f"nightingale.backends.cuda.{name}", raising=False)
        monkeypatch.delattr(sys.modules["nightingale.backends.cuda"], name, raising=False)
    family = family_named("turbo")
    assert decoder_of(family, replace(PLAN, way="auto")).packed.way == "sdpa"
    with pytest.raises(ConfigError, match="the kernels need Triton"):
        decoder_of(family, replace(PLAN, way="triton"))


def test_angles_are_not_rounded_with_the_weights() -> None:
    family = family_named("multilingual")
    exact = decoder_of(family).packed
    half = decoder_of(replace(family, t3=family_named("multilingual").t3.bfloat16())).packed
    far = torch.tensor([[1000]])
    for one, other in zip(
        half._placed(torch.zeros(1, 1, 64), far)[1], exact._placed(torch.zeros(1, 1, 64), far)[1], strict=True
    ):
        assert torch.equal(one, other)


def test_a_step_says_how_it_is_taken(family: Family) -> None:
    decoder = decoder_of(family)
    decoder.warm(prompts=(8, 8), sorting=False)
    told = [report.name for report in decoder.reports]
    assert (told[0], told[-1]) == ("T3 step of 1, 24 positions, sdpa", "T3 prompt of 32")
    assert len(told) == len(decoder.plan.slots) * len(decoder.plan.spans) + 1


def test_graphs_without_a_gpu_are_refused_and_not_pretended() -> None:
    family = family_named("wren")
    if not torch.cuda.is_available():
        with pytest.raises((DeviceError, RuntimeError)):
            decoder_of(family, replace(PLAN, how="graph")).warm(prompts=(8, 8), sorting=False)


def test_nothing_is_asked_of_the_host(family: Family) -> None:
    decoder = decoder_of(family)
    decoder.begin(0, family.prompt(9, 1), sampling=family.defaults.sampling, seed=0, budget=5)
    caches = [(m.keys[: decoder.rows], m.values[: decoder.rows]) for m in decoder._memory]
    prompt, state, last = family.prompt(9, 1), decoder.state.first(1), torch.tensor([8])
    with torch.no_grad(), HostWatch() as watch:
        decoder._step(state, caches, sorting=True)
        decoder.packed.prefill(prompt, last, caches, torch.arange(decoder.rows))
    assert not watch.found
    assert watch.operations > 50


def test_a_layer_is_one_graph_to_the_compiler(family: Family) -> None:
    """Traced without a break, which `fullgraph` would refuse; nothing is generated."""
    from nightingale.backends.cuda import t3_layers as layers

    decoder = decoder_of(family)
    decoder.packed._step_layer = torch.compile(layers.step_layer, backend="eager", fullgraph=True)
    prompt, sampling = family.prompt(9, 1), greedy(family)
    decoder.begin(0, prompt, sampling=sampling, seed=0, budget=5)
    assert run(decoder, 1, launches=2)[0] == family.plain(prompt, sampling, budget=5)


@pytest.mark.requires_cuda
@pytest.mark.parametrize("compile_mode", [None, "default"])
def test_graphs_give_the_plain_greedy_tokens(family: Family, compile_mode: str | None) -> None:
    """On the GPU, in float32, the plain path beside it."""
    prompt, sampling = family.prompt(9, 1), greedy(family)
    expected = family.plain(prompt, sampling, budget=BUDGET)
    family.t3.cuda()
    decoder = decoder_of(family, replace(PLAN, compile_mode=compile_mode))
    decoder.warm(prompts=(9, 9), sorting=family.order == "turbo")
    for slot in range(2):
        decoder.begin(slot, prompt.cuda(), sampling=sampling, seed=0, budget=BUDGET)
    assert run(decoder, 2, launches=4) == [expected, expected]
    assert {report.how for report in decoder.reports} == {"graph"}
