"""The interface of T3 runners: they compute logits over a pool of slots; the host samples from them.

A backend that samples on its device implements `Decoder` (backends/base.py) itself. All others implement
`LogitsRunner` and get sampling from `HostDecoder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from nightingale.decoding.decoding import Prompt
from nightingale.decoding.sampling import Logits


class StepInput(NamedTuple):
    """One utterance's input to a step."""

    slot: int
    token: int
    """The token that was sampled last."""
    position: int
    """The position of that token after the start token."""


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
