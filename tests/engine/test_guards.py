"""Utterances that go wrong, and what is made of them; and utterances that do not, and are left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count, cycle, islice, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightingale.decoding.guards import (
    ATTEMPTS,
    GO_ON,
    Action,
    Guard,
    Limits,
    limits_for,
    retry_seed,
)
from nightingale.decoding.seeds import SEED_LIMIT
from nightingale.models.defaults import MODEL_DEFAULTS, SILENCE_TOKEN

STOP = 6562
SILENCE = frozenset({SILENCE_TOKEN})
TEXT = "The quick brown fox jumps over the lazy dog."
LIMITS = limits_for(TEXT, ceiling=1000)
SPEECH = list(range(100, 175))
"""Three seconds of sounds, no two alike: as long as TEXT takes."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """An utterance that came to an end."""

    ids: list[int]
    attempts: int
    reason: str


def speak_guarded(
    attempt: Callable[[int], Iterable[int]],
    limits: Limits,
    *,
    seed: int,
    stop_id: int,
    silence: frozenset[int] = SILENCE,
    attempts: int = ATTEMPTS,
) -> Spoken:
    """The ids of an utterance, drawn again if it fails. attempt: tokens as they are drawn, from a seed."""
    for number in count(1):
        guard = Guard(limits, stop_id=stop_id, silence=silence, may_retry=number < attempts)
        ids: list[int] = []
        verdict = GO_ON
        for token in attempt(retry_seed(seed, number - 1)):
            verdict = guard.observe(token)
            if verdict.action is not Action.GO_ON:
                break
            ids.append(token)
        if verdict.action is Action.RETRY:
            continue
        if verdict.action is Action.STOP:
            # The last token observed is not in `ids` yet; a verdict never keeps a stop.
            return Spoken([*ids, token][: verdict.keep_tokens], number, verdict.reason)
        return Spoken(ids, number, "too long")
    raise AssertionError("the last attempt may not be retried")


class Metronome:
    """A model that says the same at every attempt, unless it is told what to say at the n-th."""

    def __init__(self, *attempts: Iterable[int]) -> None:
        self._attempts = [list(islice(attempt, 3000)) for attempt in attempts]
        self.seeds: list[int] = []

    def __call__(self, seed: int) -> Iterator[int]:
        self.seeds.append(seed)
        return iter(self._attempts[min(len(self.seeds), len(self._attempts)) - 1])


def silence(tokens: int | None = None) -> Iterator[int]:
    return repeat(SILENCE_TOKEN) if tokens is None else repeat(SILENCE_TOKEN, tokens)


def guarded(model: Metronome, limits: Limits = LIMITS, attempts: int = 3) -> tuple[list[int], int, str]:
    spoken = speak_guarded(model, limits, seed=7, stop_id=STOP, attempts=attempts)
    return spoken.ids, spoken.attempts, spoken.reason


HEALTHY = {
    "plain": SPEECH,
    "a pause of two seconds inside": [*SPEECH[:40], *silence(50), *SPEECH[40:]],
    "a second of quiet at the end": [*SPEECH, *silence(25)],
    "two seconds of quiet before": [*silence(50), *SPEECH],
    "a sound held for a second": [*SPEECH, *repeat(5, 25), *SPEECH],
    "a laugh of five equal syllables": [*SPEECH, *([1, 2, 3, 4, 5, 6, 7, 8] * 5)],
    "twice as slow as reading": list(range(150)),
    "twice as fast as reading": list(range(37)),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_utterance_is_left_alone(name: str) -> None:
    model = Metronome([*HEALTHY[name], STOP])
    assert guarded(model) == (HEALTHY[name], 1, "spoken")
    assert model.seeds == [7]


def test_one_that_never_stops_is_drawn_again() -> None:
    model = Metronome(chain(SPEECH, range(10_000)), [*SPEECH, STOP])
    assert guarded(model) == (SPEECH, 2, "spoken")
    assert model.seeds == [7, retry_seed(7, 1)]


def test_one_that_never_stops_at_any_attempt_ends_with_its_budget() -> None:
    model = Metronome(range(10_000))
    assert guarded(model) == (list(range(LIMITS.most)), 3, "too long")
    assert len(set(model.seeds)) == 3


def test_to_reach_the_models_own_limit_is_no_reason_to_try_again() -> None:
    """Upstream ends a long text at 1000 tokens, and so do we."""
    limits = limits_for(TEXT * 10, ceiling=1000)
    assert guarded(Metronome(range(10_000)), limits) == (list(range(1000)), 1, "too long")


@pytest.mark.parametrize("period", range(1, 9))
def test_a_loop_is_drawn_again_and_in_the_end_cut_to_one_round(period: int) -> None:
    rounds = list(range(period))
    assert guarded(Metronome(chain(SPEECH, cycle(rounds)), [*SPEECH, STOP])) == (SPEECH, 2, "spoken")
    assert guarded(Metronome(chain(SPEECH, cycle(rounds)))) == ([*SPEECH, *rounds], 3, "loop")


def test_a_loop_is_seen_within_two_seconds() -> None:
    guard = Guard(LIMITS, stop_id=STOP, silence=SILENCE)
    drawn = 0
    for token in cycle([1, 2, 3]):
        drawn += 1
        if guard.observe(token).action is Action.RETRY:
            break
    assert drawn == LIMITS.loop == 48


def test_silence_after_all_was_said_is_the_end() -> None:
    assert guarded(Metronome(chain(SPEECH, silence()))) == ([*SPEECH, *silence(25)], 1, "silence")


def test_silence_before_all_was_said_is_drawn_again() -> None:
    model = Metronome(chain(SPEECH[:10], silence()), [*SPEECH, STOP])
    assert guarded(model) == (SPEECH, 2, "spoken")


def test_silence_from_the_start_at_every_attempt_ends_soon() -> None:
    ids, attempts, reason = guarded(Metronome(silence()))
    assert (ids, attempts, reason) == ([*silence(25)], 3, "silence")


def test_a_stop_at_once_is_drawn_again() -> None:
    assert guarded(Metronome([STOP], [*silence(5), 1, STOP], [*SPEECH, STOP])) == (SPEECH, 3, "spoken")
    assert guarded(Metronome([STOP])) == ([], 3, "too short")


def test_what_counts_as_silence_is_the_models_own() -> None:
    """Other vocabularies have other ids for it, and several: 4299 is a sound to them."""
    quiet = islice(cycle([10, 11, 12, 10, 11, 13, 14, 12, 15]), 200)
    own = frozenset(range(10, 16))
    spoken = speak_guarded(Metronome(chain(SPEECH, quiet)), LIMITS, seed=7, stop_id=STOP, silence=own)
    assert (spoken.ids[:75], len(spoken.ids), spoken.reason) == (SPEECH, 75 + LIMITS.tail, "silence")
    unknown = Metronome(chain(SPEECH, silence()))
    held = speak_guarded(unknown, LIMITS, seed=7, stop_id=STOP, silence=frozenset())
    assert (held.ids, held.reason) == ([*SPEECH, SILENCE_TOKEN], "loop")


def test_one_attempt_may_be_all_there_is() -> None:
    assert guarded(Metronome([STOP], [*SPEECH, STOP]), attempts=1) == ([], 1, "too short")
    assert guarded(Metronome(cycle([1, 2])), attempts=1) == ([1, 2], 1, "loop")


def test_a_source_that_runs_dry_is_an_end_too() -> None:
    assert guarded(Metronome(SPEECH)) == (SPEECH, 1, "too long")


def test_quiet_at_the_end_is_trimmed() -> None:
    assert guarded(Metronome([*SPEECH, *silence(60), STOP])) == ([*SPEECH, *silence(25)], 1, "spoken")
    tight = Limits(most=1000, tail=3)
    assert guarded(Metronome([*SPEECH, *silence(60), STOP]), tight)[0] == [*SPEECH, *silence(3)]
    assert guarded(Metronome([*SPEECH, *silence(2), STOP]), tight)[0] == [*SPEECH, *silence(2)]


def test_what_was_heard_is_neither_drawn_again_nor_taken_back() -> None:
    guard = Guard(LIMITS, stop_id=STOP, silence=SILENCE)
    verdicts = []
    for number, token in enumerate(chain(SPEECH[:20], cycle([1, 2, 3]))):
        verdicts.append(guard.observe(token))
        guard.commit(max(0, number - 5))
        if verdicts[-1] is not GO_ON:
            break
    assert verdicts[-1].action is Action.STOP
    assert verdicts[-1].keep_tokens == len(verdicts) - 7, "the loop began earlier, but so much was handed on"


def test_one_that_falls_silent_while_it_is_heard_is_given_time_to_go_on() -> None:
    guard = Guard(LIMITS, stop_id=STOP, silence=SILENCE)
    guard.commit(10)
    tokens = [*SPEECH[:20], *silence(100), *SPEECH[20:], STOP]
    verdicts = [guard.observe(token) for token in tokens]
    assert set(verdicts[:-1]) == {GO_ON}
    assert (verdicts[-1].action, verdicts[-1].keep_tokens) == (Action.STOP, len(tokens) - 1)
    guard = Guard(LIMITS, stop_id=STOP, silence=SILENCE)
    guard.commit(10)
    ends = [guard.observe(token) for token in [*SPEECH[:20], *silence(150)]]
    assert (ends[-1].action, ends[-1].keep_tokens) == (Action.STOP, 45)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Hi!", 2.0),
        ("Yes.", 2.0),
        (TEXT, 6.0),
        ("987,654,321", 7.0),
        ("Call 0049 170 1234567 today.", 12.0),
        ("It was in 1984.", 4.0),
        ("$5,000,000 + 20%", 7.0),
        ("[laugh] Oh. [sigh]", 6.0),
        ("NASA, HTML and USB.", 6.0),
        ("Well... um... I don't know...", 8.0),
        ("今天天气很好，我们去公园玩吧。", 7.0),
        ("こんにちは、元気ですか。", 5.0),
        ("안녕하세요, 만나서 반갑습니다.", 6.0),
        ("यह पहला वाक्य है।", 4.0),
    ],
)
def test_the_budget_leaves_room_for_the_slowest_reader(text: str, seconds: float) -> None:
    """seconds: generous, slow readings."""
    assert limits_for(text, ceiling=1000).most >= 25 * seconds
    assert limits_for(text, ceiling=1000).least <= 25 * seconds / 8


def test_the_budget_is_one_of_the_text_and_not_forty_seconds() -> None:
    assert limits_for("Hi!", ceiling=1000).most < 150
    assert limits_for(TEXT, ceiling=1000).most < 350
    assert limits_for("x" * 280, ceiling=1000).most == 1000
    assert limits_for("", ceiling=1000).least == 1


@pytest.mark.parametrize("name", sorted(MODEL_DEFAULTS))
def test_no_family_is_given_more_than_it_can_do(name: str) -> None:
    assert limits_for("word " * 1000, ceiling=MODEL_DEFAULTS[name].max_new_tokens).most == MODEL_DEFAULTS[name].max_new_tokens


@given(st.lists(st.sampled_from([1, 2, 3, SILENCE_TOKEN, STOP]), max_size=600), st.integers(1, 3))
def test_whatever_is_drawn_it_ends_within_its_budget(tokens: list[int], attempts: int) -> None:
    ids, used, _ = guarded(Metronome(chain(tokens, silence())), attempts=attempts)
    assert STOP not in ids
    assert len(ids) <= LIMITS.most
    assert used <= attempts
    assert ids == list(chain(tokens, silence(1000)))[: len(ids)]


def test_each_attempt_has_a_seed_of_its_own() -> None:
    seeds = [retry_seed(7, attempt) for attempt in range(20)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 20
    assert all(0 <= seed < SEED_LIMIT for seed in seeds)
    assert seeds == [retry_seed(7, attempt) for attempt in range(20)]
