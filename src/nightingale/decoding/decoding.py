"""Text ids to speech ids: T3's loop, one token at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from nightingale.decoding.philox import stream_key
from nightingale.decoding.sampling import NEVER, Logits, Seen, compose_sampler, draw, guide, is_greedy
from nightingale.errors import TextTooLong
from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH, Gpt2Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import ModelDefaults
from nightingale.types import Sampling
from nightingale.voices.voice import Voice

BUDGET_FLOOR_TOKENS = 30
"""1.2 s that every utterance may take, however short its text."""


def budget_tokens(text_ids: int, defaults: ModelDefaults) -> int:
    """How many speech tokens a text of so many ids may take."""
    if defaults.tokens_per_text_id is None:
        return defaults.max_new_tokens
    return min(defaults.max_new_tokens, BUDGET_FLOOR_TOKENS + math.ceil(defaults.tokens_per_text_id * text_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptText:
    """What an utterance says, and who says it: for a draft that reads it in its own way."""

    text: str
    text_ids: list[int]
    voice: Voice
    exaggeration: float


@dataclass(slots=True)
class DraftStats:
    """What guessing ahead was worth: counts that belong to a request."""

    drafted: int = 0
    accepted: int = 0
    passes: int = 0
    """Of T3, in which something was drafted. Each gives a token besides those accepted."""


@dataclass(slots=True)
class Guess:
    """What an utterance would draw next, if what it is shown were its scores. It does not notice."""

    decoding: Decoding
    tokens: list[int] = field(default_factory=list)
    _seen: Seen = field(init=False)

    def __post_init__(self) -> None:
        self._seen = self.decoding.seen.copy()

    @torch.inference_mode()
    def draw(self, scores: Tensor) -> None:
        """scores: (rows, vocab) of any member of the family; ids that only one knows are not drawn."""
        of = self.decoding
        guided = of.guided(scores)
        if len(guided) != len(self._seen):
            known = np.full(len(self._seen), NEVER)
            known[: len(guided)] = guided[: len(known)]
            guided = known
        token = of.choose(guided, self._seen, len(of.history) + len(self.tokens))
        self.tokens.append(token)
        self._seen[token] = True


class Decoding:
    """One utterance on its way from text ids to speech ids: what was drawn, and what may come next."""

    def __init__(
        self,
        t3: T3,
        *,
        defaults: ModelDefaults,
        sampling: Sampling,
        text_ids: int,
        seed: int,
        told: PromptText | None = None,
        tally: DraftStats | None = None,
    ) -> None:
        self.defaults, self.sampling, self.seed = defaults, sampling, seed
        self.key = stream_key(seed, "tokens")
        self.told, self.tally = told, tally or DraftStats()
        self.budget = budget_tokens(text_ids, defaults)
        self.drawn = 0
        self.finished = False
        self.history: list[int] = []
        """What was drawn here, noted or not yet."""
        self._sampler, self.greedy = compose_sampler(defaults.sampler, sampling), is_greedy(sampling)
        self.seen = np.zeros(t3.config.speech_vocab, np.bool_)
        self.seen[START_SPEECH] = True

    def accept(self, scores: Tensor) -> int:
        """The next token, drawn from T3's scores (rows, vocab); control ids are tokens too."""
        token = self.draw(scores)
        self.note(token)
        return token

    @torch.inference_mode()
    def draw(self, scores: Tensor) -> int:
        token = self.choose(self.guided(scores), self.seen, len(self.history))
        if self._first_of_turbo:
            # PARITY: Turbo's penalty counts the start token for the first draw only.
            #         tests/engine/test_decode.py::test_turbo_forgets_the_start_after_its_first_draw
            self.seen[START_SPEECH] = False
        self.seen[token] = True
        self.history.append(token)
        return token

    def guided(self, scores: Tensor) -> Logits:
        """(rows, vocab) -> (vocab,)."""
        return guide(scores.float(), self.sampling.cfg_weight).cpu().numpy()

    def choose(self, guided: Logits, seen: Seen, draw_number: int) -> int:
        """The id that one draw gives for these scores (vocab,): the same whenever it is asked."""
        return draw(self._sampler(guided, seen), None if self.greedy else self.key, draw_number)

    def note(self, token: int) -> None:
        """Count a token that was drawn, here or elsewhere, and know the end."""
        # PARITY: Turbo does not look for the stop in its first draw.
        #         tests/engine/test_decode.py::test_turbo_does_not_stop_at_its_first_draw
        stopped = token == STOP_SPEECH and not self._first_of_turbo
        self.drawn += 1
        self.finished = stopped or self.drawn >= self.budget

    @property
    def _first_of_turbo(self) -> bool:
        return self.defaults.sampler == "turbo" and self.drawn == 0


@torch.inference_mode()
def prompt_of(
    t3: T3, text_ids: list[int], voice: Voice, *, defaults: ModelDefaults, sampling: Sampling, exaggeration: float
) -> Tensor:
    """What T3 reads before its first token: one row, or two when guided."""
    weight = t3.speech_head.weight
    device, dtype = weight.device, weight.dtype
    return t3.prompt(
        _send(torch.tensor([_framed(t3, text_ids, defaults.max_new_tokens)]), device),
        speaker=_send(voice.speaker[None].to(dtype), device),
        prompt_ids=_send(voice.prompt_ids[None, : t3.config.prompt_tokens], device),
        exaggeration=torch.full((1,), exaggeration, device=device, dtype=dtype),
        guided=sampling.cfg_weight > 0,
    )


@torch.inference_mode()
def speak(
    t3: T3,
    text_ids: list[int],
    voice: Voice,
    *,
    defaults: ModelDefaults,
    sampling: Sampling,
    exaggeration: float,
    seed: int,
) -> Iterator[int]:
    """Speech ids of one utterance by itself: the plain loop that every faster way is measured against."""
    x = prompt_of(t3, text_ids, voice, defaults=defaults, sampling=sampling, exaggeration=exaggeration)
    decoding = Decoding(t3, defaults=defaults, sampling=sampling, text_ids=len(text_ids), seed=seed)
    memory = t3.new_kv_cache(rows=len(x), capacity=x.shape[1] + decoding.budget)
    while not decoding.finished:
        token = decoding.accept(t3.next_logits(x, memory))
        yield token
        x = t3.embed_speech(torch.full((len(x), 1), token, device=x.device), decoding.drawn)


def _send(values: Tensor, device: torch.device) -> Tensor:
    """A GPU that is busy with other people's tokens is not waited for."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def _framed(t3: T3, text_ids: list[int], max_new_tokens: int) -> list[int]:
    framed, config = t3.frame_text(text_ids), t3.config
    limit = None
    if config.learned_positions is not None:
        limit = config.learned_positions[0]
    elif isinstance(config.backbone, Gpt2Config):
        # One table for all: the speaker, the prompt, the text, the start and what will be spoken.
        limit = config.backbone.positions - (1 + config.prompt_tokens + config.starts + max_new_tokens)
    if limit is not None and len(framed) > limit:
        raise TextTooLong(
            "the text is too long for this model",
            got=f"{len(framed)} text ids",
            allowed=f"at most {limit}",
            fix="Split the text into sentences and speak them one by one.",
        )
    return framed
