"""Attention over a paged KV cache by Triton's kernel: it stores and sums what the reference does.

With a GPU it is compiled; without one it runs in Triton's interpreter.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parity.tiny import TINY_LLAMA, fill, gaussian
from torch import Tensor

from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_blocks import KVBlockLayout, KVBlockPool
from nightingale.models.layers.paged_kv_cache import KVBlockTables, PagedKVSequence
from nightingale.models.layers.rope import rotate, rotations
from nightingale_lab.bench.paged_attention_reference import attend_reference

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
ON_GPU = pytest.mark.requires_cuda
PROMPT, TOKENS = 70, 40


def plan_of(
    kind: torch.dtype, windows: bool, *, layers: int = 1, heads: int = 3, width: int = 16
) -> KVBlockLayout:
    kept = tuple(tuple(9 + 8 * (head % 2) for head in range(heads)) for _ in range(layers))
    spare = 3 if windows else 0
    return KVBlockLayout(
        layers=layers,
        heads=heads,
        width=width,
        dtype=kind,
        windows=kept if windows else None,
        rewind_margin=spare,
    )


def tables_of(
    block_pool: KVBlockPool, streams: list[PagedKVSequence], lengths: Tensor
) -> list[KVBlockTables]:
    """Return the tables of each layer; the last row is unused."""
    starts = torch.cat([torch.from_numpy(stream.starts()) for stream in streams], dim=1)
    rings = torch.cat(
        [torch.tensor(stream.rings)[:, None].expand(-1, stream.rows, -1) for stream in streams], dim=1
    )
    prompts = torch.tensor([stream.prompt for stream in streams for _ in range(stream.rows)] + [0])
    unused = torch.full_like(starts[:, :1], -1)
    starts, rings = torch.cat([starts, unused], dim=1), torch.cat([rings, torch.ones_like(unused)], dim=1)
    return [
        KVBlockTables(
            block_pool=block_pool,
            starts=starts[layer].contiguous().to(DEVICE),
            rings=rings[layer].int().contiguous().to(DEVICE),
            prompts=prompts.int().to(DEVICE),
            lengths=lengths,
        )
        for layer in range(block_pool.layout.layers)
    ]


def places(table: KVBlockTables) -> dict[str, Any]:
    plan = table.block_pool.layout
    slack = 0 if plan.windows is None else plan.rewind_margin
    tables = {name: getattr(table, name) for name in ("starts", "rings", "prompts", "lengths")}
    return {**tables, "slack": slack}


@pytest.mark.parametrize("windows", [False, True], ids=["all", "windows"])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (torch.int8, torch.float32),
        pytest.param(torch.int8, torch.bfloat16, marks=ON_GPU),
        pytest.param(torch.float8_e4m3fn, torch.bfloat16, marks=ON_GPU),
        pytest.param(torch.bfloat16, torch.bfloat16, marks=ON_GPU),
        (torch.float32, torch.float32),
    ],
    ids=str,
)
@torch.inference_mode()
def test_the_kernel_stores_and_sums_what_the_reference_does(
    kind: torch.dtype, dtype: torch.dtype, windows: bool
) -> None:
    from nightingale.backends.shared.paged_attention import paged_attention

    plan = plan_of(kind, windows)
    both = []
    for attend in (paged_attention, attend_reference):
        block_pool = KVBlockPool(
            blocks=4 * plan.blocks(PROMPT, TOKENS), layout=plan, device=DEVICE, attend=attend
        )
        streams = [
            PagedKVSequence(block_pool, rows=rows, prompt=prompt, tokens=TOKENS)
            for rows, prompt in ((2, PROMPT), (1, 5))
        ]
        for stream in streams:
            given = [gaussian((stream.rows, 3, stream.prompt, 16), n).to(DEVICE, dtype) for n in range(3)]
            stream.layers[0].attend(*given)
        lengths = torch.tensor([PROMPT, PROMPT, 5, 0], dtype=torch.int32, device=DEVICE)
        both.append((block_pool, tables_of(block_pool, streams, lengths)[0]))
    # The interpreter is slow: the reference brings both to where the rings wrap around.
    steps = 22 if windows else 4
    for step in range(steps):
        q, k, v = (gaussian((4, 3, 1, 16), 100 * n + step).to(DEVICE, dtype) for n in range(3))
        if step < steps - 2 and not CUDA:
            for block_pool, table in both:
                attend_reference(q, k, v, block_pool, **places(table))
        else:
            ours, expected = (table.attend(q, k, v) for _, table in both)
            close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
            torch.testing.assert_close(ours[:3], expected[:3], **close)
        for _, table in both:
            table.lengths[:3] += 1
    for name in ("keys", "values", "key_scales", "value_scales"):
        ours, theirs = (getattr(block_pool, name) for block_pool, _ in both)
        assert torch.equal(ours.view(torch.int8), theirs.view(torch.int8)), name


@torch.inference_mode()
def test_a_step_over_paged_blocks_gives_the_logits_of_the_network() -> None:
    """Norms, products, rotations and attention of a whole Llama, over blocks of float32."""
    from nightingale.backends.cuda.t3.packed_weights import pack_weights
    from nightingale.backends.shared.paged_attention import paged_attention
    from nightingale_lab.bench.paged_decode_step import PagedDecodeStep

    t3 = fill(T3(TINY_LLAMA)).to(DEVICE)
    backbone = t3.config.backbone
    sizes: dict[str, Any] = {"heads": backbone.heads, "width": backbone.width // backbone.heads}
    plan = plan_of(torch.float32, False, layers=backbone.layers, **sizes)
    block_pool = KVBlockPool(
        blocks=4 * plan.blocks(9, 12), layout=plan, device=DEVICE, attend=paged_attention
    )
    streams = [PagedKVSequence(block_pool, rows=1, prompt=prompt, tokens=12) for prompt in (9, 4)]
    plain = [t3.new_kv_cache(rows=1, capacity=40) for _ in streams]
    for n, (stream, cache) in enumerate(zip(streams, plain, strict=True)):
        prompt = gaussian((1, stream.prompt, backbone.width), n).to(DEVICE)
        t3.next_logits(prompt, cache)
        t3.next_logits(prompt, stream.layers)
    rotation = rotations(t3.tfmr.inverse, torch.arange(40, device=DEVICE), torch.float32)  # type: ignore[arg-type]
    steps = PagedDecodeStep(t3, pack_weights(t3), rotation)
    tables = tables_of(block_pool, streams, torch.tensor([9, 4, 0], dtype=torch.int32, device=DEVICE))
    for step in range(1, 3):
        x = t3.embed_speech(torch.tensor([[step], [10 + step], [0]], device=DEVICE), step)
        logits = steps(x[:, 0], tables)
        for row, cache in enumerate(plain):
            expected = t3.next_logits(x[row : row + 1], cache)[0]
            torch.testing.assert_close(logits[row], expected, rtol=1e-3, atol=1e-4)
        tables[0].lengths[:2] += 1


def test_the_kernels_rotation_is_that_of_the_network() -> None:
    """The kernel rotates a vector by adding the other half of it, as `rotate` does."""
    inverse = torch.tensor([1.0, 0.1])
    cos, sin = rotations(inverse, torch.tensor([3]), torch.float32)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    other, sign = x.roll(2), torch.tensor([-1.0, -1.0, 1.0, 1.0])
    torch.testing.assert_close(x * cos[0] + other * sin[0] * sign, rotate(x[None], cos, sin)[0])
