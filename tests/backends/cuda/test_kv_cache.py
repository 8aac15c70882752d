"""Attention over cells by Triton's kernel: its plain twin's, cell for cell and sum for sum.

With a GPU it is compiled; without one it runs in Triton's interpreter, if Triton is installed at all.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from parity.tiny import TINY_LLAMA, fill, gaussian
from torch import Tensor

from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_blocks import KVBlockLayout, KVBlockPool
from nightingale.models.layers.paged_kv_cache import KVBlockTables, Stream, plain_attend
from nightingale.models.layers.rope import rotate, rotations

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
ON_GPU = pytest.mark.requires_cuda
PROMPT, TOKENS = 70, 40


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    if not CUDA:
        os.environ["TRITON_INTERPRET"] = "1"
    pytest.importorskip("triton", reason="the kernel is Triton's")


def plan_of(
    kind: torch.dtype, windows: bool, *, layers: int = 1, heads: int = 3, width: int = 16
) -> KVBlockLayout:
    kept = tuple(tuple(9 + 8 * (head % 2) for head in range(heads)) for _ in range(layers))
    spare = 3 if windows else 0
    return KVBlockLayout(
        layers=layers, heads=heads, width=width, kind=kind, windows=kept if windows else None, spare=spare
    )


def tables_of(arena: KVBlockPool, streams: list[Stream], lengths: Tensor) -> list[KVBlockTables]:
    """Of each layer; the last row is nobody's."""
    starts = torch.cat([torch.from_numpy(stream.starts()) for stream in streams], dim=1)
    rings = torch.cat(
        [torch.tensor(stream.rings)[:, None].expand(-1, stream.rows, -1) for stream in streams], dim=1
    )
    prompts = torch.tensor([stream.prompt for stream in streams for _ in range(stream.rows)] + [0])
    nobody = torch.full_like(starts[:, :1], -1)
    starts, rings = torch.cat([starts, nobody], dim=1), torch.cat([rings, torch.ones_like(nobody)], dim=1)
    return [
        KVBlockTables(
            arena=arena,
            starts=starts[layer].contiguous().to(DEVICE),
            rings=rings[layer].int().contiguous().to(DEVICE),
            prompts=prompts.int().to(DEVICE),
            lengths=lengths,
        )
        for layer in range(arena.plan.layers)
    ]


def places(table: KVBlockTables) -> dict[str, Any]:
    plan = table.arena.plan
    slack = 0 if plan.windows is None else plan.spare
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
def test_the_kernel_is_its_plain_twin(kind: torch.dtype, dtype: torch.dtype, windows: bool) -> None:
    from nightingale.backends.cuda.paged_attention import attend_cells

    plan = plan_of(kind, windows)
    both = []
    for attend in (attend_cells, plain_attend):
        arena = KVBlockPool(cells=4 * plan.cells(PROMPT, TOKENS), plan=plan, device=DEVICE, attend=attend)
        streams = [
            Stream.open(arena, rows=rows, prompt=prompt, tokens=TOKENS)
            for rows, prompt in ((2, PROMPT), (1, 5))
        ]
        for stream in streams:
            given = [gaussian((stream.rows, 3, stream.prompt, 16), n).to(DEVICE, dtype) for n in range(3)]
            stream.layers[0].attend(*given)
        lengths = torch.tensor([PROMPT, PROMPT, 5, 0], dtype=torch.int32, device=DEVICE)
        both.append((arena, tables_of(arena, streams, lengths)[0]))
    # The interpreter is slow: both come by the twin to where the rings have come round.
    steps = 22 if windows else 4
    for step in range(steps):
        q, k, v = (gaussian((4, 3, 1, 16), 100 * n + step).to(DEVICE, dtype) for n in range(3))
        if step < steps - 2 and not CUDA:
            for arena, table in both:
                plain_attend(q, k, v, arena, **places(table))
        else:
            mine, twins = (table.attend(q, k, v) for _, table in both)
            close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
            torch.testing.assert_close(mine[:3], twins[:3], **close)
        for _, table in both:
            table.lengths[:3] += 1
    for name in ("keys", "values", "key_scales", "value_scales"):
        ours, theirs = (getattr(arena, name) for arena, _ in both)
        assert torch.equal(ours.view(torch.int8), theirs.view(torch.int8)), name


@torch.inference_mode()
def test_a_step_over_cells_is_the_plain_networks() -> None:
    """Norms, products, turns and attention of a whole Llama, over cells that round nothing."""
    from nightingale.backends.cuda.paged_attention import CellSteps, attend_cells
    from nightingale.backends.cuda.t3_layers import pack

    t3 = fill(T3(TINY_LLAMA)).to(DEVICE)
    backbone = t3.config.backbone
    sizes: dict[str, Any] = {"heads": backbone.heads, "width": backbone.width // backbone.heads}
    plan = plan_of(torch.float32, False, layers=backbone.layers, **sizes)
    arena = KVBlockPool(cells=4 * plan.cells(9, 12), plan=plan, device=DEVICE, attend=attend_cells)
    streams = [Stream.open(arena, rows=1, prompt=prompt, tokens=12) for prompt in (9, 4)]
    plain = [t3.new_kv_cache(rows=1, capacity=40) for _ in streams]
    for n, (stream, memory) in enumerate(zip(streams, plain, strict=True)):
        prompt = gaussian((1, stream.prompt, backbone.width), n).to(DEVICE)
        t3.next_logits(prompt, memory)
        t3.next_logits(prompt, stream.layers)
    turn = rotations(t3.tfmr.inverse, torch.arange(40, device=DEVICE), torch.float32)  # type: ignore[arg-type]
    steps = CellSteps(t3, pack(t3), turn)  # type: ignore[arg-type]
    tables = tables_of(arena, streams, torch.tensor([9, 4, 0], dtype=torch.int32, device=DEVICE))
    for step in range(1, 3):
        x = t3.embed_speech(torch.tensor([[step], [10 + step], [0]], device=DEVICE), step)
        scores = steps(x[:, 0], tables)
        for row, memory in enumerate(plain):
            expected = t3.next_logits(x[row : row + 1], memory)[0]
            torch.testing.assert_close(scores[row], expected, rtol=1e-3, atol=1e-4)
        tables[0].lengths[:2] += 1


def test_turning_by_table_is_turning() -> None:
    """What the kernel does with the halves of a vector is what `rotate` does."""
    inverse = torch.tensor([1.0, 0.1])
    cos, sin = rotations(inverse, torch.tensor([3]), torch.float32)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    other, sign = x.roll(2), torch.tensor([-1.0, -1.0, 1.0, 1.0])
    torch.testing.assert_close(x * cos[0] + other * sin[0] * sign, rotate(x[None], cos, sin)[0])
