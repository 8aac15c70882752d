"""Tokens drawn on the device, and read late: the same speech, whoever comes, leaves, moves or begins anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_torch import t3_of

from nightingale import TTS
from nightingale.decoding.decoding import Decoding
from nightingale.decoding.decoder import GraphDecoder
from nightingale.engine.load import plan_for
from nightingale.engine.model import Model
from nightingale.engine.plan import Plan
from nightingale.backends.profiles import PROFILES, Profile
from nightingale.engine.rendering.utterance import Utterance
from nightingale.errors import EngineFault

TEXTS = ["Hello there.", "A second voice, a little longer.", "Three.", "And the fourth one speaks as well."]
FAST = replace(PROFILES["fast"], slots=4)


def planned(model: Model, profile: Profile = FAST, **ways: str) -> Plan:
    """This machine's plan, but for the stages that are told otherwise: graphs run eagerly on a CPU."""
    made = plan_for(model, profile)
    changed: dict[str, Any] = {stage: replace(getattr(made, stage), way=way) for stage, way in ways.items()}
    return replace(made, **changed)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """What each request drew in its last attempt, by its seed."""
    kept: dict[int, list[int]] = {}
    plain, begin = Utterance.accept, Utterance._begin_attempt

    def accept(self: Utterance, token: int) -> None:
        plain(self, token)
        kept[self.request.seed].append(token)

    def begin_attempt(self: Utterance) -> None:
        begin(self)
        kept[self.request.seed] = []

    monkeypatch.setattr(Utterance, "accept", accept)
    monkeypatch.setattr(Utterance, "_begin_attempt", begin_attempt)
    return kept


def engine(model: Model, *, device: bool, tokens: int = 21, **defaults: Any) -> TTS:
    model = model.with_defaults(max_new_tokens=tokens, **defaults)
    return TTS.over(model, FAST, plan=planned(model, t3="graphs" if device else "plain"))


def together(tts: TTS, **controls: Any) -> list[Iterator[Any]]:
    return [tts.stream(text, seed=i, **controls) for i, text in enumerate(TEXTS * 2)]


def finish(streams: list[Iterator[Any]]) -> None:
    for stream in streams:
        list(stream)


@pytest.mark.parametrize("cfg_weight", [0.5, 0.0])
def test_greedy_tokens_are_the_plain_ones_in_a_crowd_that_moves_slots(
    tiny_model: Model, drawn: dict[int, list[int]], cfg_weight: float
) -> None:
    heard = []
    for device in (False, True):
        with engine(tiny_model, device=device) as tts:
            assert isinstance(tts._worker.decoder, GraphDecoder) is device
            finish(together(tts, temperature=0.0, cfg_weight=cfg_weight))
        heard.append(dict(drawn))
    assert heard[0] == heard[1]
    assert len(set(map(tuple, heard[0].values()))) > 2, "different texts must say different things"


def test_a_seed_draws_the_same_alone_and_in_a_crowd(tiny_model: Model, drawn: dict[int, list[int]]) -> None:
    with engine(tiny_model, device=True) as tts:
        finish(together(tts))
        crowd = dict(drawn)
        drawn.clear()
        for i, text in enumerate(TEXTS * 2):
            tts.say(text, seed=i)
    assert drawn == crowd
    assert len(set(map(tuple, crowd.values()))) == len(crowd)


def test_who_leaves_early_disturbs_nobody(tiny_model: Model, drawn: dict[int, list[int]]) -> None:
    with engine(tiny_model, device=True) as tts:
        finish(together(tts))
        expected = dict(drawn)
        streams = together(tts)
        next(streams[0])
        streams[0].close()  # type: ignore[attr-defined]
        streams[2].close()  # type: ignore[attr-defined]
        finish(streams[1:2] + streams[3:])
    for seed in (1, 3, 4, 5, 6, 7):
        assert drawn[seed] == expected[seed]


def test_an_attempt_that_is_given_up_leaves_no_token_behind(
    tiny_model: Model, drawn: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard sees the fourth token when four more are under way."""
    heed, seen = Utterance._heed, []

    def once(self: Utterance, guard: Any) -> None:
        heed(self, guard)
        if self._attempt == 0 and self.decoding.drawn == 4:
            seen.append(list(drawn[self.request.seed]))
            self.must_restart = True

    monkeypatch.setattr(Utterance, "_heed", once)
    with engine(tiny_model, device=True, guarded=True) as tts:
        audio = tts.say("Again, please.", seed=3)
    assert audio.metrics.retries == 1
    assert len(seen) == 1
    assert len(drawn[3]) == 21
    assert drawn[3][:3] != seen[0][:3], "another attempt draws other tokens"


def test_scores_that_are_no_numbers_end_one_request_and_no_other(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = Utterance.prompt

    def poisoned(self: Utterance) -> torch.Tensor:
        made = prompt(self)
        return made * float("nan") if self.request.seed == 1 else made

    monkeypatch.setattr(Utterance, "prompt", poisoned)
    with engine(tiny_model, device=True) as tts:
        good, bad, other = (tts.stream(TEXTS[i], seed=i) for i in range(3))
        with pytest.raises(EngineFault, match="not finite"):
            list(bad)
        for stream in (good, other):
            assert sum(len(chunk.samples) for chunk in stream) == 21 * 960
        again = [tts.stream(text, seed=9) for text in TEXTS]  # in every slot, the poisoned one too
        for stream in again:
            assert sum(len(chunk.samples) for chunk in stream) == 21 * 960


def test_a_decoding_is_told_from_every_other(tiny_model: Model) -> None:
    """Tokens on their way are addressed by it."""
    made = [
        Decoding(
            t3_of(tiny_model),
            defaults=tiny_model.defaults,
            sampling=tiny_model.defaults.sampling,
            text_ids=3,
            rng=torch.Generator(),
        )
        for _ in range(2)
    ]
    assert len(set(made)) == 2
