"""The GPU part of benchmarks/kv_cache.py: throughput of T3 with the KV cache in slots and in paged blocks.

T3 of the multilingual size, 64 guided streams of 500 tokens after prompts of 100, each step one CUDA graph:
tokens per second with slots of bfloat16 (by torch's attention, and by our kernels), and with blocks of
bfloat16, int8 and fp8, complete or with windows of half and a quarter. How many such streams fit in 40 GiB
beside the weights. Needs torch, Triton, numpy and safetensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import checkout  # noqa: F401
import torch
from torch import Tensor

from nightingale.backends.cuda.triton_support import KernelChoice
from nightingale.models.chatterbox.t3.config import MULTILINGUAL, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_blocks import KVBlockLayout, KVBlockPool
from nightingale.models.layers.paged_kv_cache import KVBlockTables, PagedKVSequence
from nightingale.models.layers.rope import inverse_frequencies, rotations
from nightingale_lab.bench import script
from nightingale_lab.random_models import random_t3

STREAMS, PROMPT, TOKENS, TINY_TOKENS = 64, 100, 500, 40
BUDGET_BYTES = 40 * 2**30
WARM_STEPS = 5
TUNINGS = [(64, 4), (128, 4), (64, 2), (32, 1)]
"""Tunings of the kernel: blocks at a time, and warps."""
KINDS = {
    "bf16": (torch.bfloat16, None),
    "int8": (torch.int8, None),
    "fp8": (torch.float8_e4m3fn, None),
    "int8, keep 50 %": (torch.int8, 50),
    "int8, keep 25 %": (torch.int8, 25),
}
"""Precision, and the share of positions in the windows."""
Run = Callable[[], float]
"""Decodes all tokens, and returns the seconds."""


def measure(*, tiny: bool) -> dict[str, Any]:
    device, tokens = torch.device("cuda"), TINY_TOKENS if tiny else TOKENS
    config = (
        replace(MULTILINGUAL, backbone=replace(MULTILINGUAL.backbone, layers=2)) if tiny else MULTILINGUAL
    )
    t3 = random_t3(config, device=device, dtype=torch.bfloat16)
    result: dict[str, Any] = {}
    result["fit"] = fit(config, sum(weight.nbytes for weight in t3.parameters()))
    script.print_rows("fit in 40 GiB", {name: {"streams": count} for name, count in result["fit"].items()})
    tried = {}
    for tuning in TUNINGS:
        make = partial(in_blocks, t3, STREAMS, tokens, torch.int8, None, tuning)
        tried[tuning] = timed(make, STREAMS, tokens)
    best = max(TUNINGS, key=lambda tuning: tried[tuning].get("tokens/s", 0.0))
    result["tunings"] = {f"{blocks} blocks, {warps} warps": row for (blocks, warps), row in tried.items()}
    result["tuning"] = best
    script.print_rows("tunings", result["tunings"])
    for streams in (STREAMS, 1):
        makers: dict[str, Callable[[], Run]] = {
            "slots of bf16, torch's attention": partial(in_slots, t3, streams, tokens, "library"),
            "slots of bf16, our kernels": partial(in_slots, t3, streams, tokens, "triton"),
        }
        for name, (kind, percent) in KINDS.items():
            makers[f"blocks of {name}"] = partial(in_blocks, t3, streams, tokens, kind, percent, best)
        rows = {name: timed(make, streams, tokens) for name, make in makers.items()}
        plain = max(row.get("tokens/s", 0.0) for name, row in rows.items() if name.startswith("slots"))
        for row in rows.values():
            if "tokens/s" in row and plain:
                row["over the best slots"] = row["tokens/s"] / plain
        result[f"streams_{streams}"] = rows
        script.print_rows(f"{streams} guided streams, {tokens} tokens after a prompt of {PROMPT}", rows)
    return result


def timed(make: Callable[[], Run], streams: int, tokens: int) -> dict[str, Any]:
    """Return the better of two runs. A failure is recorded, and the other runs go on."""
    try:
        run = make()
        best = min(run() for _ in range(2))
        del run
        return {"tokens/s": streams * tokens / best, "ms per step": 1000 * best / tokens}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}"}
    finally:
        torch.cuda.empty_cache()


def layout_for(
    config: T3Config, kind: torch.dtype, percent: int | None, tokens: int = TOKENS
) -> KVBlockLayout:
    """percent: windows of uneven lengths, on average so many percent of the tokens."""
    backbone, windows = config.backbone, None
    if percent is not None:
        shares = [0.5 + (head % 5) / 4 for head in range(backbone.heads)]
        mean = sum(shares) / len(shares)
        layer = tuple(round(tokens * percent / 100 * share / mean) for share in shares)
        windows = (layer,) * backbone.layers
    width = backbone.width // backbone.heads
    return KVBlockLayout(
        layers=backbone.layers, heads=backbone.heads, width=width, dtype=kind, windows=windows
    )


def fit(config: T3Config, weights: int) -> dict[str, float]:
    """Return how many guided streams of 500 tokens after prompts of 100 can be opened."""
    from nightingale.errors import MemoryFull

    counts: dict[str, float] = {}
    for name, (kind, percent) in KINDS.items():
        layout = layout_for(config, kind, percent)
        # Only the bookkeeping of the pool: it counts what would be allocated.
        pool = KVBlockPool(blocks=0, layout=layout, device=torch.device("cpu"), attend=None)
        pool.blocks, opened = (BUDGET_BYTES - weights) // layout.block_bytes, 0
        try:
            while True:
                PagedKVSequence(pool, rows=2, prompt=PROMPT, tokens=TOKENS)
                opened += 1
        except MemoryFull:
            counts[name] = opened
    return counts | {f"{name} over bf16": counts[name] / counts["bf16"] for name in list(counts)[1:]}


def filled_blocks(
    t3: T3, streams: int, tokens: int, layout: KVBlockLayout, attend: Any
) -> list[KVBlockTables]:
    """Return tables of random prompts: all rows of all streams are one stream of many rows."""
    device, rows = t3.speech_head.weight.device, 2 * streams
    blocks = rows * layout.blocks(PROMPT, tokens)
    pool = KVBlockPool(blocks=blocks, layout=layout, device=device, attend=attend)
    stream = PagedKVSequence(pool, rows=rows, prompt=PROMPT, tokens=tokens)
    shape = (rows, layout.heads, PROMPT, layout.width)
    for layer in stream.layers:
        layer.attend(*(torch.randn(shape, device=device).bfloat16() for _ in range(3)))
    starts = torch.from_numpy(stream.starts()).to(device)
    rings = torch.tensor(stream.rings, dtype=torch.int32, device=device)[:, None]
    rings = rings.expand(-1, rows, -1).contiguous()
    prompts = torch.full((rows,), PROMPT, dtype=torch.int32, device=device)
    lengths = prompts.clone()
    return [
        KVBlockTables(block_pool=pool, starts=starts[n], rings=rings[n], prompts=prompts, lengths=lengths)
        for n in range(layout.layers)
    ]


def in_blocks(
    t3: T3, streams: int, tokens: int, kind: torch.dtype, percent: int | None, tuning: tuple[int, int]
) -> Run:
    from nightingale.backends.cuda.t3.packed_weights import pack_weights
    from nightingale.backends.shared.paged_attention import paged_attention
    from nightingale_lab.bench.paged_decode_step import PagedDecodeStep

    layout = layout_for(t3.config, kind, percent, tokens)
    with torch.inference_mode():
        tables = filled_blocks(t3, streams, tokens, layout, paged_attention)
        rotation = rotation_table(t3, PROMPT + tokens)
        step = PagedDecodeStep(t3, pack_weights(t3), rotation, tuning)
    return recorded(t3, streams, tokens, tables[0].lengths, {PROMPT + tokens: lambda x: step(x, tables)})


def in_slots(t3: T3, streams: int, tokens: int, kernels: KernelChoice) -> Run:
    """Decode as the engine does: a graph for each span of cached positions."""
    from nightingale.backends.cuda.t3.packed_network import PackedT3

    device, backbone = t3.speech_head.weight.device, t3.config.backbone
    whole = PROMPT + tokens
    packed = PackedT3(t3, positions=whole, kernels=kernels)
    shape = (2 * streams, backbone.heads, whole, backbone.width // backbone.heads)
    caches = [
        tuple(torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2))
        for _ in range(backbone.layers)
    ]
    lengths = torch.full((2 * streams,), PROMPT, dtype=torch.int64, device=device)
    token = torch.zeros(2 * streams, dtype=torch.int64, device=device)

    logits = torch.empty(2 * streams, t3.config.speech_vocab, device=device)

    def of_span(span: int) -> Callable[[Tensor], Tensor]:
        part = [(keys[:, :, :span], values[:, :, :span]) for keys, values in caches]

        def step(_: Tensor) -> Tensor:
            packed.step(packed.embed(token, lengths - PROMPT + 1, lengths), part, lengths, out=logits)
            return logits

        return step

    spans = [span for span in (256, 512) if span < whole] + [whole]
    return recorded(t3, streams, tokens, lengths, {span: of_span(span) for span in spans})


def rotation_table(t3: T3, positions: int) -> tuple[Tensor, Tensor]:
    backbone, weight = t3.config.backbone, t3.speech_head.weight
    inverse = inverse_frequencies(
        backbone.width // backbone.heads,
        theta=backbone.rope_theta,  # type: ignore[union-attr]
        scaling=backbone.rope_scaling,  # type: ignore[union-attr]
    ).to(weight.device)
    return rotations(inverse, torch.arange(positions, device=weight.device), weight.dtype)


def recorded(
    t3: T3, streams: int, tokens: int, lengths: Tensor, logits_of: dict[int, Callable[[Tensor], Tensor]]
) -> Run:
    """Record a graph per span. All caches get the same embedding, and argmax after CFG replaces sampling."""
    token = torch.zeros(2 * streams, dtype=torch.int64, device=lengths.device)

    def step(logits: Callable[[Tensor], Tensor]) -> None:
        x = t3.embed_speech_at(token, lengths.long() - PROMPT + 1)
        conditional, unconditional = logits(x).view(streams, 2, -1).unbind(1)
        guided = conditional + 0.5 * (conditional - unconditional)
        token.view(streams, 2).copy_(guided.argmax(-1, keepdim=True))
        lengths.add_(1)

    graphs = {}
    with torch.inference_mode():
        for reach, logits in logits_of.items():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_STEPS):
                    step(logits)
            torch.cuda.current_stream().wait_stream(side)
            lengths.fill_(PROMPT)
            graphs[reach] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[reach]):
                step(logits)
            lengths.fill_(PROMPT)

    def run() -> float:
        with torch.inference_mode():
            lengths.fill_(PROMPT)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for at in range(PROMPT, PROMPT + tokens):
            graphs[min(reach for reach in graphs if reach > at)].replay()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    return run
