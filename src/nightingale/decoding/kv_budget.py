"""How many bytes of T3's memory an utterance needs, and how many it fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nightingale.decoding.decoding import budget_tokens
from nightingale.models.defaults import ModelDefaults
from nightingale.engine.requests.segments import TextSegment
from nightingale.engine.session import Request
from nightingale.models.chatterbox.t3.model import T3

Count = Callable[[int, int], int]
"""(positions of the prompt, tokens) -> bytes of one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVBudget:
    t3: T3
    defaults: ModelDefaults
    budget_bytes: int
    """For all who speak at a time; 0: no limit but the slots."""
    needed: Count
    """What must be free before an utterance begins that may have so many tokens."""
    filled: Count
    """What one that has so many tokens can see."""

    def need(self, segment: TextSegment, request: Request) -> int:
        """Before it begins: of the longest that it may become."""
        rows, prompt = self._prompt(segment, request)
        return rows * self.needed(prompt, budget_tokens(len(segment.text_ids), self.defaults))

    def held(self, segment: TextSegment, request: Request, tokens: int) -> int:
        """When it is spoken."""
        rows, prompt = self._prompt(segment, request)
        return rows * self.filled(prompt, tokens)

    def _prompt(self, segment: TextSegment, request: Request) -> tuple[int, int]:
        """Its rows, and their positions."""
        if not segment.text_ids:
            return 0, 0  # a pause
        positions = self.t3.prompt_length(len(segment.text_ids))
        if not self.t3.config.perceiver:  # what it is shown of the voice stands bare, however short it is
            most = self.t3.config.prompt_tokens
            positions += min(len(request.voice.prompt_ids), most) - most
        return 2 if request.sampling.cfg_weight > 0 else 1, positions
