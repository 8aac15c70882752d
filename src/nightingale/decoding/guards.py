"""An utterance always ends, and ends clean: speech ids watched as they are drawn.

What goes wrong with these models, as their users report it: the stop never comes and silence runs to the
limit; a sound repeats for ever; a short text babbles on; the stop comes before anything was said. None of it
can be seen in one token, all of it in the run of tokens against the length of the text.

The limits are wide on purpose. Reading takes about 1.7 tokens per letter (15 letters a second, 25 tokens a
second), so a healthy utterance is nowhere near any of them and comes out exactly as without a guard.

Integers only: no tensor, no clock, no random draw.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from nightingale.text.stops import TAG, spoken_length

ATTEMPTS: Final = 3

FLOOR_TOKENS: Final = 100
"""4 s that any text may take: a breath before, a slow word, the quiet after."""
MOST_PER_LETTER: Final = 5.0
"""Three times slower than reading."""
DIGIT_LETTERS: Final = 4
"""987,654,321 takes five seconds: a digit may take as long as this many letters (more than twice as many as
it does)."""
MOST_PER_TAG: Final = 75
"""A laugh of 3 s."""
LEAST_PER_LETTER: Final = 0.3
"""83 letters a second: nobody reads so fast, so the end of the text was not reached."""
ENOUGH_PER_LETTER: Final = 1.0
"""25 letters a second, the fastest reading: with so many tokens the text may have been said."""


class Action(Enum):
    GO_ON = "go on"
    STOP = "stop"
    RETRY = "retry"
    """Draw the utterance again, with `retry_seed`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    action: Action
    keep_tokens: int = 0
    """When it stops: how many of the tokens observed belong to the utterance, the stop not counted."""
    reason: str = ""
    """"spoken" when all is well; else too short, too long, loop or silence."""


GO_ON: Final = Verdict(Action.GO_ON)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an utterance may be. Everything in speech tokens, 25 a second."""

    most: int
    least: int = 1
    enough: int = 0
    """With fewer sounding tokens than this, a silence is a pause or a failure, and not the end."""
    most_is_ceiling: bool = False
    """`most` is all the model can do, and not what the text needs: to be there is no reason to try again."""
    loop: int = 48
    """2 s that repeat exactly, with a period of at most `longest_period`. Sounds are held, and pauses made,
    of equal tokens; two seconds of them are no speech."""
    longest_period: int = 8
    silence: int = 75
    """3 s, longer than any pause inside a text of one breath."""
    tail: int = 25
    """Quiet left at the end: 1 s, more than a healthy ending has."""


def limits_for(text: str, *, ceiling: int) -> Limits:
    """The limits of an utterance of this text by a model that can speak `ceiling` tokens."""
    tags = TAG.findall(text)
    bare = TAG.sub("", text)
    digits = sum(map(str.isdigit, bare)) + len(re.findall(r"[$€£¥%&+=@#°]", bare))  # symbols are words, too
    letters = spoken_length(bare.strip()) + (DIGIT_LETTERS - 1) * digits
    said = spoken_length("".join(filter(str.isalnum, bare)))
    budget = FLOOR_TOKENS + math.ceil(MOST_PER_LETTER * letters) + MOST_PER_TAG * len(tags)
    return Limits(
        most=min(budget, ceiling),
        most_is_ceiling=budget >= ceiling,
        least=max(1, int(LEAST_PER_LETTER * said)),
        enough=int(ENOUGH_PER_LETTER * said),
    )


class Guard:
    """Watches one utterance, one attempt at it. Make a new one for each."""

    def __init__(
        self,
        limits: Limits,
        *,
        stop_id: int,
        silence: frozenset[int],
        may_retry: bool = True,
    ) -> None:
        """silence: ids of which a run is silence. may_retry: false for the last attempt, and where a new draw
        gives the same (greedy decoding)."""
        self._limits, self._stop_id, self._silence = limits, stop_id, silence
        self._may_retry = may_retry
        self._recent: list[int] = []
        self._repeats = [0] * (limits.longest_period + 1)  # by period: how many tokens equal the one before
        self._count = self._sounding = self._quiet = self._heard = 0

    def commit(self, tokens: int) -> None:
        """So many tokens were handed on to be heard: they are not taken back, and nothing is drawn again."""
        self._heard = max(self._heard, tokens)
        self._may_retry = self._may_retry and tokens == 0

    def observe(self, token: int) -> Verdict:
        """What to do after this token."""
        if token == self._stop_id:
            if self._sounding < self._limits.least and self._may_retry:
                return Verdict(Action.RETRY, reason="too short")
            return self._stop(self._count, "too short" if self._sounding < self._limits.least else "spoken")
        self._remember(token)
        if self._quiet >= self._limits.silence:
            verdict = self._after_silence()
            if verdict is not GO_ON:
                return verdict
        elif (loop := self._loop()) is not None:
            return self._fail(self._count - loop, "loop")
        if self._count >= self._limits.most:
            # A stop may have been missed after all was said: then only the silence behind it is too much.
            if self._limits.most_is_ceiling:
                return self._stop(self._count, "too long")
            return self._fail(self._count, "too long")
        return GO_ON

    def _remember(self, token: int) -> None:
        for period in range(1, self._limits.longest_period + 1):
            same = len(self._recent) >= period and self._recent[-period] == token
            self._repeats[period] = self._repeats[period] + 1 if same else 0
        self._recent = [*self._recent[1 - self._limits.longest_period :], token]
        self._count += 1
        if token in self._silence:
            self._quiet += 1
        else:
            self._quiet = 0
            self._sounding += 1

    def _loop(self) -> int | None:
        """How many tokens at the end only say again what was said. Silence is judged by itself."""
        if self._quiet >= self._limits.loop:
            return None
        for period, repeats in enumerate(self._repeats):
            if period and repeats + period >= self._limits.loop:
                return repeats
        return None

    def _after_silence(self) -> Verdict:
        start = self._count - self._quiet
        if self._sounding >= self._limits.enough:
            return self._stop(start, "silence")
        if self._may_retry:
            return Verdict(Action.RETRY, reason="silence")
        # Part of it was heard and part is still to be said: it gets as much time again to go on.
        return self._stop(start, "silence") if self._quiet >= 2 * self._limits.silence else GO_ON

    def _fail(self, keep: int, reason: str) -> Verdict:
        return Verdict(Action.RETRY, reason=reason) if self._may_retry else self._stop(keep, reason)

    def _stop(self, keep: int, reason: str) -> Verdict:
        quiet = max(0, keep - (self._count - self._quiet))  # trailing silence within what is kept
        keep -= max(0, quiet - self._limits.tail)
        if reason == "silence":
            keep += min(self._limits.tail, self._quiet)
        return Verdict(Action.STOP, keep_tokens=max(keep, self._heard), reason=reason)


def retry_seed(seed: int, attempt: int) -> int:
    """The seed of the n-th attempt, counted from 0. The first draws as if there were no guard."""
    if attempt == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/attempt/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "little")
