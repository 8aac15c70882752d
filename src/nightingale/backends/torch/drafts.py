"""Guesses at the tokens to come: whatever is cheaper than T3 and sometimes says the same.

A draft is never believed. Its guesses are read by T3 in one pass, and only those stay that T3 would have
drawn itself (speculate.py), so a bad draft costs time and changes nothing. A draft that draws does so as the
utterance will, by the same random numbers: where its likelihoods are nearly T3's, its draws are T3's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

import torch
from torch import Tensor

from nightingale.decoding.decoding import Decoding, Guess
from nightingale.decoding.random import Chances
from nightingale.backends.torch.runner import PlainRunner, Runner, Trial, Turn, Verifier
from nightingale.models.chatterbox.t3.config import STOP_SPEECH
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.types import Sampling

LONGEST_MATCH: Final = 4
SHORTEST_MATCH: Final = 2
"""Of 6561 ids: one that was said before says little about what follows, two in a row much more."""
CATCH_UP_TOGETHER: Final = 2
"""Tokens a draft has usually not read yet. Who has more is read to alone, so that nobody is padded to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Whose next tokens shall be guessed, and how many at most."""

    slot: int
    decoding: Decoding
    count: int


class Draft(Protocol):
    @property
    def bytes(self) -> int:
        """Of memory of its own, however many are speaking."""

    def guess(self, asks: list[Ask]) -> list[list[int]]:
        """For each of them what may come next, as many as asked for or fewer."""

    def leave(self, slot: int) -> None:
        """Whoever was there is done, or was not understood."""

    def move(self, source: int, target: int) -> None:
        """An utterance is in another slot now."""


class LookupDraft:
    """What followed when the same tokens were last said, by this utterance or by its voice's prompt."""

    @property
    def bytes(self) -> int:
        return 0

    def guess(self, asks: list[Ask]) -> list[list[int]]:
        return [self._continue(ask) for ask in asks]

    def _continue(self, ask: Ask) -> list[int]:
        told = ask.decoding.told
        before = [] if told is None else told.voice.prompt_ids.tolist()
        return continued([*before, *ask.decoding.history], ask.count)

    def leave(self, slot: int) -> None:
        """Nothing is kept."""

    def move(self, source: int, target: int) -> None:
        """Nothing is kept."""


def continued(said: Sequence[int], count: int) -> list[int]:
    """What followed the latest earlier place where the longest of the last few tokens were said."""
    for length in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1):
        end = list(said[-length:])
        for start in range(len(said) - length - 1, -1, -1):
            if said[start] == end[0] and list(said[start : start + length]) == end:
                return list(said[start + length : start + length + count])
    return []


class ExitDraft:
    """T3 itself, left after its first layers. Their memory is the utterance's own, so it costs none."""

    def __init__(self, runner: PlainRunner, *, layers: int) -> None:
        self._runner, self._t3 = runner, runner.t3.first_layers(layers)

    @property
    def bytes(self) -> int:
        return 0

    def guess(self, asks: list[Ask]) -> list[list[int]]:
        short = self._runner.shallow(self._t3)
        begun = {ask.slot: short.memories[ask.slot][0].position for ask in asks}
        try:
            turns = [
                Turn(slot=a.slot, token=a.decoding.history[-1], position=len(a.decoding.history))
                for a in asks
            ]
            guesses = [Guess(ask.decoding) for ask in asks]
            for guess, scores in zip(guesses, short.step(turns), strict=True):
                guess.draw(scores)
            go_on(short, asks, guesses)
        finally:
            for slot, position in begun.items():
                for memory in short.memories[slot]:
                    memory.rewind(position)
        return [guess.tokens for guess in guesses]

    def leave(self, slot: int) -> None:
        """Nothing is kept."""

    def move(self, source: int, target: int) -> None:
        """Nothing is kept."""


class Guesser(Protocol):
    """What guesses the next thought, and its scores."""

    def begin(self, thoughts: Tensor) -> Tensor:
        """(rows, width) to guess from, of what a runner remembers of T3's thinking."""

    def __call__(self, thought: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, width) each -> (rows, width), (rows, vocab). said: embedding of what was drawn of it."""


class TorchDraftHead:
    """By torch, in the precision of T3's weights."""

    def __init__(self, t3: T3, head: DraftHead) -> None:
        self._t3, self._head = t3, head.to(t3.speech_head.weight)

    def begin(self, thoughts: Tensor) -> Tensor:
        return self._head.start(thoughts)

    def __call__(self, thought: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        following = self._head(thought, said)
        return following, self._t3.speech_head(following)


@runtime_checkable
class Chain(Protocol):
    """What draws several guesses in one call, where that can be done."""

    def chain(self, thoughts: Tensor, token: int, chances: list[Chances], sampling: Sampling) -> list[int]:
        """A token for each draw's chances (vocab,), after one that was drawn of T3's thoughts (1, …)."""


class HiddenStateDraft:
    """A guess at T3's next thought, from its last one: nothing is read, and nothing remembered."""

    def __init__(self, runner: Verifier, t3: T3, guesser: Guesser) -> None:
        self._runner, self._t3, self._guesser = runner, t3, guesser
        runner.listen()
        # Elsewhere the embedding of a token depends on where it stands.
        self._chain = guesser if isinstance(guesser, Chain) and t3.config.learned_positions is None else None

    @property
    def bytes(self) -> int:
        return 0

    def guess(self, asks: list[Ask]) -> list[list[int]]:
        return [self._guess(ask) for ask in asks]

    @torch.inference_mode()
    def _guess(self, ask: Ask) -> list[int]:
        history = ask.decoding.history
        thoughts, said = self._runner.thought(ask.slot, len(history) - 1), history[-1]
        if self._chain is not None and len(thoughts) == 1 and not ask.decoding.greedy:
            chances = [ask.decoding.chances(len(history) + ahead) for ahead in range(ask.count)]
            return self._chain.chain(thoughts, said, chances, ask.decoding.sampling)
        guess, thought = Guess(ask.decoding), self._guesser.begin(thoughts)
        while len(guess.tokens) < ask.count and said != STOP_SPEECH:
            ids = torch.full((len(thought), 1), said, device=thought.device)
            embedded = self._t3.embed_speech(ids, len(history) + len(guess.tokens))[:, 0]
            thought, scores = self._guesser(thought, embedded)
            guess.draw(scores)
            said = guess.tokens[-1]
        return guess.tokens

    def leave(self, slot: int) -> None:
        """Nothing is kept."""

    def move(self, source: int, target: int) -> None:
        """Nothing is kept."""


@dataclass(slots=True)
class _Reading:
    """How far a draft has read an utterance."""

    decoding: Decoding
    read: list[int] = field(default_factory=list)
    """The tokens in its memory: what was said, then its own guesses."""
    said: int = 0
    """So many of them were said; the rest is not known yet."""


class ModelDraft:
    """Another T3 of the family, with its own prompt and memory: one made for its target, or any other.

    It reads nobody's prompt before it is first asked, so it never delays a first token.
    """

    def __init__(self, runner: Verifier, prompt: Callable[[Decoding], Tensor]) -> None:
        """prompt: what it reads of an utterance first, (rows, time, width)."""
        self._runner, self._prompt = runner, prompt
        self._readings: dict[int, _Reading] = {}

    @property
    def bytes(self) -> int:
        return self._runner.bytes

    def guess(self, asks: list[Ask]) -> list[list[int]]:
        trials = [self._unread(ask) for ask in asks]
        few = [trial for trial in trials if len(trial.tokens) <= CATCH_UP_TOGETHER]
        scores = {t.slot: s for t, s in zip(few, self._runner.verify(few) if few else [], strict=True)}
        for trial in trials:
            if trial.slot not in scores:
                scores[trial.slot] = self._runner.verify([trial])[0]
        guesses = [Guess(ask.decoding) for ask in asks]
        for ask, guess in zip(asks, guesses, strict=True):
            guess.draw(scores[ask.slot][:, -1])
            reading = self._readings[ask.slot]
            reading.read = list(ask.decoding.history)
            reading.said = len(reading.read)
        for ask, fed in zip(asks, go_on(self._runner, asks, guesses), strict=True):
            self._readings[ask.slot].read += fed
        return [guess.tokens for guess in guesses]

    def _unread(self, ask: Ask) -> Trial:
        """What was said and not read; what was read and not said is forgotten."""
        said = ask.decoding.history
        reading = self._readings.get(ask.slot)
        if reading is None or reading.decoding is not ask.decoding:
            self._runner.begin(ask.slot, self._prompt(ask.decoding))
            reading = self._readings[ask.slot] = _Reading(ask.decoding)
        right = reading.said
        # The last token said is always read again: the scores after it are what is asked for.
        while right < min(len(reading.read), len(said) - 1) and reading.read[right] == said[right]:
            right += 1
        right = min(right, len(said) - 1)
        self._runner.rewind(ask.slot, len(reading.read) - right)
        return Trial(slot=ask.slot, tokens=said[right:], position=right + 1)

    def leave(self, slot: int) -> None:
        self._readings.pop(slot, None)

    def move(self, source: int, target: int) -> None:
        self._readings.pop(target, None)
        if source in self._readings:
            self._runner.move(source, target)
            self._readings[target] = self._readings.pop(source)


def go_on(runner: Runner, asks: list[Ask], guesses: list[Guess]) -> list[list[int]]:
    """Guess on, each from its own guesses, until each has as many as asked for; what each was fed."""
    fed: list[list[int]] = [[] for _ in asks]
    while True:
        open_ = [
            i
            for i, (ask, guess) in enumerate(zip(asks, guesses, strict=True))
            if len(guess.tokens) < ask.count and guess.tokens[-1] != STOP_SPEECH
        ]
        if not open_:
            return fed
        turns = [
            Turn(
                slot=asks[i].slot,
                token=guesses[i].tokens[-1],
                position=len(asks[i].decoding.history) + len(guesses[i].tokens),
            )
            for i in open_
        ]
        for i, turn, scores in zip(open_, turns, runner.step(turns), strict=True):
            fed[i].append(turn.token)
            guesses[i].draw(scores)
