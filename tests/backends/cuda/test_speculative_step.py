"""Steps that verify drafted tokens give the tokens of plain steps, whatever the draft proposes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from backends.conftest import Family, family_named
from backends.watching import HostWatch
from parity.tiny import fill
from torch import Tensor

from nightingale.backends.cuda.t3.decode_loop import DecodeLoop, DecodePlan
from nightingale.backends.cuda.t3.speculative_step import SpeculativeStep
from nightingale.backends.cuda.triton_support import Tuning
from nightingale.errors import MemoryFull
from nightingale.models.chatterbox.t3.config import STOP_SPEECH
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.types import Sampling

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
BUDGET, CAPACITY, LONGEST = 14, 60, 3
PLAN = DecodePlan(slots=(1, 2), spans=(24, 40), steps=4, draft_tokens=LONGEST)
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")


def loop_of(family: Family, plan: DecodePlan = PLAN, *, drafts: bool = True) -> DecodeLoop:
    head = fill(DraftHead(family.t3.config.backbone.width, blocks=1, inner=32)) if drafts else None
    family.t3.to(DEVICE)
    return DecodeLoop(
        family.t3, order=family.order, guided=family.guided, capacity=CAPACITY, plan=plan, draft=head
    )


def begin(loop: DecodeLoop, family: Family, sampling: Sampling, budget: int = BUDGET) -> None:
    prompt = family.prompt(9, 1).to(DEVICE)
    loop.prefill(0, prompt, sampling=sampling, seed=5, budget=budget)


def plain(family: Family, sampling: Sampling, plan: DecodePlan = PLAN, budget: int = BUDGET) -> list[int]:
    """Return the tokens of plain steps."""
    loop = loop_of(family, plan, drafts=False)
    begin(loop, family, sampling, budget)
    return [token for _ in range(4) for token in loop.launch(4).take()[0]]


def speculative(loop: DecodeLoop, drafts: int, launches: int = 4) -> tuple[list[int], list[int]]:
    """Return the tokens of speculative steps, and how many each accepted."""
    pending = [loop.launch(4, drafts) for _ in range(launches)]
    return [t for one in pending for t in one.take()[0]], [n for one in pending for n in one.accepted()]


class Oracle:
    """A draft that is right for the tokens whose number is not among `wrong`."""

    def __init__(self, tokens: list[int], wrong: set[int]) -> None:
        self._tokens = torch.tensor(
            [(token + 1) % 6561 if n in wrong else token for n, token in enumerate(tokens + [7] * 8)],
            device=DEVICE,
        )

    def install(self, speculation: SpeculativeStep, monkeypatch: pytest.MonkeyPatch) -> None:
        draw, t3, own = speculation._sample, speculation._packed.t3, speculation._drafting

        def sample(state: Any, sorting: bool) -> tuple[Tensor, Tensor]:
            number = state.sampled.clone()
            x, lengths = draw(state, sorting)
            if state.seen is own.seen:
                token = self._tokens[number]
                state.recent.index_copy_(0, state.cursor - 1, token[None])
                state.seen.scatter_(1, token[:, None], True)
                x = t3.embed_speech_at(token.expand(len(x)), (number + 1).expand(len(x)))
            return x, lengths

        monkeypatch.setattr(speculation, "_sample", sample)


def sampling_of(family: Family, temperature: float) -> Sampling:
    return replace(family.defaults.sampling, temperature=temperature)


@pytest.mark.parametrize("drafts", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
def test_tokens_are_those_of_plain_steps(family: Family, temperature: float, drafts: int) -> None:
    sampling = sampling_of(family, temperature)
    loop = loop_of(family)
    begin(loop, family, sampling)
    tokens, accepted = speculative(loop, drafts)
    assert tokens == plain(family, sampling)
    assert len(set(tokens)) > 3, "a model that repeats itself proves nothing"
    assert len(accepted) + sum(accepted) == len(tokens)


@pytest.mark.parametrize("wrong", [set(), {4}, {2, 3, 5, 8}, set(range(20))], ids=len)
@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
def test_tokens_are_those_of_plain_steps_wherever_the_draft_is_right(
    family: Family, temperature: float, wrong: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = sampling_of(family, temperature)
    expected = plain(family, sampling)
    loop = loop_of(family)
    assert loop.speculation is not None
    Oracle(expected, wrong).install(loop.speculation, monkeypatch)
    begin(loop, family, sampling)
    tokens, accepted = speculative(loop, LONGEST)
    assert tokens == expected
    # Each step takes one token, then those that are drafted right, at most three.
    steps, at = [], 0
    while at < BUDGET:
        right = 0
        while right < LONGEST and at + 1 + right < BUDGET and at + 1 + right not in wrong:
            right += 1
        steps.append(right)
        at += 1 + right
    assert accepted == steps


def test_plain_and_speculative_steps_may_alternate(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = sampling_of(family, 0.8)
    expected = plain(family, sampling)
    loop = loop_of(family)
    assert loop.speculation is not None
    Oracle(expected, {5}).install(loop.speculation, monkeypatch)
    begin(loop, family, sampling)
    tokens = loop.launch(2).take()[0] + loop.launch(2, 2).take()[0]
    tokens += loop.launch(1).take()[0] + loop.launch(1, 1).take()[0]
    assert 8 < len(tokens) < BUDGET
    assert tokens + loop.launch(4).take()[0] == expected[: len(tokens) + 4]


@pytest.mark.parametrize("number", [3, 4, 5])
def test_a_stop_ends_the_utterance_whether_it_was_drafted_or_not(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = family_named("multilingual")
    sampling = sampling_of(family, 0.0)
    expected = plain(family, sampling)[:number]
    assert len(set(expected)) == number
    # T3 now stops instead of its token `number`, as plain steps show.
    with torch.no_grad():
        head, stopping = family.t3.speech_head.weight, plain(family, sampling)[number]
        head[STOP_SPEECH] = 1.01 * head[stopping]
    stopped = plain(family, sampling)
    assert stopped[-1] == STOP_SPEECH
    loop = loop_of(family)
    assert loop.speculation is not None
    Oracle(stopped, set()).install(loop.speculation, monkeypatch)
    begin(loop, family, sampling)
    tokens, accepted = speculative(loop, LONGEST)
    assert tokens == stopped
    assert sum(accepted) >= len(stopped) - len(accepted) - 1


def test_logits_that_are_not_numbers_are_never_accepted(family: Family) -> None:
    loop = loop_of(family)
    begin(loop, family, sampling_of(family, 0.8))
    loop.compute_prompts()
    with torch.inference_mode():
        for keys, _ in loop._caches:
            keys.fill_(torch.nan)
    tokens, _ = speculative(loop, LONGEST)
    assert len(tokens) == 2, "one from the prompt's logits, then the end"
    assert tokens[1] < 0


def test_drafted_tokens_of_the_last_step_have_positions_of_their_own(family: Family) -> None:
    """The utterance fills its capacity, and all drafted tokens lie behind it."""
    sampling, budget = sampling_of(family, 0.8), 14
    loop = DecodeLoop(
        family.t3.to(DEVICE),
        order=family.order,
        guided=family.guided,
        capacity=32,
        plan=PLAN,
        draft=fill(DraftHead(family.t3.config.backbone.width, blocks=1, inner=32)),
    )
    prompt = family.prompt(18, 1).to(DEVICE)
    loop.prefill(0, prompt, sampling=sampling, seed=5, budget=budget)
    tokens, _ = speculative(loop, LONGEST)
    assert tokens == family_named(_name(family)).plain(prompt.cpu(), sampling, budget=budget, seed=5)
    table = family.t3.config.learned_positions
    if table is not None:
        with pytest.raises(MemoryFull):
            loop.prefill(0, prompt[:, :2], sampling=sampling, seed=5, budget=table[1] - 1)


def _name(family: Family) -> str:
    return next(
        name for name in ("multilingual", "turbo", "wren") if family_named(name).t3.config == family.t3.config
    )


@pytest.mark.parametrize("name", ["multilingual", "turbo", "wren"])
@pytest.mark.parametrize(
    ("drafts", "accepted"), [pytest.param(1, [1, 0, 1], marks=pytest.mark.slow), (3, [2, 1])]
)
def test_kernels_give_the_tokens_of_plain_steps(
    name: str, drafts: int, accepted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = None if CUDA else Tuning(1024, 64, 4)
    plan = replace(PLAN, spans=(), kernels="triton", tuning=tuning)
    family = family_named(name)
    sampling = sampling_of(family, 0.8)
    expected = plain(family, sampling, replace(plan, kernels="library"), budget=5)
    loop = loop_of(family, plan)
    assert loop.speculation is not None
    Oracle(expected, {3}).install(loop.speculation, monkeypatch)
    begin(loop, family, sampling, budget=5)
    pending = loop.launch(len(accepted), drafts)
    assert pending.take() == [expected]
    assert pending.accepted() == accepted


def test_the_host_reads_nothing(family: Family) -> None:
    loop = loop_of(family)
    begin(loop, family, family.defaults.sampling)
    loop.compute_prompts()
    state, caches = loop._views(1, CAPACITY + LONGEST)
    assert loop.speculation is not None
    with torch.no_grad(), HostWatch() as watch:
        loop.speculation(state, caches, LONGEST, True)
    assert not watch.found
    assert watch.operations > 50


@pytest.mark.requires_cuda
@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kernels", ["library", "triton"])
def test_graphs_give_the_tokens_of_plain_graphs(family: Family, kernels: Any, temperature: float) -> None:
    sampling, plan = sampling_of(family, temperature), replace(PLAN, kernels=kernels)
    expected = plain(family, sampling, plan)
    for drafts in range(1, LONGEST + 1):
        loop = loop_of(family, plan)
        loop.capture(sorting=family.order == "turbo")
        begin(loop, family, sampling)
        assert speculative(loop, drafts)[0] == expected
        assert {graph.mode for graph in loop._graphs.values()} == {"graph"}
