"""A profile's draft, by its name: T3 with something beside it that guesses its next tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from nightingale.engine.decode import Decoding, prompt_of
from nightingale.engine.drafts import Draft, ExitDraft, LookupDraft, ModelDraft
from nightingale.engine.load import Model, load_draft
from nightingale.engine.profiles import Profile
from nightingale.engine.runner import PlainRunner
from nightingale.engine.speculate import LONGEST, SpeculativeDraws, costs_of, weights_of
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.t3.model import T3


def open_speculation(model: Model, profile: Profile, pool: dict[str, Any]) -> SpeculativeDraws:
    """T3 beside the profile's draft. No draft begins before the first block has its tokens."""
    pool |= {"spare": LONGEST, "batched": profile.batched}
    runner = PlainRunner(model.speakers.t3, **pool)
    draft: Draft
    if profile.draft == "lookup":
        draft, guess = LookupDraft(), 0.0
    elif profile.draft.startswith("exit:"):
        draft = ExitDraft(runner, layers=(layers := _exit_layers(runner.t3, profile.draft)))
        guess = layers / runner.t3.config.backbone.layers
    else:
        drafting = load_draft(model, profile.draft)
        t3 = drafting.speakers.t3
        pool["capacity"] = t3.prompt_length(drafting.habits.max_text_ids) + model.habits.max_new_tokens
        pool["pool"] = None  # its own, in slots
        draft = ModelDraft(PlainRunner(t3, **pool), partial(_drafts_prompt, drafting, model.name))
        guess = weights_of(t3) / weights_of(runner.t3)
    after = profile.first_block_tokens + LOOKAHEAD_TOKENS if profile.streaming else 0
    return SpeculativeDraws(runner, draft, costs=costs_of(guess), after=after)


def _exit_layers(t3: T3, name: str) -> int:
    layers, most = name.removeprefix("exit:"), t3.config.backbone.layers - 1
    if not layers.isdecimal() or not 0 < int(layers) <= most:
        raise ConfigError(
            "no such draft", got=repr(name), allowed=f"exit:1 to exit:{most}", fix="Leave after fewer layers."
        )
    return int(layers)


def _drafts_prompt(drafting: Model, name: str, decoding: Decoding) -> Tensor:
    """What the drafting model reads before it guesses for a model of this name."""
    told, habits = decoding.told, drafting.habits
    assert told is not None
    sampling = decoding.sampling
    if "cfg_weight" in habits.ignored:
        sampling = replace(sampling, cfg_weight=0.0)
    return prompt_of(
        drafting.speakers.t3,
        told.text_ids if drafting.name == name else drafting.frontend.encode(told.text),
        told.voice,
        habits=habits,
        sampling=sampling,
        exaggeration=told.exaggeration,
    )
