"""Guards: utterances that go wrong are retried or cut, and healthy ones are left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, cycle, islice, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightingale.decoding.guards import ATTEMPTS, CONTINUE, Action, Guard, Limits, limits_for
from nightingale.decoding.philox import SEED_LIMIT, retry_seed
from nightingale.models.defaults import MODEL_DEFAULTS, SILENCE_TOKEN

STOP = 6562
SILENCE = frozenset({SILENCE_TOKEN})
TEXT = "The quick brown fox jumps over the lazy dog."
LIMITS = limits_for(TEXT, ceiling=1000)
SPEECH = list(range(100, 175))
"""Three seconds of different sounds: as long as TEXT takes."""


class ScriptedModel:
    """A model whose n-th attempt is the n-th script; further attempts repeat the last one."""

    def __init__(self, *scripts: Iterable[int]) -> None:
        self._scripts = [list(islice(script, 3000)) for script in scripts]
        self.seeds: list[int] = []

    def __call__(self, seed: int) -> Iterator[int]:
        self.seeds.append(seed)
        return iter(self._scripts[min(len(self.seeds), len(self._scripts)) - 1])


def guarded(
    model: Callable[[int], Iterable[int]],
    limits: Limits = LIMITS,
    *,
    attempts: int = ATTEMPTS,
    silence: frozenset[int] = SILENCE,
) -> tuple[list[int], int, str]:
    """Run a model under a guard and return its tokens, the number of attempts and the reason for the end."""
    for number in count(1):
        guard = Guard(limits, stop_id=STOP, silence=silence, may_retry=number < attempts)
        tokens: list[int] = []
        verdict = CONTINUE
        for token in model(retry_seed(7, number - 1)):
            verdict = guard.observe(token)
            tokens.append(token)
            if verdict.action is not Action.CONTINUE:
                break
        if verdict.action is Action.STOP:
            return tokens[: verdict.keep_tokens], number, verdict.reason
        if verdict.action is Action.CONTINUE:
            return tokens, number, "no verdict"
        assert number < attempts, "the last attempt may not be retried"
    raise AssertionError


def silent(tokens: int | None = None) -> Iterator[int]:
    return repeat(SILENCE_TOKEN) if tokens is None else repeat(SILENCE_TOKEN, tokens)


HEALTHY = {
    "plain": SPEECH,
    "a pause of two seconds inside": [*SPEECH[:40], *silent(50), *SPEECH[40:]],
    "a second of silence at the end": [*SPEECH, *silent(25)],
    "two seconds of silence before": [*silent(50), *SPEECH],
    "a sound held for a second": [*SPEECH, *repeat(5, 25), *SPEECH],
    "a laugh of five equal syllables": [*SPEECH, *([1, 2, 3, 4, 5, 6, 7, 8] * 5)],
    "twice as slow as reading": list(range(150)),
    "twice as fast as reading": list(range(37)),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_utterance_is_not_changed(name: str) -> None:
    model = ScriptedModel([*HEALTHY[name], STOP])
    assert guarded(model) == (HEALTHY[name], 1, "complete")
    assert model.seeds == [7]


def test_an_utterance_that_never_stops_is_retried() -> None:
    model = ScriptedModel(chain(SPEECH, range(10_000)), [*SPEECH, STOP])
    assert guarded(model) == (SPEECH, 2, "complete")
    assert model.seeds == [7, retry_seed(7, 1)]


def test_an_utterance_that_never_stops_at_any_attempt_ends_with_its_budget() -> None:
    model = ScriptedModel(range(10_000))
    assert guarded(model) == (list(range(LIMITS.max_tokens)), 3, "too long")
    assert len(set(model.seeds)) == 3


def test_reaching_the_limit_of_the_model_is_not_retried() -> None:
    """The reference implementation, too, ends a long text at 1000 tokens."""
    limits = limits_for(TEXT * 10, ceiling=1000)
    assert guarded(ScriptedModel(range(10_000)), limits) == (list(range(1000)), 1, "too long")


@pytest.mark.parametrize("period", range(1, 9))
def test_a_loop_is_retried_and_at_the_last_attempt_cut_to_one_period(period: int) -> None:
    loop = list(range(period))
    assert guarded(ScriptedModel(chain(SPEECH, cycle(loop)), [*SPEECH, STOP])) == (SPEECH, 2, "complete")
    assert guarded(ScriptedModel(chain(SPEECH, cycle(loop)))) == ([*SPEECH, *loop], 3, "loop")


def test_a_loop_is_detected_within_two_seconds() -> None:
    guard = Guard(LIMITS, stop_id=STOP, silence=SILENCE)
    verdicts = [guard.observe(token) for token in islice(cycle([1, 2, 3]), LIMITS.loop_tokens)]
    assert set(verdicts[:-1]) == {CONTINUE}
    assert (verdicts[-1].action, verdicts[-1].reason) == (Action.RETRY, "loop")
    assert LIMITS.loop_tokens == 48


def test_a_repetition_of_a_longer_period_is_no_loop() -> None:
    assert guarded(ScriptedModel(chain(SPEECH, cycle(range(9)))))[1:] == (3, "too long")


def test_silence_after_the_text_is_the_end() -> None:
    assert guarded(ScriptedModel(chain(SPEECH, silent()))) == ([*SPEECH, *silent(25)], 1, "silence")


def test_silence_before_the_end_of_the_text_is_retried() -> None:
    model = ScriptedModel(chain(SPEECH[:10], silent()), [*SPEECH, STOP])
    assert guarded(model) == (SPEECH, 2, "complete")


def test_silence_at_every_attempt_ends_soon() -> None:
    assert guarded(ScriptedModel(silent())) == ([*silent(25)], 3, "silence")


def test_an_immediate_stop_is_retried() -> None:
    assert guarded(ScriptedModel([STOP], [*silent(5), 1, STOP], [*SPEECH, STOP])) == (SPEECH, 3, "complete")
    assert guarded(ScriptedModel([STOP])) == ([], 3, "too short")


def test_each_vocabulary_has_its_own_silent_tokens() -> None:
    """Silence is detected as a loop in a vocabulary without a known silent token."""
    quiet = islice(cycle([10, 11, 12, 10, 11, 13, 14, 12, 15]), 200)
    tokens, _, reason = guarded(ScriptedModel(chain(SPEECH, quiet)), silence=frozenset(range(10, 16)))
    assert (tokens[:75], len(tokens), reason) == (SPEECH, 75 + LIMITS.tail_tokens, "silence")
    tokens, _, reason = guarded(ScriptedModel(chain(SPEECH, silent())), silence=frozenset())
    assert (tokens, reason) == ([*SPEECH, SILENCE_TOKEN], "loop")


def test_a_single_attempt_is_not_retried() -> None:
    assert guarded(ScriptedModel([STOP], [*SPEECH, STOP]), attempts=1) == ([], 1, "too short")
    assert guarded(ScriptedModel(cycle([1, 2])), attempts=1) == ([1, 2], 1, "loop")


def test_tokens_without_a_stop_get_no_verdict() -> None:
    assert guarded(ScriptedModel(SPEECH)) == (SPEECH, 1, "no verdict")


def test_silence_at_the_end_is_trimmed() -> None:
    assert guarded(ScriptedModel([*SPEECH, *silent(60), STOP])) == ([*SPEECH, *silent(25)], 1, "complete")
    tight = Limits(max_tokens=1000, tail_tokens=3)
    assert guarded(ScriptedModel([*SPEECH, *silent(60), STOP]), tight)[0] == [*SPEECH, *silent(3)]
    assert guarded(ScriptedModel([*SPEECH, *silent(2), STOP]), tight)[0] == [*SPEECH, *silent(2)]
    none = Limits(max_tokens=1000, tail_tokens=0)
    assert guarded(ScriptedModel([*SPEECH, *silent(2), STOP]), none)[0] == SPEECH
    assert guarded(ScriptedModel([*SPEECH, STOP]), none)[0] == SPEECH


def test_an_utterance_at_its_limits_is_healthy() -> None:
    limits = Limits(max_tokens=1000, min_tokens=3, enough_tokens=3)
    assert guarded(ScriptedModel([1, 2, 3, STOP]), limits, attempts=1) == ([1, 2, 3], 1, "complete")
    assert guarded(ScriptedModel([1, 2, STOP]), limits, attempts=1) == ([1, 2], 1, "too short")
    for sounding, action in ((3, Action.STOP), (2, Action.RETRY)):
        guard = Guard(limits, stop_id=STOP, silence=SILENCE)
        guard.commit(0)
        verdicts = [guard.observe(token) for token in [*range(sounding), *silent(limits.silence_tokens)]]
        assert set(verdicts[:-1]) == {CONTINUE}
        assert (verdicts[-1].action, verdicts[-1].reason) == (action, "silence")


def test_committed_tokens_are_neither_retried_nor_dropped() -> None:
    guard = Guard(LIMITS, stop_id=STOP, silence=SILENCE)
    verdicts = []
    for number, token in enumerate(chain(SPEECH[:20], cycle([1, 2, 3]))):
        verdicts.append(guard.observe(token))
        guard.commit(max(0, number - 5))
        if verdicts[-1] is not CONTINUE:
            break
    assert verdicts[-1].action is Action.STOP
    assert verdicts[-1].keep_tokens == len(verdicts) - 7, "the loop began before the last committed token"


def test_silence_after_committed_tokens_is_given_time_to_end() -> None:
    guard = Guard(LIMITS, stop_id=STOP, silence=SILENCE)
    guard.commit(10)
    tokens = [*SPEECH[:20], *silent(100), *SPEECH[20:], STOP]
    verdicts = [guard.observe(token) for token in tokens]
    assert set(verdicts[:-1]) == {CONTINUE}
    assert (verdicts[-1].action, verdicts[-1].keep_tokens) == (Action.STOP, len(tokens) - 1)
    guard = Guard(LIMITS, stop_id=STOP, silence=SILENCE)
    guard.commit(10)
    ends = [guard.observe(token) for token in [*SPEECH[:20], *silent(150)]]
    assert set(ends[:-1]) == {CONTINUE}
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
def test_the_limits_allow_slow_reading(text: str, seconds: float) -> None:
    assert limits_for(text, ceiling=1000).max_tokens >= 25 * seconds
    assert limits_for(text, ceiling=1000).min_tokens <= 25 * seconds / 8


def test_the_limits_follow_the_length_of_the_text() -> None:
    # Seven characters, of which three count four times; a tag; four letters and digits.
    text = "ab 12 $ [laugh]"
    assert limits_for(text, ceiling=256) == Limits(max_tokens=100 + 5 * 16 + 75, enough_tokens=4)
    assert limits_for(text, ceiling=255).max_is_ceiling
    assert limits_for("Hi!", ceiling=1000).max_tokens < 150
    assert limits_for(TEXT, ceiling=1000).max_tokens < 350
    assert limits_for("x" * 280, ceiling=1000).max_tokens == 1000
    assert limits_for("", ceiling=1000).min_tokens == 1


@pytest.mark.parametrize("name", sorted(MODEL_DEFAULTS))
def test_the_limit_of_the_model_is_never_exceeded(name: str) -> None:
    ceiling = MODEL_DEFAULTS[name].max_new_tokens
    assert limits_for("word " * 1000, ceiling=ceiling).max_tokens == ceiling


@given(st.lists(st.sampled_from([1, 2, 3, SILENCE_TOKEN, STOP]), max_size=600), st.integers(1, 3))
def test_any_sequence_of_tokens_ends_within_its_budget(script: list[int], attempts: int) -> None:
    tokens, used, reason = guarded(ScriptedModel(chain(script, silent())), attempts=attempts)
    assert reason != "no verdict"
    assert STOP not in tokens
    assert len(tokens) <= LIMITS.max_tokens
    assert used <= attempts
    assert tokens == list(chain(script, silent(1000)))[: len(tokens)]


def test_each_attempt_has_its_own_seed() -> None:
    seeds = [retry_seed(7, attempt) for attempt in range(20)]
    assert seeds[:2] == [7, 1336216185]
    assert len({*seeds, *(retry_seed(8, attempt) for attempt in range(20))}) == 40
    assert all(0 <= seed < SEED_LIMIT for seed in seeds)
