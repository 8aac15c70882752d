"""KV cache accounting: bytes that an utterance needs before it starts and uses when it has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nightingale.decoding.decoding import Decoding, token_budget
from nightingale.models.chatterbox.t3.config import T3Config
from nightingale.models.defaults import ModelDefaults
from nightingale.voices.voice import Voice

RowBytes = Callable[[int, int], int]
"""(positions of the prompt, tokens) -> bytes of one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVBudget:
    """Count KV cache bytes for one model and one cache layout."""

    config: T3Config
    defaults: ModelDefaults
    reserved: RowBytes
    """Bytes that must be free before an utterance of up to so many tokens may start."""
    used: RowBytes
    """Bytes that an utterance of so many tokens occupies."""

    @classmethod
    def dense(cls, config: T3Config, defaults: ModelDefaults, *, itemsize: int) -> KVBudget:
        """Count for a dense cache in which every slot holds the longest utterance."""
        position = 2 * config.backbone.layers * config.backbone.width * itemsize
        slot = (config.prompt_length(defaults.max_text_ids) + defaults.max_new_tokens) * position
        return cls(
            config=config,
            defaults=defaults,
            reserved=lambda prompt, tokens: slot,  # noqa: ARG005, all slots have one size
            used=lambda prompt, tokens: (prompt + tokens) * position,
        )

    def reserved_bytes(self, text_ids: int, voice: Voice, *, rows: int) -> int:
        """Return what a text segment may need at most."""
        if not text_ids:
            return 0  # a pause
        prompt = self._prompt_positions(text_ids, voice)
        return rows * self.reserved(prompt, token_budget(text_ids, self.defaults))

    def used_bytes(self, decoding: Decoding) -> int:
        """Return what an utterance uses with the tokens it has."""
        prompt = decoding.prompt
        positions = self._prompt_positions(len(prompt.text_ids), prompt.voice)
        return prompt.rows * self.used(positions, decoding.appended)

    def _prompt_positions(self, text_ids: int, voice: Voice) -> int:
        positions = self.config.prompt_length(text_ids)
        if not self.config.perceiver:  # the voice's prompt tokens are in the sequence as they are
            limit = self.config.prompt_tokens
            positions += min(len(voice.prompt_ids), limit) - limit
        return positions
