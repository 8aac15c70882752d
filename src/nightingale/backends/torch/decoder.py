"""Open T3 in PyTorch: dense or compressed KV caches, with or without a draft."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import torch

from nightingale.backends.base import Decoder, ModelInfo, ModelSource, Setup
from nightingale.backends.torch.devices import use_threads
from nightingale.backends.torch.draft_models import open_torch_speculation
from nightingale.backends.torch.kv_pools import PagedKVPool
from nightingale.backends.torch.runner import TorchRunner
from nightingale.backends.torch.weights import torch_t3
from nightingale.decoding.host_decoder import HostDecoder
from nightingale.decoding.kv_budget import KVBudget
from nightingale.decoding.kv_retention import find_table
from nightingale.decoding.runner import MAX_DRAFT_TOKENS
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_blocks import KVBlockLayout

CACHE_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def open_decoder(source: ModelSource, setup: Setup) -> Decoder:
    t3 = torch_t3(source, setup.machine.device, setup.precision)
    layout = kv_layout(source, setup, t3)
    runner = TorchRunner(
        t3,
        **pool_options(source, setup),
        spare=MAX_DRAFT_TOKENS if setup.profile.draft else 0,
        pool=None if layout is None else _paged_pool(source, setup, t3, layout),
    )
    budget = kv_budget(source.info, t3, layout)
    on_start = None if setup.threads is None else partial(use_threads, setup.threads)
    if setup.profile.draft:
        return open_torch_speculation(source, setup, runner, budget, on_start)
    return HostDecoder(runner, budget, on_start=on_start)


def pool_options(source: ModelSource, setup: Setup) -> dict[str, Any]:
    """Return the arguments that every T3 runner takes."""
    info = source.info
    return {
        "slots": setup.slots,
        "rows_per_slot": info.rows_per_slot,
        "capacity": info.max_positions,
        "batched": setup.profile.batched,
        "max_new_tokens": info.defaults.max_new_tokens,
    }


def kv_layout(source: ModelSource, setup: Setup, t3: T3) -> KVBlockLayout | None:
    """Return the layout of a compressed KV cache; None if the profile wants a dense one."""
    profile, info = setup.profile, source.info
    if not profile.needs_torch_kv_cache:
        return None
    backbone, windows = info.preset.t3.backbone, None
    if profile.keep < 100:
        folder = source.files["t3"].parent if "t3" in source.files else None
        table = find_table(info.name, folder, layers=backbone.layers, heads=backbone.heads)
        windows = table.windows(profile.keep)
    return KVBlockLayout(
        layers=backbone.layers,
        heads=backbone.heads,
        width=backbone.width // backbone.heads,
        dtype=CACHE_DTYPES.get(profile.cache, t3.speech_head.weight.dtype),
        windows=windows,
        rewind_margin=MAX_DRAFT_TOKENS if profile.draft else 0,
    )


def kv_budget(info: ModelInfo, t3: T3, layout: KVBlockLayout | None) -> KVBudget:
    if layout is None:
        itemsize = t3.speech_head.weight.element_size()
        return KVBudget.dense(info.preset.t3, info.defaults, itemsize=itemsize)
    size = layout.block_bytes
    return KVBudget(
        config=info.preset.t3,
        defaults=info.defaults,
        reserved=lambda prompt, tokens: layout.blocks(prompt, tokens) * size,
        used=lambda prompt, tokens: layout.held_blocks(prompt, tokens) * size,
    )


def _paged_pool(source: ModelSource, setup: Setup, t3: T3, layout: KVBlockLayout) -> PagedKVPool:
    attend = None
    if setup.machine.kind == "cuda" and importlib.util.find_spec("triton") is not None:
        from nightingale.backends.shared.paged_attention import paged_attention

        attend = paged_attention
    return PagedKVPool(
        layout,
        slots=setup.slots,
        rows_per_slot=source.info.rows_per_slot,
        prompt=source.info.max_prompt_positions,
        tokens=source.info.defaults.max_new_tokens,
        device=t3.speech_head.weight.device,
        most_bytes=setup.profile.memory_bytes,
        attend=attend,
    )
