"""Drafts for speculative decoding: cheap proposals for the tokens that come next.

A draft is never trusted. T3 reads its proposals in one pass and keeps those that it would have sampled itself
(speculative.py), so a bad draft costs time and changes nothing. Drafts sample with the decoding's own random
numbers: where their distribution is close to T3's, their samples are T3's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nightingale.decoding.decoding import Decoding, DraftedTokens, Prompt
from nightingale.decoding.philox import uniform_rows
from nightingale.decoding.runner import DraftVerifier, StepInput, VerifyInput
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.config import STOP_SPEECH
from nightingale.types import Sampling

LONGEST_MATCH: Final = 4
SHORTEST_MATCH: Final = 2
"""One repeated id of 6561 says little about what follows; two in a row say much more."""
CATCH_UP_BATCH: Final = 2
"""Unread tokens that a draft model usually has; a slot with more is caught up alone, without padding."""


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """An utterance whose next tokens are to be proposed, and how many at most."""

    slot: int
    decoding: Decoding
    count: int


class Draft:
    """Base of all drafts. Those that keep nothing per slot inherit `release` and `move`."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Return proposed tokens for each request, as many as asked for or fewer."""
        raise NotImplementedError

    def release(self, slot: int) -> None:
        """Forget the utterance in a slot."""

    def move(self, source: int, target: int) -> None:
        """Follow an utterance to another slot."""


class LookupDraft(Draft):
    """Propose what followed the last tokens when they last occurred in this utterance or its voice prompt."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        return [
            lookup([*r.decoding.prompt.voice.prompt_ids.tolist(), *r.decoding.history], r.count)
            for r in requests
        ]


def lookup(tokens: Sequence[int], count: int) -> list[int]:
    """Return what followed the latest earlier occurrence of the longest possible suffix of `tokens`."""
    for length in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1):
        suffix = list(tokens[-length:])
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start] == suffix[0] and list(tokens[start : start + length]) == suffix:
                return list(tokens[start + length : start + length + count])
    return []


class DraftHeadRunner(Protocol):
    """Run a draft head: predict T3's next hidden state and its logits from the last one."""

    def start(self, hidden: NDArray[np.float32]) -> Any:
        """Return the head's state for captured hidden states (rows, width + TAPS * width)."""

    def step(self, state: Any, token: int, position: int) -> tuple[Any, Logits]:
        """Return the next state and its logits (rows, vocab) after a token at a position."""


@runtime_checkable
class DraftChain(Protocol):
    """A draft head that proposes several tokens in one call."""

    def chain(
        self, hidden: NDArray[np.float32], token: int, uniforms: NDArray[np.float64], sampling: Sampling
    ) -> list[int]:
        """Return one token per row of `uniforms` (count, vocab), after a token and its hidden state."""


class HiddenStateDraft(Draft):
    """Propose tokens by a draft head on T3's last hidden state: it reads no prompt and keeps no cache."""

    def __init__(self, runner: DraftVerifier, head: DraftHeadRunner) -> None:
        self._runner, self._head = runner, head
        runner.capture_hidden_states()

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> list[int]:
        decoding, history = request.decoding, request.decoding.history
        hidden, token = self._runner.hidden_states(request.slot, len(history) - 1), history[-1]
        if isinstance(self._head, DraftChain) and len(hidden) == 1 and not decoding.greedy:
            uniforms = uniform_rows(decoding.key, len(history), request.count, len(decoding.seen))
            return self._head.chain(hidden, token, uniforms, decoding.sampling)
        drafted, state = DraftedTokens(decoding), self._head.start(hidden)
        while len(drafted.tokens) < request.count and token != STOP_SPEECH:
            state, logits = self._head.step(state, token, len(history) + len(drafted.tokens))
            drafted.sample(logits)
            token = drafted.tokens[-1]
        return drafted.tokens


class ModelDraft(Draft):
    """Another T3 of the family, with its own prompt and KV cache.

    It reads a prompt only when it is first asked for that utterance, so it never delays a first token.
    """

    def __init__(self, runner: DraftVerifier, prompt: Callable[[Decoding], Prompt]) -> None:
        """prompt: makes the draft model's prompt for a decoding."""
        self._runner, self._prompt = runner, prompt
        self._sequences: dict[int, tuple[Decoding, list[int], int]] = {}
        """For each slot: the utterance, its tokens in the KV cache, and how many of them are known to be sampled
        ones. The tokens after those are proposals."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        inputs = [self._unread(request) for request in requests]
        few = [one for one in inputs if len(one.tokens) <= CATCH_UP_BATCH]
        logits = {i.slot: x for i, x in zip(few, self._runner.verify(few) if few else [], strict=True)}
        for one in inputs:
            if one.slot not in logits:
                logits[one.slot] = self._runner.verify([one])[0]
        drafted = [DraftedTokens(request.decoding) for request in requests]
        for request, tokens in zip(requests, drafted, strict=True):
            tokens.sample(logits[request.slot][:, -1])
        self._extend(list(zip(requests, drafted, strict=True)))
        for request, tokens in zip(requests, drafted, strict=True):
            history = request.decoding.history
            self._sequences[request.slot] = request.decoding, history + tokens.tokens[:-1], len(history)
        return [tokens.tokens for tokens in drafted]

    def _extend(self, pending: list[tuple[DraftRequest, DraftedTokens]]) -> None:
        """Extend each proposal from its own last token until it is complete."""
        while pending := [
            (request, draft)
            for request, draft in pending
            if len(draft.tokens) < request.count and draft.tokens[-1] != STOP_SPEECH
        ]:
            inputs = [
                StepInput(request.slot, draft.tokens[-1], len(request.decoding.history) + len(draft.tokens))
                for request, draft in pending
            ]
            for (_, draft), logits in zip(pending, self._runner.step(inputs), strict=True):
                draft.sample(logits)

    def _unread(self, request: DraftRequest) -> VerifyInput:
        """Rewind to the longest prefix that was really sampled and return the tokens after it."""
        decoding, history = request.decoding, request.decoding.history
        known, cached, right = self._sequences.get(request.slot, (None, [], 0))
        if known is not decoding:
            self._runner.prefill(request.slot, self._prompt(decoding), max_tokens=decoding.budget)
            cached, right = [], 0
        while right < len(history) - 1 and cached[right : right + 1] == [history[right]]:
            right += 1
        # The last sampled token is always read again: the logits after it are needed.
        right = min(right, len(history) - 1)
        self._runner.rewind(request.slot, len(cached) - right)
        return VerifyInput(request.slot, history[right:], right + 1)

    def release(self, slot: int) -> None:
        self._sequences.pop(slot, None)

    def move(self, source: int, target: int) -> None:
        self._sequences.pop(target, None)
        if source in self._sequences:
            self._runner.move(source, target)
            self._sequences[target] = self._sequences.pop(source)
