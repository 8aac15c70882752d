"""KV cache accounting: the bytes that an utterance uses."""

from __future__ import annotations

from dataclasses import dataclass

from nightingale.decoding.decoding import Decoding
from nightingale.models.chatterbox.t3.config import T3Config


@dataclass(frozen=True, slots=True)
class KVCacheSize:
    """Count KV cache bytes for one model and the precision of its cache."""

    config: T3Config
    itemsize: int

    def used_bytes(self, decoding: Decoding) -> int:
        """Return what an utterance uses with the tokens it has."""
        prompt, backbone = decoding.prompt, self.config.backbone
        positions = self.config.prompt_length(len(prompt.text_ids)) + decoding.appended
        if not self.config.perceiver:  # the voice's prompt tokens are in the sequence as they are
            limit = self.config.prompt_tokens
            positions += min(len(prompt.voice.prompt_ids), limit) - limit
        return prompt.rows * positions * 2 * backbone.layers * backbone.width * self.itemsize
