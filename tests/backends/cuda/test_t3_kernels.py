"""T3's Triton kernels: a step gives the logits of library calls, for a few rows and for many.

With a GPU they are compiled; without one they run in Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from backends.conftest import family_named
from parity.tiny import gaussian

from nightingale.backends.cuda.graphs import GraphMode
from nightingale.backends.cuda.t3.decode_loop import DecodeLoop, DecodePlan
from nightingale.backends.cuda.t3.packed_network import PackedT3
from nightingale.backends.cuda.triton_support import Tuning
from nightingale.models.chatterbox.t3.config import Gpt2Config

SPAN = 200
LARGE = None if torch.cuda.is_available() else Tuning(1024, 64, 4)
"""Blocks for the interpreter, which has a fixed cost for each."""
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
MODES: tuple[GraphMode, ...] = ("graph", "eager")
# An interpreted exp overflows with a warning; a compiled one without.
pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning"),
    pytest.mark.thorough,  # Triton's interpreter takes seconds for a kernel
]


@pytest.mark.parametrize("name", ["multilingual", "turbo", "wren"])
@pytest.mark.parametrize("rows", [1, 2, 4, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_step_is_that_of_library_calls(name: str, rows: int, dtype: torch.dtype) -> None:
    check_step(name, rows, dtype, LARGE)


@pytest.mark.requires_cuda
@pytest.mark.parametrize("name", ["multilingual", "turbo", "wren"])
@pytest.mark.parametrize("rows", [1, 2, 4, 6])
@pytest.mark.parametrize("pdl", [False, True])
def test_on_a_gpu_a_step_is_that_of_library_calls_with_and_without_pdl(
    name: str, rows: int, pdl: bool
) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        check_step(name, rows, dtype, Tuning(8, 512, 4, pdl))


@torch.inference_mode()
def check_step(name: str, rows: int, dtype: torch.dtype, tuning: Tuning | None) -> None:
    t3 = family_named(name).t3.to(DEVICE, dtype)
    backbone = t3.config.backbone
    # Every second row of a pool, as an unguided step sees it: the rows' stride is not their size.
    shape = (2 * rows, backbone.heads, SPAN, backbone.width // backbone.heads)
    pool = [[gaussian(shape, 2 * n + k).to(DEVICE, dtype) for k in (0, 1)] for n in range(backbone.layers)]
    copies = [[cache.clone() for cache in pair] for pair in pool]
    lengths = torch.tensor([0, 1, 64, 190, 130, 7][:rows], device=DEVICE)
    if isinstance(backbone, Gpt2Config):  # whose table of positions is short
        lengths = lengths.clamp(max=backbone.positions - 1)
    tokens, at = torch.arange(rows, device=DEVICE) + 5, torch.arange(rows, device=DEVICE)
    plain = PackedT3(t3, positions=SPAN, kernels="library")
    x = plain.embed(tokens, at, lengths)
    expected, ours = (torch.empty(rows, t3.config.speech_vocab, device=DEVICE) for _ in range(2))
    plain.step(x, [(k[::2], v[::2]) for k, v in copies], lengths, out=expected)
    fused = PackedT3(t3, positions=SPAN, kernels="triton", tuning=tuning)
    fused.step(x, [(k[::2], v[::2]) for k, v in pool], lengths, out=ours)
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 5e-2, "atol": 1e-1}
    torch.testing.assert_close(ours, expected, **near)
    for pair, copied in zip(pool, copies, strict=True):
        for cache, other in zip(pair, copied, strict=True):
            torch.testing.assert_close(cache, other, **near)


@pytest.mark.parametrize("name", ["multilingual", "turbo"])
def test_kernels_give_the_greedy_tokens_of_the_host(name: str) -> None:
    family = family_named(name)
    prompt, sampling = family.prompt(9, 1), replace(family.defaults.sampling, temperature=0.0)
    expected = family.plain(prompt, sampling, budget=5)
    family.t3.to(DEVICE)
    plan = DecodePlan(slots=(1, 4), spans=(), steps=5, kernels="triton", tuning=LARGE)
    decoder = DecodeLoop(family.t3, order=family.order, guided=family.guided, capacity=32, plan=plan)
    decoder.prefill(0, prompt.to(DEVICE), sampling=sampling, seed=0, budget=5)
    assert decoder.launch(5).take() == [expected]


@pytest.mark.requires_cuda
@pytest.mark.parametrize("name", ["multilingual", "turbo"])
def test_on_a_gpu_graphs_sample_the_tokens_of_eager_mode(name: str) -> None:
    tokens = {}
    for mode in MODES:
        family = family_named(name)
        family.t3.to(DEVICE, torch.bfloat16)
        plan = DecodePlan(slots=(1, 4), spans=(), steps=8, kernels="triton", mode=mode)
        decoder = DecodeLoop(family.t3, order=family.order, guided=family.guided, capacity=64, plan=plan)
        for slot in range(3):
            prompt = family.prompt(9, slot).to(DEVICE, torch.bfloat16)
            decoder.prefill(slot, prompt, sampling=family.defaults.sampling, seed=slot, budget=24)
        tokens[mode] = [decoder.launch(8).take() for _ in range(3)]
    assert tokens["graph"] == tokens["eager"]


@pytest.mark.parametrize("inputs", [64, 96])
@pytest.mark.parametrize("outputs", [16, 37])
@torch.inference_mode()
def test_sizes_need_not_be_multiples_of_the_blocks(inputs: int, outputs: int) -> None:
    from nightingale.backends.cuda.t3.t3_kernels import LAYER_NORM, RMS_NORM, linear

    x, weight, norm = gaussian((3, inputs), 1), gaussian((outputs, inputs), 2), gaussian((inputs,), 3)
    x = x + 0.5  # a mean of its own
    bias, residual = gaussian((outputs,), 4), gaussian((3, outputs), 5)
    x, weight, norm, bias, residual = (t.to(DEVICE) for t in (x, weight, norm, bias, residual))
    for kind, normed in (
        (RMS_NORM, torch.nn.functional.rms_norm(x, (inputs,), norm, 1e-5)),
        (LAYER_NORM, torch.nn.functional.layer_norm(x, (inputs,), norm, None, 1e-5)),
    ):
        given = {"norm_weight": norm, "norm": kind, "bias": bias, "residual": residual}
        ours = linear(x, weight, Tuning(8, 32, 4), gelu=True, **given)
        whole = torch.nn.functional.linear(normed, weight, bias)
        expected = torch.nn.functional.gelu(whole, approximate="tanh") + residual
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
