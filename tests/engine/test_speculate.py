"""Guessed or not, the tokens are the same: for every draft and family, in a crowd, and after faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from parity.tiny import TINY_GPT2, TINY_LLAMA, fill, gaussian
from torch import Tensor

from nightingale import TTS
from nightingale.decoding.decoding import Decoding
from nightingale.backends.torch.drafts import (
    Ask,
    Draft,
    ExitDraft,
    LookupDraft,
    ModelDraft,
    TorchDraftHead,
    HiddenStateDraft,
)
from nightingale.decoding.decoder import Decoder, HostDecoder, Speaking
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.engine.load import open_decoder, plan_for
from nightingale.engine.model import Model
from nightingale.engine.profiles import PROFILES
from nightingale.decoding.random import generator
from nightingale.backends.torch.runner import PlainRunner
from nightingale.decoding.speculative import ASK_AGAIN, Costs, Pace, SpeculativeDecoder
from nightingale.engine.rendering.utterance import Utterance
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.t3.config import T3Config
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3

FREE = Costs(several=1.0, token=0.0, guess=0.0)
"""Guessing costs nothing, so as much as possible is guessed."""
CONFIGS: dict[str, T3Config] = {"multilingual": TINY_LLAMA, "turbo": TINY_GPT2}
BUDGET, PROMPT, LONGEST = 24, 6, 4
POOL = {"slots": 4, "rows_per_slot": 2, "capacity": PROMPT + 4 + BUDGET, "spare": LONGEST}
DRAFTS = ["lookup", "exit", "same", "other", "guess"]


@pytest.fixture(scope="module")
def nets() -> dict[str, T3]:
    return {name: fill(T3(config)) for name, config in CONFIGS.items()}


def prompt_for(t3: T3, decoding: Decoding, rows: int) -> Tensor:
    """Another for each utterance, of another length."""
    seed = decoding.rng.initial_seed() % 1000
    return gaussian((rows, PROMPT + seed % 4, t3.config.backbone.width), seed)


def random_head(t3: T3) -> DraftHead:
    """It knows nothing, but its guesses are of T3's own kind."""
    return fill(DraftHead(t3.config.backbone.width, blocks=1, inner=32))


def draft_of(kind: str, name: str, nets: dict[str, T3], runner: PlainRunner, rows: int) -> Draft:
    """lookup; the first layer; the target itself, which is always right; a member of the other kind."""
    if kind == "lookup":
        return LookupDraft()
    if kind == "exit":
        return ExitDraft(runner, layers=1)
    if kind == "guess":
        return HiddenStateDraft(runner, runner.t3, TorchDraftHead(runner.t3, random_head(runner.t3)))
    t3 = nets[name if kind == "same" else next(other for other in nets if other != name)]
    own = PlainRunner(t3, **POOL, batched=runner.batched)  # type: ignore[arg-type]
    return ModelDraft(own, lambda decoding: prompt_for(t3, decoding, rows if kind == "same" else 1))


class Crowd:
    """What the worker does, and nothing else: begin, step, leave, move up."""

    def __init__(self, t3: T3, name: str, draws: Decoder, **sampling: Any) -> None:
        self.t3, self.draws = t3, draws
        self.defaults = replace(MODEL_DEFAULTS[name], max_new_tokens=BUDGET)
        self.sampling = replace(self.defaults.sampling, **sampling)
        self.rows = 2 if self.sampling.cfg_weight > 0 else 1
        self.said: dict[int, list[int]] = {}
        self.running: list[tuple[int, Decoding]] = []
        self.drafted = self.accepted = 0

    def begin(self, seed: int) -> None:
        decoding = self._decoding(seed)
        slot = len(self.running)
        self.running.append((seed, decoding))
        self._note(seed, decoding, self.draws.begin(slot, decoding, prompt_for(self.t3, decoding, self.rows)))

    def restart(self, seed: int, new_seed: int) -> None:
        slot = [s for s, _ in self.running].index(seed)
        decoding = self._decoding(new_seed)
        self.running[slot] = (new_seed, decoding)
        first = self.draws.begin(slot, decoding, prompt_for(self.t3, decoding, self.rows))
        self._note(new_seed, decoding, first)

    def _decoding(self, seed: int) -> Decoding:
        rng = generator(seed, "tokens")
        return Decoding(self.t3, defaults=self.defaults, sampling=self.sampling, text_ids=9, rng=rng)

    def step(self) -> None:
        speaking = [
            Speaking(slot=slot, decoding=decoding, last_token=self.said[seed][-1])
            for slot, (seed, decoding) in enumerate(self.running)
        ]
        for (seed, decoding), drawn in zip(list(self.running), self.draws.step(speaking), strict=True):
            assert not isinstance(drawn, Exception), drawn
            self._note(seed, decoding, drawn)
        for seed in [seed for seed, decoding in self.running if decoding.finished]:
            self.leave(seed)

    def _note(self, seed: int, decoding: Decoding, tokens: list[int]) -> None:
        for token in tokens:
            if not decoding.finished:
                self.said.setdefault(seed, []).append(token)
                decoding.note(token)

    def leave(self, seed: int) -> None:
        slot, last = [s for s, _ in self.running].index(seed), len(self.running) - 1
        tally = self.running[slot][1].tally
        self.drafted, self.accepted = self.drafted + tally.drafted, self.accepted + tally.accepted
        self.draws.leave(slot)
        if slot != last:
            self.draws.move(last, slot)
            self.running[slot] = self.running[last]
        self.running.pop()

    def run(self) -> Crowd:
        """Come one by one, leave early, begin anew, and speak on to the end."""
        self.begin(0)
        for _ in range(2):
            self.step()
        self.begin(1)
        self.begin(2)
        self.step()
        self.begin(3)
        self.step()
        if any(seed == 1 for seed, _ in self.running):
            self.restart(1, 11)
        self.step()
        if any(seed == 0 for seed, _ in self.running):
            self.leave(0)
        while self.running:
            self.step()
        return self


def plain(t3: T3, batched: bool) -> HostDecoder:
    return HostDecoder(PlainRunner(t3, **POOL, batched=batched))  # type: ignore[arg-type]


def speculative(kind: str, name: str, nets: dict[str, T3], *, batched: bool, rows: int) -> SpeculativeDecoder:
    runner = PlainRunner(nets[name], **POOL, batched=batched)  # type: ignore[arg-type]
    draft = draft_of(kind, name, nets, runner, rows)
    return SpeculativeDecoder(runner, draft, costs=FREE, after=1, longest=LONGEST)


def check_same(heard: Crowd, expected: Crowd) -> None:
    """Who was interrupted may have come further or less far; what both said must be one beginning."""
    for seed in (2, 3, 11):
        assert heard.said[seed] == expected.said[seed], f"seed {seed}"
    for seed in (0, 1):
        both = min(len(heard.said[seed]), len(expected.said[seed]))
        assert heard.said[seed][:both] == expected.said[seed][:both], f"seed {seed}"


@pytest.mark.parametrize("batched", [False, True], ids=["alone", "batched"])
@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", DRAFTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_speculative_decoding_says_what_plain_decoding_says(
    name: str, kind: str, temperature: float, batched: bool, nets: dict[str, T3]
) -> None:
    expected = Crowd(nets[name], name, plain(nets[name], False), temperature=temperature).run()
    draws = speculative(kind, name, nets, batched=batched, rows=expected.rows)
    heard = Crowd(nets[name], name, draws, temperature=temperature).run()
    check_same(heard, expected)
    assert heard.accepted <= heard.drafted
    if kind != "lookup":
        assert heard.drafted > 0
    if kind == "same":
        assert heard.accepted > 0.8 * heard.drafted, "the target guesses itself"


class Broken:
    """A draft that fails for some, and guesses nonsense for others."""

    bytes = 0

    def __init__(self) -> None:
        self.asked = 0

    def guess(self, asks: list[Ask]) -> list[list[int]]:
        self.asked += 1
        if any(ask.slot % 2 for ask in asks):
            raise ArithmeticError("this draft knows nobody in an odd slot")
        return [[5] * ask.count for ask in asks]

    def leave(self, slot: int) -> None: ...
    def move(self, source: int, target: int) -> None: ...


def test_a_draft_that_fails_costs_nobody_a_token(nets: dict[str, T3]) -> None:
    name, draft = "multilingual", Broken()
    runner = PlainRunner(nets[name], **POOL, batched=True)  # type: ignore[arg-type]
    draws = SpeculativeDecoder(runner, draft, costs=FREE, after=1, longest=LONGEST)
    check_same(Crowd(nets[name], name, draws).run(), Crowd(nets[name], name, plain(nets[name], True)).run())
    assert draft.asked > 5


def test_nobody_is_asked_before_the_first_sound_has_its_tokens(nets: dict[str, T3]) -> None:
    draft = Broken()
    runner = PlainRunner(nets["turbo"], **POOL, batched=False)  # type: ignore[arg-type]
    crowd = Crowd(nets["turbo"], "turbo", SpeculativeDecoder(runner, draft, costs=FREE, after=5))
    crowd.begin(0)
    for _ in range(4):
        assert draft.asked == 0
        crowd.step()
    assert len(crowd.said[0]) == 5
    crowd.step()
    assert draft.asked == 1


def test_the_pace_follows_what_was_accepted() -> None:
    pace = Pace(Costs(several=1.0, token=0.05, guess=0.1))
    first = pace.length(1)
    for _ in range(20):
        pace.learn(4, 4)
    assert pace.length(1) > first > 0
    for _ in range(60):
        pace.learn(1, 0)
    assert [pace.length(1) for _ in range(ASK_AGAIN)] == [0] * (ASK_AGAIN - 1) + [1]


def test_a_draft_that_could_never_pay_is_never_asked() -> None:
    pace = Pace(Costs(several=9.0, token=0.5, guess=0.3))
    assert {pace.length(1) for _ in range(3 * ASK_AGAIN)} == {0}


def test_guesses_are_fewer_in_company_where_each_token_costs() -> None:
    costs = Costs(several=1.0, token=0.2, guess=0.0)
    assert Pace(costs).length(1) > Pace(costs).length(8)


def test_who_is_passed_over_in_turn_is_not_guessed_for_in_company() -> None:
    costs = Costs(several=1.2, token=0.1, guess=0.1, in_turn=True)
    assert Pace(costs).length(1) > 0
    assert {Pace(costs).length(company) for company in (2, 3, 8)} == {0}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """What each request drew in its last attempt, by its seed."""
    kept: dict[int, list[int]] = {}
    accept, begin = Utterance.accept, Utterance._begin_attempt

    def accepted(self: Utterance, token: int) -> None:
        accept(self, token)
        kept[self.request.seed].append(token)

    def begun(self: Utterance) -> None:
        begin(self)
        kept[self.request.seed] = []

    monkeypatch.setattr(Utterance, "accept", accepted)
    monkeypatch.setattr(Utterance, "_begin_attempt", begun)
    monkeypatch.setattr(Costs, "with_guess", lambda *_: FREE)
    return kept


@pytest.fixture
def engine(noise_model: Model) -> Callable[[str], TTS]:
    model = replace(noise_model, defaults=replace(noise_model.defaults, max_new_tokens=22, guarded=True))
    return lambda draft: TTS.over(model, replace(PROFILES["balanced"], slots=3, draft=draft))


def test_the_engine_says_the_same_when_requests_leave_and_begin_anew(
    engine: Callable[[str], TTS], drawn: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    heed = Utterance._heed

    def once(self: Utterance, guard: Any) -> None:
        heed(self, guard)
        if self.request.seed == 1 and self._attempt == 0 and self.decoding.drawn == 14:
            self.must_restart = True

    monkeypatch.setattr(Utterance, "_heed", once)
    heard, metrics = [], []
    for draft in ("", "exit:1", "lookup", "noise"):
        with engine(draft) as tts:
            gone = tts.stream("Somebody who will not stay to the end of this.", seed=9)
            streams = [
                tts.stream(text, seed=i) for i, text in enumerate(["Hello there.", "Again.", "Three."])
            ]
            next(gone)
            gone.close()  # type: ignore[attr-defined]
            for stream in streams:
                list(stream)
            drawn.pop(9)
            heard.append(dict(drawn))
            metrics.append(tts.say("Hello there.", seed=0).metrics)
    assert heard[1:] == heard[:1] * 3
    assert metrics[0].drafted == metrics[0].accepted == 0
    assert metrics[1].drafted > 0
    assert metrics[3].accepted > 0.8 * metrics[3].drafted > 0, "the model guesses for itself"


def test_a_draft_that_is_no_draft_is_refused(noise_model: Model) -> None:
    for name in ("exit:0", "exit:2", "exit:x"):
        profile = replace(PROFILES["balanced"], draft=name)
        with pytest.raises(ConfigError, match="no such draft"):
            open_decoder(noise_model, profile, plan_for(noise_model, profile))


@pytest.mark.parametrize("way", ["int8", "graphs"])
def test_a_draft_is_refused_where_it_would_not_be_exact(noise_model: Model, way: str) -> None:
    profile = replace(PROFILES["balanced"], draft="lookup")
    plan = plan_for(noise_model, profile)
    with pytest.raises(ConfigError, match="needs T3 in torch"):
        open_decoder(noise_model, profile, replace(plan, t3=replace(plan.t3, way=way)))


def test_an_odd_token_costs_as_much_as_two_and_rows_in_turn_as_many() -> None:
    costs = Costs(several=1.2, token=0.1, guess=0.0, by_twos=True)
    assert [round(costs.of_pass(tokens), 3) for tokens in (1, 2, 3, 4)] == [1.0, 1.3, 1.5, 1.5]
    both = costs.row_by_row(2)
    assert [round(both.of_pass(tokens), 3) for tokens in (1, 2, 3, 4)] == [1.0, 2.6, 3.0, 3.0]
    assert Pace(both).length(1) == 0, "a guided utterance is not guessed for"


def test_weights_with_fewer_layers_are_a_draft(noise_model: Model, tmp_path: Any) -> None:
    from safetensors.torch import save_file

    tensors = noise_model.networks.t3.first_layers(1).state_dict()
    save_file(
        {name: value.half().contiguous() for name, value in tensors.items()}, tmp_path / "d.safetensors"
    )
    profile = replace(PROFILES["balanced"], draft=str(tmp_path / "d.safetensors"))
    draws = open_decoder(noise_model, profile, plan_for(noise_model, profile))
    assert isinstance(draws, SpeculativeDecoder)
    assert draws.bytes > draws.runner.bytes
    assert torch.is_tensor(draws.runner.t3.speech_head.weight)  # type: ignore[attr-defined]
