"""Open the draft that a profile names, for any runner that can verify drafted tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nightingale import wren
from nightingale.backends.base import DraftModel, ModelSource, Setup
from nightingale.backends.torch.draft_heads import TorchDraftHead
from nightingale.backends.torch.runner import TorchRunner
from nightingale.backends.torch.weights import t3_weights, torch_t3
from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.decoding.drafts import Draft, DraftHeadRunner, HiddenStateDraft, LookupDraft, ModelDraft
from nightingale.decoding.kv_budget import KVBudget
from nightingale.decoding.runner import DraftVerifier
from nightingale.decoding.speculative import MAX_DRAFT_TOKENS, TORCH_COSTS, Costs, SpeculativeDecoder
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import load, read_tensors
from nightingale.models.compact import unpack

DRAFT_HEAD = "guess"
"""The profile option for the draft head that came with a model."""
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
    open_head: Callable[[T3, DraftHead], DraftHeadRunner] = TorchDraftHead,
    costs: Costs = TORCH_COSTS,
) -> SpeculativeDecoder:
    """Return a speculative decoder over a runner.

    Args:
        open_head: Opens a draft head for the runner's T3.
        costs: Costs of a verification pass of this runner.
    """
    name, device = setup.profile.draft, setup.machine.device
    t3 = t3_weights(source, device, "float32" if setup.precision == "int8" else setup.precision)
    longest, waits = MAX_DRAFT_TOKENS, setup.profile.streaming
    draft: Draft
    if name == "lookup":
        draft, cost = LookupDraft(), 0.0
    elif (head := find_draft_head(source, name)) is not None:
        draft, cost, longest = HiddenStateDraft(runner, open_head(t3, head)), DRAFT_HEAD_COST, MAX_HEAD_TOKENS
        waits = False  # a draft head reads no prompt, so it even speeds up the first audio
    else:
        draft_t3, prompt = _draft_t3(source, setup, t3)
        draft = ModelDraft(_draft_runner(draft_t3, source, setup), prompt)
        cost = weights_of(draft_t3) / weights_of(t3)
    # A draft that must read the prompt starts after the tokens of the first block.
    after = setup.profile.first_block_tokens + LOOKAHEAD_TOKENS if waits else 0
    return SpeculativeDecoder(
        runner,
        draft,
        budget,
        costs=replace(costs, draft=cost),
        after=after,
        longest=longest,
        on_start=on_start,
    )


def weights_of(t3: T3) -> int:
    """Return the number of weights that one step reads: layers and head."""
    return sum(p.numel() for part in (t3.tfmr, t3.speech_head) for p in part.parameters())


def find_draft_head(source: ModelSource, name: str) -> DraftHead | None:
    """Return the draft head that came with a model ("guess") or that a file holds.

    Returns None if the name is that of another kind of draft. Raises ConfigError if there is no such head, or
    if it was trained for another width.
    """
    path, width = Path(name), source.info.preset.t3.backbone.width
    if name == DRAFT_HEAD:
        path = source.files["t3"].parent / wren.DRAFT_FILE if "t3" in source.files else Path()
        if not path.is_file():
            raise ConfigError(
                "no such draft",
                got=f"{name!r}, and no {wren.DRAFT_FILE} beside the weights of {source.info.name}",
                allowed="lookup, a file, or another model",
                fix="Train one: nightingale train draft.",
            )
    elif path.suffix != ".safetensors" or not path.is_file():
        return None
    tensors = unpack(read_tensors(path))
    if "in_proj.weight" not in tensors:
        return None
    head = load(lambda: DraftHead.shaped_like(tensors), tensors, source=path)
    if head.width != width:
        raise ConfigError(
            "this draft was made for another model",
            got=f"{path.name} for hidden states of width {head.width}",
            allowed=f"{width}, as those of {source.info.name}",
            fix="Train one for this model: nightingale train draft.",
        )
    return head


def _draft_t3(source: ModelSource, setup: Setup, t3: T3) -> tuple[T3, Callable[[Decoding], Prompt]]:
    """Return the drafting T3 and what makes its prompts: a file with fewer layers, or another model."""
    weight, name = t3.speech_head.weight, setup.profile.draft
    if name.endswith(".safetensors"):
        tensors = {key: value.to(weight) for key, value in read_tensors(Path(name)).items()}
        depths = [int(key.split(".")[2]) for key in tensors if key.startswith(("tfmr.layers.", "tfmr.h."))]
        backbone = replace(t3.config.backbone, layers=1 + max(depths, default=0))
        config = replace(t3.config, backbone=backbone)
        small = ModelSource(
            source.info, {}, loaded={"t3": load(lambda: T3(config), tensors, source=Path(name))}
        )
        return torch_t3(small, setup.machine.device, setup.precision), lambda decoding: decoding.prompt
    assert setup.draft is not None, "the engine loads a draft that is a model"
    model = setup.draft
    return torch_t3(model.source, setup.machine.device, setup.precision), _prompt_for(model, source.info.name)


def _prompt_for(model: DraftModel, name: str) -> Callable[[Decoding], Prompt]:
    info = model.source.info

    def prompt(decoding: Decoding) -> Prompt:
        text_ids = decoding.prompt.text_ids
        if info.name != name:
            text_ids = model.encode(decoding.prompt.text)
        return replace(decoding.prompt, text_ids=text_ids, guided=decoding.prompt.guided and info.guidable)

    return prompt


def _draft_runner(t3: T3, source: ModelSource, setup: Setup) -> TorchRunner:
    """Return a runner with its own dense KV cache, for utterances as long as the drafted model's."""
    drafting = setup.draft.source.info if setup.draft else source.info
    return TorchRunner(
        t3,
        slots=setup.profile.slots,
        rows_per_slot=source.info.rows_per_slot,
        capacity=t3.config.prompt_length(drafting.defaults.max_text_ids)
        + source.info.defaults.max_new_tokens,
        batched=setup.profile.batched,
        max_new_tokens=source.info.defaults.max_new_tokens,
        spare=MAX_DRAFT_TOKENS,
    )
