"""The interface of T3 runners: they compute logits over a pool of slots; the host samples from them.

A backend that samples on its device implements `Decoder` (backends/base.py) itself. All others implement
`LogitsRunner` and get sampling from `HostDecoder`, and speculative decoding if they are a `DraftVerifier`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nightingale.decoding.decoding import Prompt
from nightingale.decoding.sampling import Logits

MAX_DRAFT_TOKENS: Final = 8
"""Drafted tokens in one pass, at most."""


class StepInput(NamedTuple):
    """One utterance's input to a step."""

    slot: int
    token: int
    """The token that was sampled last."""
    position: int
    """The position of that token after the start token."""


class VerifyInput(NamedTuple):
    """Several tokens of one utterance: the one that was sampled last, then drafted ones."""

    slot: int
    tokens: Sequence[int]
    position: int
    """The position of the first of them after the start token."""


class LogitsRunner(Protocol):
    """Compute T3's logits. Slots in use have no gaps."""

    def prefill(self, slot: int, prompt: Prompt, *, max_tokens: int) -> Logits:
        """Read a prompt into a slot; return the logits (rows, vocab) of the first token."""

    def step(self, inputs: Sequence[StepInput]) -> list[Logits]:
        """Return the logits (rows, vocab) of each utterance's next token. Either all advance or none does."""

    def move(self, source: int, target: int) -> None:
        """Move an utterance's KV cache to another slot."""

    def release(self, slot: int) -> None:
        """Free a slot whose utterance has ended."""

    def reset(self, slot: int) -> None:
        """Clear a slot after an error: NaN values would reach its next utterance, masked or not."""


class DraftVerifier(LogitsRunner, Protocol):
    """A runner that scores several tokens in one pass and can rewind its KV cache."""

    def verify(self, inputs: Sequence[VerifyInput]) -> list[Logits]:
        """Return the logits (rows, tokens, vocab) after each token; all tokens enter the KV cache."""

    def rewind(self, slot: int, count: int) -> None:
        """Drop the last `count` positions of a slot's KV cache."""

    def capture_hidden_states(self) -> None:
        """Keep the hidden states of each slot's latest pass from now on."""

    def hidden_states(self, slot: int, draw: int) -> NDArray[np.float32]:
        """Return what T3's head read for draw number `draw`, and its residual stream at the layers a draft
        head uses: (rows, width + TAPS * width)."""
