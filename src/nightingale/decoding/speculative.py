"""Several tokens a pass, and the same tokens: T3 reads a draft's guesses, and keeps what it would have drawn.

Why it is exact. A draw is decided by the scores and by random numbers that belong to its place in the
utterance (decoding/philox.py). One pass of T3 over the last token and k guesses gives the scores of k + 1
draws. They are drawn in order, each with its own numbers and with the penalties of those before it, as if each had been a
step of its own; the first that is not the guess ends it, for the scores after it followed something else. So
nothing is accepted or rejected by chance: tokens are those of plain decoding, greedy or sampled, as far as a
pass over several tokens gives the scores of as many steps (sums may round differently, as in a batch).

Whether it pays. A pass over k + 1 tokens costs more than one over one, guessing costs something too, and both
depend on the machine: `Costs`. `Pace` weighs them against what was accepted lately, and guesses fewer, or
none. It counts tokens and never reads a clock, so a seed gives the same tokens and the same passes each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakKeyDictionary

from torch import Tensor

from nightingale.backends.torch.drafts import Ask, Draft
from nightingale.backends.torch.runner import Trial, Verifier
from nightingale.decoding.decoder import Drawn, HostDecoder, Speaking
from nightingale.decoding.decoding import Decoding
from nightingale.models.chatterbox.t3.config import STOP_SPEECH
from nightingale.models.chatterbox.t3.model import T3

LONGEST: Final = 8
"""Guesses in one pass, at most."""
HOPED_FOR: Final = 0.6
"""The share of guesses that is accepted, until it is known."""
BEST_CASE: Final = 0.95
"""A share that is never exceeded for long: a draft that would not pay with it is not asked at all."""
REMEMBERED: Final = 0.05
"""What the latest guess counts in the share."""
ASK_AGAIN: Final = 40
"""Tokens after which a draft that did not pay is tried once more: the next sound may be an easier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What work costs here, over a plain step of one utterance. benchmarks/speculative.py measures them."""

    several: float
    """A pass over more than one token, before its tokens are counted."""
    token: float
    """Each token after the first in a pass."""
    guess: float
    """One guess of the draft."""
    in_turn: bool = False
    """Whether those who speak at a time are passed over one after the other where something was guessed."""
    by_twos: bool = False
    """Whether an odd number of tokens costs as much as one more."""

    def with_guess(self, guess: float) -> Costs:
        """guess: of a draft, over a step."""
        return replace(self, guess=guess)

    def row_by_row(self, rows: int) -> Costs:
        """Where a pass over several tokens takes an utterance's rows one after the other."""
        return replace(self, several=rows * self.several, token=rows * self.token)

    def of_pass(self, tokens: int) -> float:
        if tokens == 1:
            return 1.0
        paid = tokens + tokens % 2 if self.by_twos else tokens
        return self.several + self.token * (paid - 1)

    def gain(self, share: float, guesses: int, company: int) -> float:
        """Tokens for the cost of a plain step, if this share of the guesses is right."""
        tokens = sum(share**n for n in range(guesses + 1))
        if self.in_turn and guesses:
            passes = company * self.of_pass(guesses + 1) / self.of_pass(company)
        else:
            passes = self.of_pass(company * (guesses + 1)) / self.of_pass(company)
        return tokens / (passes + guesses * self.guess)


IN_TORCH: Final = Costs(several=2.6, token=0.15, guess=0.0)
"""On a CPU, where a product with a few rows costs torch far more than one with a single row. Measured with
wren on a Neoverse-N1, as the other (docs/speculative.md)."""
PACKED: Final = Costs(several=1.22, token=0.1, guess=0.0, in_turn=True, by_twos=True)
"""By ONNX Runtime, which lays the weights out for a few rows; what is drawn of them is counted too."""


def weights_of(t3: T3) -> int:
    """That one step reads: layers and head."""
    return sum(p.numel() for part in (t3.tfmr, t3.speech_head) for p in part.parameters())


class Pace:
    """How far ahead it pays to guess for one utterance."""

    def __init__(self, costs: Costs, *, longest: int = LONGEST) -> None:
        self._costs, self._longest = costs, longest
        self.share = HOPED_FOR
        self._plain = 0

    def length(self, company: int) -> int:
        """Guesses to ask for now, among so many who speak."""
        best = self._best(self.share, company)
        if best:
            self._plain = 0
            return best
        self._plain += 1
        if self._plain < ASK_AGAIN or not self._best(BEST_CASE, company):
            return 0
        self._plain = 0
        return 1

    def _best(self, share: float, company: int) -> int:
        gains = [self._costs.gain(share, guesses, company) for guesses in range(self._longest + 1)]
        return gains.index(max(gains))

    def learn(self, guesses: int, accepted: int) -> None:
        """Guesses after a wrong one say nothing about the draft."""
        for n in range(min(accepted + 1, guesses)):
            self.share += REMEMBERED * ((n < accepted) - self.share)

    def give_up(self) -> None:
        """The draft cannot follow this utterance."""
        self._longest = 0


class SpeculativeDecoder(HostDecoder):
    def __init__(
        self, runner: Verifier, draft: Draft, *, costs: Costs, after: int, longest: int = LONGEST
    ) -> None:
        """after: so many tokens are drawn one by one, for the first sound must not wait for a draft. The
        runner needs `longest` positions to spare."""
        super().__init__(runner)
        self._verifier, self._draft, self._after = runner, draft, after
        self._costs, self._longest = costs, longest
        self._paces: WeakKeyDictionary[Decoding, Pace] = WeakKeyDictionary()

    @property
    def bytes(self) -> int:
        return self.runner.bytes + self._draft.bytes

    def step(self, speaking: list[Speaking]) -> list[Drawn]:
        guesses = self._guesses(speaking)
        if not any(guesses):
            return super().step(speaking)
        trials = [
            Trial(slot=s.slot, tokens=[s.last_token, *guess], position=s.decoding.drawn)
            for s, guess in zip(speaking, guesses, strict=True)
        ]
        try:
            passed = self._verifier.verify(trials)
        except Exception:
            return super().step(speaking)  # one by one, which shows whose fault it was
        return [
            self._draw_along(one, guess, scores)
            for one, guess, scores in zip(speaking, guesses, passed, strict=True)
        ]

    def _guesses(self, speaking: list[Speaking]) -> list[list[int]]:
        asks = [
            Ask(slot=one.slot, decoding=one.decoding, count=count)
            for one in speaking
            if (count := self._count(one.decoding, len(speaking)))
        ]
        by_slot = dict(zip((ask.slot for ask in asks), self._ask(asks), strict=True)) if asks else {}
        return [by_slot.get(one.slot, []) for one in speaking]

    def _count(self, decoding: Decoding, company: int) -> int:
        if decoding.drawn < self._after:
            return 0
        # One token is drawn even if every guess is wrong.
        return min(self._pace(decoding).length(company), decoding.budget - decoding.drawn - 1)

    def _pace(self, decoding: Decoding) -> Pace:
        if decoding not in self._paces:
            self._paces[decoding] = Pace(self._costs, longest=self._longest)
        return self._paces[decoding]

    def _ask(self, asks: list[Ask]) -> list[list[int]]:
        """A draft that fails is not a fault: whoever it fails alone speaks on without it."""
        try:
            return self._draft.guess(asks)
        except Exception:
            for ask in asks:
                self._draft.leave(ask.slot)
            if len(asks) > 1:
                return [self._ask([ask])[0] for ask in asks]
            self._pace(asks[0].decoding).give_up()
            return [[]]

    def _draw_along(self, one: Speaking, guess: list[int], scores: Tensor) -> Drawn:
        """scores: (rows, 1 + guesses, vocab)."""
        decoding, drawn = one.decoding, list[int]()
        try:
            for at, guessed in enumerate([*guess, None]):
                drawn.append(decoding.draw(scores[:, at]))
                if drawn[-1] != guessed or guessed == STOP_SPEECH:
                    break
        except Exception as error:
            return error
        # Remembered is all that was said but for the last, which the next pass begins with.
        self._verifier.rewind(one.slot, 1 + len(guess) - len(drawn))
        if guess:
            accepted = sum(mine == theirs for mine, theirs in zip(drawn, guess, strict=False))
            decoding.tally.drafted += len(guess)
            decoding.tally.accepted += accepted
            decoding.tally.passes += 1
            self._pace(decoding).learn(len(guess), accepted)
        return list(drawn)

    def leave(self, slot: int) -> None:
        self._draft.leave(slot)

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self._draft.move(source, target)

    def wipe(self, slot: int) -> None:
        super().wipe(slot)
        self._draft.leave(slot)
