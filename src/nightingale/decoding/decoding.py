"""Decode state of one utterance: what was sampled so far and what the next draw depends on. numpy only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nightingale.decoding.attention_trace import AttentionTrace
from nightingale.decoding.philox import stream_key
from nightingale.decoding.sampling import MASKED, Logits, Seen, draw, guide, is_greedy, process_logits
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


@dataclass(slots=True)
class DraftStats:
    """Counts of one request's speculative decoding."""

    drafted: int = 0
    accepted: int = 0
    passes: int = 0
    """Passes of T3 in which something was drafted; each yields one token besides those accepted."""


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
        stats: DraftStats | None = None,
    ) -> None:
        self.prompt, self.defaults, self.sampling, self.seed = prompt, defaults, sampling, seed
        self.stats = stats or DraftStats()
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
        token = self.choose(logits, self.seen, len(self.history))
        if self._first_of_turbo:
            # PARITY: Turbo's penalty counts the start token for the first draw only.
            #         tests/backends/torch/test_decoding.py::test_turbo_forgets_the_start_after_its_first_draw
            self.seen[START_SPEECH] = False
        self.seen[token] = True
        self.history.append(token)
        return token

    def choose(self, logits: Logits, seen: Seen, number: int) -> int:
        """Return the token that draw `number` gives for logits (rows, vocab). It changes no state.

        A draft model of the family may have another vocabulary: ids that only one of the two has are masked.
        """
        guided = guide(logits, self.sampling.cfg_weight)
        if len(guided) != len(seen):
            padding = max(0, len(seen) - len(guided))
            guided = np.pad(guided[: len(seen)], (0, padding), constant_values=MASKED)
        logits = process_logits(guided, seen, self.defaults.sampler, self.sampling)
        return draw(logits, None if self.greedy else self.key, number)

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


class DraftedTokens:
    """Tokens that a draft proposes for a decoding, sampled with the decoding's own random numbers."""

    def __init__(self, decoding: Decoding) -> None:
        self.tokens: list[int] = []
        self._decoding, self._seen = decoding, decoding.seen.copy()

    def sample(self, logits: Logits) -> None:
        """Propose one more token from a draft's logits (rows, vocab)."""
        number = len(self._decoding.history) + len(self.tokens)
        token = self._decoding.choose(logits, self._seen, number)
        self.tokens.append(token)
        self._seen[token] = True
