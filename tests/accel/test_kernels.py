"""The Triton kernels: one layer's step is its plain twin's.

With a GPU they are compiled; without one they run in Triton's interpreter, if Triton is installed at all.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from accel.conftest import Family, family_named
from parity.tiny import gaussian

from nightingale.accel.decode import DecodePlan, Decoder
from nightingale.accel.layers import LlamaWeights, step_layer
from nightingale.nn.rope import rotations

SPAN = 96
CUDA = torch.cuda.is_available()


@pytest.fixture(scope="module")
def kernels() -> object:
    if not CUDA:
        os.environ["TRITON_INTERPRET"] = "1"
    pytest.importorskip("triton", reason="the kernels are Triton's")
    from nightingale.accel import kernels

    return kernels


@pytest.fixture
def family() -> Family:
    return family_named("multilingual")


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.inference_mode()
def test_a_layer_is_its_plain_twin(family: Family, kernels: object, rows: int, dtype: torch.dtype) -> None:
    from nightingale.accel.layers import pack

    device = torch.device("cuda" if CUDA else "cpu")
    t3 = family.t3.to(device, dtype)
    w, heads = pack(t3)[0], t3.config.backbone.heads
    assert isinstance(w, LlamaWeights)
    width = t3.config.backbone.width
    x = gaussian((rows, width), 1).to(device, dtype)
    # Every second row of a pool, as an unguided step sees it: the rows' stride is not their size.
    pool = [gaussian((2 * rows, heads, SPAN, width // heads), seed).to(device, dtype) for seed in (2, 3)]
    twins = [cache.clone() for cache in pool]
    lengths = torch.tensor([0, 1, 64, 90][:rows], device=device)
    cos, sin = rotations(t3.tfmr.inverse, lengths, dtype)  # type: ignore[arg-type]
    beyond = torch.arange(SPAN, device=device) > lengths[:, None]
    bias = torch.zeros_like(beyond, dtype=dtype).masked_fill(beyond, -torch.inf)[:, None, None]
    expected = step_layer(
        x[:, None],
        w,
        (cos[:, None, None], sin[:, None, None]),
        twins[0][::2],
        twins[1][::2],
        torch.arange(rows, device=device),
        lengths,
        bias,
        heads,
        "sdpa",
    )[:, 0]
    ours = kernels.llama_layer(x, w, (cos, sin), pool[0][::2], pool[1][::2], lengths, kernels.Tuning())  # type: ignore[attr-defined]
    near = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 5e-2}
    torch.testing.assert_close(ours, expected, **near)
    for cache, twin in zip(pool, twins, strict=True):
        torch.testing.assert_close(cache, twin, **near)


def test_decoding_by_kernels_gives_the_plain_greedy_tokens(family: Family, kernels: object) -> None:
    device = torch.device("cuda" if CUDA else "cpu")
    prompt, sampling = family.prompt(9, 1), replace(family.habits.sampling, temperature=0.0)
    expected = family.plain(prompt, sampling, budget=5)
    family.t3.to(device)
    plan = DecodePlan(slots=(1, 4), spans=(), steps=5, way="triton")
    decoder = Decoder(family.t3, order=family.order, guided=True, capacity=32, plan=plan)
    decoder.begin(0, prompt.to(device), sampling=sampling, seed=0, budget=5)
    assert decoder.launch(5).take() == [expected]
    assert decoder.packed.way_for(8) == "sdpa", "more rows than the kernels are for"
