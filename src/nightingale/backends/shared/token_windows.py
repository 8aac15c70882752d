"""Decide which tokens of an utterance the flow renders next: integers only, for every backend that streams it.

Tokens are counted from the first one of the voice's prompt. A block needs the three tokens after it. A block-causal
flow continues where the block before ended; a bidirectional one renders a few tokens before the block again.
docs/streaming.md has the reasons.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.voices.voice import Voice

CONTEXT_TOKENS = 8
"""Tokens that a bidirectional flow renders again before each block, as its left context."""
FRAMES = CLOCKS.frames_per_token


class TokenWindow(NamedTuple):
    """Tokens for one call of the flow."""

    ids: list[int]
    """The tokens to render, then those that are only looked ahead to."""
    start: int
    tokens: int
    """The number of `ids` that are rendered."""
    rendered: int = 0
    """The number of those that were returned before."""
    advance: Fraction = Fraction(1)
    """The part of the block after which the next one begins."""

    @property
    def lookahead(self) -> int:
        return len(self.ids) - self.tokens

    @property
    def frames(self) -> slice:
        """Return the frames that are rendered."""
        return slice(FRAMES * self.start, FRAMES * (self.start + self.tokens))

    @property
    def fresh(self) -> slice:
        """Return those of the rendered frames that are new."""
        return slice(FRAMES * self.rendered, None)


def prompt_block(voice: Voice) -> TokenWindow | None:
    """Return the block of a voice's prompt alone; None if the prompt is too short."""
    tokens = len(voice.flow_prompt_ids) - LOOKAHEAD_TOKENS
    return TokenWindow(voice.flow_prompt_ids.tolist(), 0, tokens) if tokens > 0 else None


class TokenWindows:
    """The tokens of one utterance as they arrive."""

    def __init__(self, voice: Voice, *, prompt_tokens: int, block_causal: bool) -> None:
        """prompt_tokens: those of the voice's prompt that were rendered already."""
        self._first, self._block_causal = prompt_tokens, block_causal
        # `_ids` holds tokens from `_start` on, where the next block begins; those before `_done` have been
        # returned, or were the prompt's.
        self._start, self._done = prompt_tokens, len(voice.flow_prompt_ids)
        self._ids: list[int] = voice.flow_prompt_ids[prompt_tokens:].tolist()

    def push(self, ids: list[int], *, final: bool, wait: bool = False) -> TokenWindow | None:
        """Append tokens; return the block of all whose lookahead is known, or None if there is none.

        wait: leave the tokens for a later block.
        """
        self._ids += ids
        start, ready = self._start, self._start + len(self._ids) - (0 if final else LOOKAHEAD_TOKENS)
        if wait or ready <= self._done:
            return None
        following = ready if self._block_causal else max(self._first, ready - CONTEXT_TOKENS)
        tokens = ready - start
        block = TokenWindow(
            list(self._ids), start, tokens, self._done - start, Fraction(following - start, tokens)
        )
        self._start, self._done = following, ready
        del self._ids[: following - start]
        return block
