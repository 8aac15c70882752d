"""A profile's draft, by its name: T3 with something beside it that guesses its next tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor

from nightingale import wren
from nightingale.decoding.decoding import Decoding, prompt_of
from nightingale.backends.torch.drafts import Draft, ExitDraft, LookupDraft, ModelDraft, HiddenStateDraft
from nightingale.engine.load import load_draft, open_guess
from nightingale.engine.model import Model
from nightingale.engine.profiles import Profile
from nightingale.backends.torch.runner import PlainRunner, Verifier
from nightingale.decoding.speculative import IN_TORCH, LONGEST, PACKED, SpeculativeDecoder, weights_of
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import load, read_tensors
from nightingale.models.compact import unpack

GUESS = "guess"
"""The draft that came with a model."""
GUESS_COST = 0.14
"""Of a guess at the next thought, in eight bits and drawn, over a step of wren's."""

FARTHEST = 3
"""Thoughts ahead that are guessed: it is trained for as many, each from the guess before."""


def spare_for(profile: Profile) -> int:
    """Positions past an utterance's own that the runner beside the profile's draft needs."""
    return LONGEST if profile.draft else 0


def open_speculation(
    model: Model, profile: Profile, runner: Verifier, threads: int | None = None
) -> SpeculativeDecoder:
    """T3 beside the profile's draft. One that would be slow at first does not begin before the first block
    has its tokens. threads: T3's share, if it has one."""
    target, plain = model.networks.t3, isinstance(runner, PlainRunner)
    draft: Draft
    if profile.draft == "lookup":
        draft, guess = LookupDraft(), 0.0
    elif profile.draft.startswith("exit:"):
        assert isinstance(runner, PlainRunner)
        draft = ExitDraft(runner, layers=(layers := _exit_layers(target, profile.draft)))
        guess = layers / target.config.backbone.layers
    elif (head := find_guess(model, profile.draft)) is not None:
        guesser = open_guess(target, head, fast=not plain, threads=threads, longest=FARTHEST)
        draft = HiddenStateDraft(runner, target, guesser)
        guess = GUESS_COST
    else:
        drafting = load_draft(model, profile.draft)
        read = partial(_drafts_prompt, drafting, model.name)
        draft = ModelDraft(_drafts_runner(drafting, model, profile), read)
        guess = weights_of(drafting.networks.t3) / weights_of(target)
    longest = FARTHEST if isinstance(draft, HiddenStateDraft) else LONGEST
    # A guess at the next thought has nothing to read first: the first sound is sooner by it.
    waits = profile.streaming and not isinstance(draft, HiddenStateDraft)
    after = profile.first_block_tokens + LOOKAHEAD_TOKENS if waits else 0
    costs = (IN_TORCH if plain else PACKED).with_guess(guess)
    if not plain and "cfg_weight" not in model.defaults.ignored:
        costs = costs.row_by_row(2)
    return SpeculativeDecoder(runner, draft, costs=costs, after=after, longest=longest)


def find_guess(model: Model, name: str) -> DraftHead | None:
    """The layers that guess this model's next thought: "guess", those that came with it, or a file's.

    None: the name is that of another kind of draft.
    """
    path = Path(name)
    if name == GUESS:
        path = Path() if model.voices is None else model.voices.parent / wren.DRAFT_HEAD_FILE
        if not path.is_file():
            raise ConfigError(
                "no such draft",
                got=f"{name!r}, and no {wren.DRAFT_HEAD_FILE} beside the weights of {model.name}",
                allowed="lookup, exit:N, a file, or another model",
                fix="Train one: nightingale train draft.",
            )
    elif path.suffix != ".safetensors" or not path.is_file():
        return None
    tensors = unpack(read_tensors(path))
    if "in_proj.weight" not in tensors:
        return None
    head = load(lambda: DraftHead.shaped_like(tensors), tensors, source=path)
    if head.width != (width := model.networks.t3.config.backbone.width):
        raise ConfigError(
            "this draft was made for another model",
            got=f"{path.name} for thoughts of {head.width} numbers",
            allowed=f"{width}, as those of {model.name}",
            fix="Train one for this model: nightingale train draft.",
        )
    return head


def _drafts_runner(drafting: Model, model: Model, profile: Profile) -> PlainRunner:
    """With a memory of its own, in slots, as long as the utterances of the model it guesses for."""
    t3 = drafting.networks.t3
    return PlainRunner(
        t3,
        slots=profile.slots,
        rows_per_slot=1 if "cfg_weight" in model.defaults.ignored else 2,
        capacity=t3.prompt_length(drafting.defaults.max_text_ids) + model.defaults.max_new_tokens,
        batched=profile.batched,
        spare=LONGEST,
    )


def _exit_layers(t3: T3, name: str) -> int:
    layers, most = name.removeprefix("exit:"), t3.config.backbone.layers - 1
    if not layers.isdecimal() or not 0 < int(layers) <= most:
        raise ConfigError(
            "no such draft", got=repr(name), allowed=f"exit:1 to exit:{most}", fix="Leave after fewer layers."
        )
    return int(layers)


def _drafts_prompt(drafting: Model, name: str, decoding: Decoding) -> Tensor:
    """What the drafting model reads before it guesses for a model of this name."""
    told, defaults = decoding.told, drafting.defaults
    assert told is not None
    sampling = decoding.sampling
    if "cfg_weight" in defaults.ignored:
        sampling = replace(sampling, cfg_weight=0.0)
    return prompt_of(
        drafting.networks.t3,
        told.text_ids if drafting.name == name else drafting.frontend.encode(told.text),
        told.voice,
        defaults=defaults,
        sampling=sampling,
        exaggeration=told.exaggeration,
    )
