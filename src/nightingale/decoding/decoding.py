"""Decode state of one utterance: what was sampled so far and what the next draw depends on. numpy only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nightingale.decoding.attention_trace import AttentionTrace
from nightingale.decoding.philox import stream_key
from nightingale.decoding.sampling import Logits, Seen, draw, guide, is_greedy, process_logits
from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH
from nightingale.models.defaults import ModelDefaults
from nightingale.types import Sampling
from nightingale.voices.voice import Voice

MIN_BUDGET_TOKENS = 30
"""Every utterance may have 1.2 s, however short its text."""


def token_budget(text_ids: int, defaults: ModelDefaults) -> int:
    """Return how many speech tokens a text of so many ids may take."""
    if defaults.tokens_per_text_id is None:
        return defaults.max_new_tokens
    expected = MIN_BUDGET_TOKENS + math.ceil(defaults.tokens_per_text_id * text_ids)
    return min(defaults.max_new_tokens, expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The input that T3 reads before its first token."""

    text: str
    text_ids: list[int]
    voice: Voice
    exaggeration: float
    guided: bool
    """True if a second, unconditional row runs beside the first (classifier-free guidance)."""
    trace: AttentionTrace | None = None
    """Gets the attention to the text, if it is asked for."""

    @property
    def rows(self) -> int:
        return 2 if self.guided else 1


class Decoding:
    """One utterance between text ids and speech tokens."""

    def __init__(
        self,
        prompt: Prompt,
        *,
        vocab: int,
        defaults: ModelDefaults,
        sampling: Sampling,
        seed: int,
    ) -> None:
        self.prompt, self.defaults, self.sampling, self.seed = prompt, defaults, sampling, seed
        self.budget = token_budget(len(prompt.text_ids), defaults)
        self.appended = 0
        """Tokens that were appended."""
        self.finished = False
        self.history: list[int] = []
        """Tokens that were sampled here, appended or not yet."""
        self.key = stream_key(seed, "tokens")
        self.greedy = is_greedy(sampling)
        self.seen: Seen = np.zeros(vocab, np.bool_)
        self.seen[START_SPEECH] = True

    def accept(self, logits: Logits) -> int:
        """Sample the next token from T3's logits (rows, vocab) and append it."""
        token = self.sample(logits)
        self.append(token)
        return token

    def sample(self, logits: Logits) -> int:
        """Sample the next token from T3's logits (rows, vocab); stop ids are tokens too."""
        guided = guide(logits, self.sampling.cfg_weight)
        processed = process_logits(guided, self.seen, self.defaults.sampler, self.sampling)
        token = draw(processed, None if self.greedy else self.key, len(self.history))
        if self._first_of_turbo:
            # PARITY: Turbo's penalty counts the start token for the first draw only.
            #         tests/backends/torch/test_decoding.py::test_turbo_forgets_the_start_after_its_first_draw
            self.seen[START_SPEECH] = False
        self.seen[token] = True
        self.history.append(token)
        return token

    def append(self, token: int) -> None:
        """Count a token that was sampled, here or on a device, and detect the end."""
        # PARITY: Turbo does not look for the stop in its first draw.
        #         tests/backends/torch/test_decoding.py::test_turbo_does_not_stop_at_its_first_draw
        stopped = token == STOP_SPEECH and not self._first_of_turbo
        self.appended += 1
        self.finished = stopped or self.appended >= self.budget

    @property
    def _first_of_turbo(self) -> bool:
        return self.defaults.sampler == "turbo" and self.appended == 0
