"""Text ids to speech ids: T3's loop, one token at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from nightingale.engine.habits import Habits
from nightingale.engine.sampling import compose_sampler, draw, guide, is_greedy
from nightingale.errors import TextTooLong
from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH, Gpt2Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.values import Sampling
from nightingale.voices.voice import Voice

BUDGET_FLOOR_TOKENS = 30
"""1.2 s that every utterance may take, however short its text."""


def budget_tokens(text_ids: int, habits: Habits) -> int:
    """How many speech tokens a text of so many ids may take."""
    if habits.tokens_per_text_id is None:
        return habits.max_new_tokens
    return min(habits.max_new_tokens, BUDGET_FLOOR_TOKENS + math.ceil(habits.tokens_per_text_id * text_ids))


class Decoding:
    """One utterance on its way from text ids to speech ids: what was drawn, and what may come next."""

    def __init__(
        self, t3: T3, *, habits: Habits, sampling: Sampling, text_ids: int, rng: torch.Generator
    ) -> None:
        self.habits, self.sampling, self.rng = habits, sampling, rng
        self.budget = budget_tokens(text_ids, habits)
        self.drawn = 0
        self.finished = False
        self._sampler, self._greedy = compose_sampler(habits.sampler, sampling), is_greedy(sampling)
        self._seen = torch.zeros(
            t3.config.speech_vocab, dtype=torch.bool, device=t3.speech_head.weight.device
        )
        self._seen[START_SPEECH] = True

    def accept(self, scores: Tensor) -> int:
        """The next token, drawn from T3's scores (rows, vocab); control ids are tokens too."""
        token = self.draw(scores)
        self.note(token)
        return token

    @torch.inference_mode()
    def draw(self, scores: Tensor) -> int:
        guided = guide(scores.float(), self.sampling.cfg_weight)
        token = draw(self._sampler(guided, self._seen), greedy=self._greedy, rng=self.rng)
        if self._first_of_turbo:
            # PARITY: Turbo's penalty counts the start token for the first draw only.
            #         tests/engine/test_decode.py::test_turbo_forgets_the_start_after_its_first_draw
            self._seen[START_SPEECH] = False
        self._seen[token] = True
        return token

    def note(self, token: int) -> None:
        """Count a token that was drawn, here or elsewhere, and know the end."""
        # PARITY: Turbo does not look for the stop in its first draw.
        #         tests/engine/test_decode.py::test_turbo_does_not_stop_at_its_first_draw
        stopped = token == STOP_SPEECH and not self._first_of_turbo
        self.drawn += 1
        self.finished = stopped or self.drawn >= self.budget

    @property
    def _first_of_turbo(self) -> bool:
        return self.habits.sampler == "turbo" and self.drawn == 0


@torch.inference_mode()
def prompt_of(
    t3: T3, text_ids: list[int], voice: Voice, *, habits: Habits, sampling: Sampling, exaggeration: float
) -> Tensor:
    """What T3 reads before its first token: one row, or two when guided."""
    weight = t3.speech_head.weight
    device, dtype = weight.device, weight.dtype
    return t3.prompt(
        _send(torch.tensor([_framed(t3, text_ids, habits.max_new_tokens)]), device),
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
    habits: Habits,
    sampling: Sampling,
    exaggeration: float,
    rng: torch.Generator,
) -> Iterator[int]:
    """Speech ids of one utterance by itself: the plain loop that every faster way is measured against."""
    x = prompt_of(t3, text_ids, voice, habits=habits, sampling=sampling, exaggeration=exaggeration)
    decoding = Decoding(t3, habits=habits, sampling=sampling, text_ids=len(text_ids), rng=rng)
    memory = t3.new_memory(rows=len(x), capacity=x.shape[1] + decoding.budget)
    while not decoding.finished:
        token = decoding.accept(t3.next_scores(x, memory))
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
