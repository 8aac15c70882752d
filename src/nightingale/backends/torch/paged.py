"""A profile's cache, by its name: T3 with its memory in cells, and what an utterance takes of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nightingale.decoding.kv_retention import find_table
from nightingale.decoding.decoding import Decoding
from nightingale.decoding.decoder import Drawn, HostDecoder, Speaking
from nightingale.engine.model import Model
from nightingale.backends.torch.kv_pools import PagedKVPool
from nightingale.engine.profiles import Profile
from nightingale.decoding.kv_budget import KVBudget
from nightingale.backends.torch.runner import PlainRunner
from nightingale.decoding.speculative import LONGEST
from nightingale.models.layers.kv_blocks import BlockAttention, KVBlockLayout

KINDS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def cells_of(model: Model, profile: Profile) -> KVBlockLayout | None:
    """What the profile keeps, and how; None: all of it, in the precision of the weights."""
    if not profile.cache and profile.keep == 100:
        return None
    backbone, weight = model.networks.t3.config.backbone, model.networks.t3.speech_head.weight
    windows = None
    if profile.keep < 100:
        folder = None if model.voices is None else model.voices.parent
        table = find_table(model.name, folder, layers=backbone.layers, heads=backbone.heads)
        windows = table.windows(profile.keep)
    return KVBlockLayout(
        layers=backbone.layers,
        heads=backbone.heads,
        width=backbone.width // backbone.heads,
        dtype=KINDS.get(profile.cache, weight.dtype),
        windows=windows,
        rewind_margin=LONGEST if profile.draft else 0,
    )


def open_cells(
    model: Model, profile: Profile, pool: dict[str, Any], attend: BlockAttention | None
) -> PagedKVPool | None:
    """T3's memory, if the profile does not want it in slots. attend: the kernel, where it can be used."""
    plan = cells_of(model, profile)
    if plan is None:
        return None
    t3, defaults = model.networks.t3, model.defaults
    return PagedKVPool(
        plan,
        slots=pool["slots"],
        rows_per_slot=pool["rows_per_slot"],
        prompt=t3.prompt_length(defaults.max_text_ids),
        tokens=defaults.max_new_tokens,
        device=t3.speech_head.weight.device,
        most_bytes=profile.memory_bytes,
        attend=attend,
    )


def room_for(model: Model, profile: Profile) -> KVBudget:
    """What utterances take of T3's memory in this profile."""
    plan, t3, defaults = cells_of(model, profile), model.networks.t3, model.defaults
    if plan is not None:
        size = plan.block_bytes
        return KVBudget(
            t3=t3,
            defaults=defaults,
            budget_bytes=profile.memory_bytes,
            needed=lambda prompt, tokens: plan.blocks(prompt, tokens) * size,
            filled=lambda prompt, tokens: plan.held_blocks(prompt, tokens) * size,
        )
    backbone = t3.config.backbone
    position = 2 * backbone.layers * backbone.width * t3.speech_head.weight.element_size()
    slot = (t3.prompt_length(defaults.max_text_ids) + defaults.max_new_tokens) * position
    return KVBudget(
        t3=t3,
        defaults=defaults,
        budget_bytes=profile.memory_bytes,
        needed=lambda prompt, tokens: slot,  # noqa: ARG005  (all slots are of one size)
        filled=lambda prompt, tokens: (prompt + tokens) * position,
    )


class PagedDecoder:
    """Decoder whose runner is told how far an utterance may come, and when it is done."""

    def __init__(self, draws: HostDecoder) -> None:
        assert isinstance(draws.runner, PlainRunner)
        self._draws, self._runner = draws, draws.runner
        self.at_once = draws.at_once

    @property
    def bytes(self) -> int:
        return self._draws.bytes

    def begin(self, slot: int, decoding: Decoding, prompt: Tensor) -> list[int]:
        self._runner.expect(slot, decoding.budget)
        return self._draws.begin(slot, decoding, prompt)

    def step(self, speaking: list[Speaking]) -> list[Drawn]:
        return self._draws.step(speaking)

    def leave(self, slot: int) -> None:
        self._draws.leave(slot)
        self._runner.leave(slot)

    def move(self, source: int, target: int) -> None:
        self._draws.move(source, target)

    def wipe(self, slot: int) -> None:
        self._draws.wipe(slot)
