"""Text ids to speech ids: T3's loop, one token at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

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
    """Speech ids as they are drawn, control ids included, until the stop id or the limit."""
    weight = t3.speech_head.weight
    device, dtype = weight.device, weight.dtype
    guided = sampling.cfg_weight > 0
    text = torch.tensor([_framed(t3, text_ids, habits.max_new_tokens)], device=device)
    x = t3.prompt(
        text,
        speaker=voice.speaker[None].to(device, dtype),
        prompt_ids=voice.prompt_ids[None, : t3.config.prompt_tokens].to(device),
        exaggeration=torch.tensor([exaggeration], device=device, dtype=dtype),
        guided=guided,
    )
    budget = budget_tokens(len(text_ids), habits)
    memory = t3.new_memory(rows=len(x), capacity=x.shape[1] + budget)
    sampler, greedy = compose_sampler(habits.sampler, sampling), is_greedy(sampling)
    seen = torch.zeros(t3.config.speech_vocab, dtype=torch.bool, device=device)
    seen[START_SPEECH] = True
    for position in range(budget):
        scores = guide(t3.next_scores(x, memory).float(), sampling.cfg_weight)
        token = draw(sampler(scores, seen), greedy=greedy, rng=rng)
        yield token
        if token == STOP_SPEECH and not (habits.sampler == "turbo" and position == 0):
            # PARITY: Turbo does not look for the stop in its first draw.
            #         tests/engine/test_decode.py::test_turbo_does_not_stop_at_its_first_draw
            return
        if habits.sampler == "turbo" and position == 0:
            # PARITY: Turbo's penalty counts the start token for the first draw only.
            #         tests/engine/test_decode.py::test_turbo_forgets_the_start_after_its_first_draw
            seen[START_SPEECH] = False
        seen[token] = True
        x = t3.embed_speech(torch.full((len(x), 1), token, device=device), position + 1)


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
