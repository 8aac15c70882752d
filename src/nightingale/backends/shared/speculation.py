"""Open the draft that a profile names, for any runner that can verify drafted tokens. It needs no PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError, safe_open

from nightingale import wren
from nightingale.backends.base import ModelSource, Setup
from nightingale.decoding.drafts import Draft, DraftHeadRunner, HiddenStateDraft, LookupDraft
from nightingale.decoding.kv_budget import KVBudget
from nightingale.decoding.runner import MAX_DRAFT_TOKENS, DraftVerifier
from nightingale.decoding.speculative import Costs, SpeculativeDecoder
from nightingale.errors import CheckpointError, ConfigError
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.t3.config import SPEECH_VOCAB_KEY

DRAFT_HEAD = "head"
"""The profile option for the draft head that came with a model."""
LOOKUP = "lookup"
DRAFT_HEAD_COST = 0.14
"""Cost of one token of an int8 draft head over a step of wren's T3."""
MAX_HEAD_TOKENS = 3
"""Tokens that a draft head proposes: it is trained for as many, each from the one before."""


def open_speculation(
    source: ModelSource,
    setup: Setup,
    runner: DraftVerifier,
    budget: KVBudget,
    on_start: Callable[[], None] | None = None,
    *,
    open_head: Callable[[Path], DraftHeadRunner],
    open_model: Callable[[], tuple[Draft, float]],
    costs: Costs,
) -> SpeculativeDecoder:
    """Return a speculative decoder over a runner.

    Args:
        open_head: Opens a file with a draft head for the runner's T3.
        open_model: Opens a draft that is a model; returns it and the cost of one of its tokens.
        costs: Costs of a verification pass of this runner.
    """
    name, longest, waits = setup.profile.draft, MAX_DRAFT_TOKENS, setup.profile.in_blocks
    draft: Draft
    if name == LOOKUP:
        draft, cost = LookupDraft(), 0.0
    elif (path := find_draft_head(source, name)) is not None:
        draft, cost, longest = HiddenStateDraft(runner, open_head(path)), DRAFT_HEAD_COST, MAX_HEAD_TOKENS
        waits = False  # a draft head reads no prompt, so it even speeds up the first audio
    else:
        draft, cost = open_model()
    # A draft that must read the prompt starts after the tokens of the first block.
    after = setup.profile.smallest_block_tokens + LOOKAHEAD_TOKENS if waits else 0
    return SpeculativeDecoder(
        runner,
        draft,
        budget,
        costs=replace(costs, draft=cost),
        after=after,
        longest=longest,
        on_start=on_start,
    )


def draft_needs_torch(name: str) -> bool:
    """Return True if a draft is a model, which only PyTorch runs."""
    return name not in (DRAFT_HEAD, LOOKUP) and _read_sizes(Path(name)) is None


def find_draft_head(source: ModelSource, name: str) -> Path | None:
    """Return the file of the draft head that came with a model ("head"), or of the one that is named.

    Returns None if the name is that of another kind of draft. Raises ConfigError if there is no such head, or
    if it was trained for a T3 of another width or vocabulary.
    """
    path, config = Path(name), source.info.preset.t3
    if name == DRAFT_HEAD:
        path = source.files["t3"].parent / wren.DRAFT_FILE if "t3" in source.files else Path()
        if not path.is_file():
            raise ConfigError(
                "no such draft",
                got=f"{name!r}, and no {wren.DRAFT_FILE} beside the weights of {source.info.name}",
                allowed="lookup, a file, or another model",
                fix="Train one: nightingale train draft.",
            )
    if (sizes := _read_sizes(path)) is None:
        return None
    width, vocab = config.backbone.width, config.speech_vocab
    if sizes not in ((width, vocab), (width, None)):
        raise ConfigError(
            "this draft was made for another model",
            got=f"{path.name} for hidden states of width {sizes[0]}"
            + (f" and {sizes[1]} speech tokens" if sizes[1] else ""),
            allowed=f"{width} and {vocab}, as those of {source.info.name}",
            fix="Train one for this model: nightingale train draft.",
        )
    return path


def _read_sizes(path: Path) -> tuple[int, int | None] | None:
    """Return the width of the draft head in a file, and the vocabulary of its T3 if the file has it.

    Returns None if the file holds something else.
    """
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    try:
        with safe_open(path, framework="np") as file:
            name, metadata = "in_proj.weight", file.metadata() or {}
            if name not in file.keys():  # noqa: SIM118
                return None
            vocab = metadata.get(SPEECH_VOCAB_KEY)
            return int(file.get_slice(name).get_shape()[0]), None if vocab is None else int(vocab)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            "a draft cannot be read",
            got=f"{path}: {error}",
            allowed="a whole .safetensors file",
            fix="Train it again, or use another draft.",
        ) from error
