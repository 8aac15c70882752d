"""Repetition, silence and end-of-speech guards: end or retry an utterance whose speech tokens go wrong.

These models fail in four ways: the stop token never comes and silence runs to the token limit; a sound
repeats forever; a short text is followed by babble; the stop token comes before the text was spoken. A guard
detects these from the sequence of tokens and the length of the text.

The limits are wide on purpose. Read speech has about 1.7 tokens per letter (15 letters and 25 tokens a
second), so a healthy utterance is far from all of them and comes out exactly as without a guard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

from nightingale.text.stops import TAG, spoken_length

ATTEMPTS: Final = 3

BASE_TOKENS: Final = 100
"""Tokens (4 s) that any text may have: breath before it, a slow word, silence after it."""
MAX_TOKENS_PER_LETTER: Final = 5.0
"""Three times slower than reading."""
LETTERS_PER_DIGIT: Final = 4
"""A digit may take as long as this many letters, twice as long as it does: 987,654,321 takes five seconds."""
MAX_TOKENS_PER_TAG: Final = 75
"""A laugh of 3 s."""
MIN_TOKENS_PER_LETTER: Final = 0.3
"""83 letters a second, faster than any speech: with fewer tokens, the text was not spoken to its end."""
ENOUGH_TOKENS_PER_LETTER: Final = 1.0
"""25 letters a second, the fastest reading: with so many tokens the text may be complete."""


class Action(Enum):
    """The next step after a token. RETRY samples the utterance again, with another seed."""

    CONTINUE = "continue"
    STOP = "stop"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision of a guard about one token."""

    action: Action
    keep_tokens: int = 0
    """For STOP: how many of the observed tokens belong to the utterance, without the stop token."""
    reason: str = ""
    """"complete" for a healthy utterance; otherwise "too short", "too long", "loop" or "silence"."""


CONTINUE: Final = Verdict(Action.CONTINUE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one utterance, in speech tokens (25 a second)."""

    max_tokens: int
    min_tokens: int = 1
    enough_tokens: int = 0
    """With fewer tokens of sound, silence is a pause or a failure, but not the end."""
    max_is_ceiling: bool = False
    """True if `max_tokens` is the model's limit, not one of the text: then reaching it is no failure."""
    loop_tokens: int = 48
    """Length of an exact repetition, with a period of up to `max_period`, that is not speech (2 s). Held
    sounds and pauses are repetitions, too, but shorter ones."""
    max_period: int = 8
    silence_tokens: int = 75
    """Silence (3 s) longer than any pause within a segment."""
    tail_tokens: int = 25
    """Silence to keep at the end (1 s), more than a healthy utterance has."""


def limits_for(text: str, *, ceiling: int) -> Limits:
    """Return the limits for speaking `text` with a model that can generate `ceiling` tokens."""
    untagged, tags = TAG.subn("", text)
    digits = sum(c.isdigit() or c in "$€£¥%&+=@#°" for c in untagged)  # symbols are read as words, too
    letters = spoken_length(untagged.strip()) + (LETTERS_PER_DIGIT - 1) * digits
    alphanumeric = spoken_length("".join(filter(str.isalnum, untagged)))
    budget = BASE_TOKENS + math.ceil(MAX_TOKENS_PER_LETTER * letters) + MAX_TOKENS_PER_TAG * tags
    return Limits(
        max_tokens=min(budget, ceiling),
        max_is_ceiling=budget >= ceiling,
        min_tokens=max(1, int(MIN_TOKENS_PER_LETTER * alphanumeric)),
        enough_tokens=int(ENOUGH_TOKENS_PER_LETTER * alphanumeric),
    )


class Guard:
    """Observe the tokens of one attempt at an utterance. Use a new guard for each attempt."""

    def __init__(
        self, limits: Limits, *, stop_id: int, silence: frozenset[int], may_retry: bool = True
    ) -> None:
        """Set `may_retry` to false for the last attempt and for greedy decoding; `silence`: silent tokens."""
        self._limits, self._stop_id, self._silence = limits, stop_id, silence
        self._may_retry = may_retry
        self._tokens: list[int] = []
        self._sounding = self._quiet = self._committed = 0

    def commit(self, tokens: int) -> None:
        """Note that so many tokens were handed on: they cannot be dropped, and a retry is impossible."""
        self._committed = max(self._committed, tokens)
        self._may_retry = self._may_retry and tokens == 0

    def observe(self, token: int) -> Verdict:
        """Add a token and return whether to continue, stop or retry."""
        limits = self._limits
        if token == self._stop_id:
            if self._sounding < limits.min_tokens:
                return self._fail(len(self._tokens), "too short")
            return self._stop(len(self._tokens), "complete")
        self._tokens.append(token)
        self._quiet = self._quiet + 1 if token in self._silence else 0
        self._sounding += not self._quiet
        if self._quiet >= limits.silence_tokens:
            if (verdict := self._after_silence()) is not CONTINUE:
                return verdict
        elif (repeated := self._repeated_tokens()) is not None:
            return self._fail(len(self._tokens) - repeated, "loop")
        if len(self._tokens) >= limits.max_tokens:
            end = self._stop if limits.max_is_ceiling else self._fail
            return end(len(self._tokens), "too long")
        return CONTINUE

    def _repeated_tokens(self) -> int | None:
        """Return how many tokens at the end only repeat earlier ones, if it is a loop. Silence is not one."""
        size, max_period = self._limits.loop_tokens, self._limits.max_period
        recent = self._tokens[-size:]
        if len(recent) < size or self._quiet >= size or recent[-1] not in recent[-1 - max_period : -1]:
            return None
        periods = range(1, max_period + 1)
        return next((size - period for period in periods if recent[period:] == recent[:-period]), None)

    def _after_silence(self) -> Verdict:
        if self._sounding < self._limits.enough_tokens:
            if self._may_retry:
                return Verdict(Action.RETRY, reason="silence")
            # Part of the text is not spoken yet: allow as much silence again before giving up.
            if self._quiet < 2 * self._limits.silence_tokens:
                return CONTINUE
        return self._stop(len(self._tokens) - self._quiet, "silence")

    def _fail(self, keep: int, reason: str) -> Verdict:
        return Verdict(Action.RETRY, reason=reason) if self._may_retry else self._stop(keep, reason)

    def _stop(self, keep: int, reason: str) -> Verdict:
        tail = self._limits.tail_tokens
        quiet = max(0, keep - (len(self._tokens) - self._quiet))  # trailing silence within what is kept
        keep -= max(0, quiet - tail)
        if reason == "silence":
            keep += min(tail, self._quiet)
        return Verdict(Action.STOP, keep_tokens=max(keep, self._committed), reason=reason)
