"""Each generated kernel compared with the same arithmetic in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

pytest.importorskip("llvmlite")
from backends.int8_reference import ReferenceInt8Linear
from llvmlite import ir

from nightingale.backends.cpu.int8_layout import interleave_gate, tile_weight
from nightingale.backends.cpu.kernels import vector_math
from nightingale.backends.cpu.kernels.int8_gemm import (
    GEMM_ROWS,
    GROUP_OUTPUTS,
    QUANT_BLOCK,
    ROW_PADDING,
    Epilogue,
    Norm,
    emit_epilogue,
    emit_gemm,
    emit_quantize_row,
)
from nightingale.backends.cpu.kernels.jit import CompiledModule, compile_module
from nightingale.backends.cpu.kernels.llvm_builder import F32, I64, Function
from nightingale.backends.cpu.kernels.t3_attention import emit_attention
from nightingale.backends.cpu.kernels.target import detect_target
from nightingale.backends.cpu.kernels.vector_math import LANES
from nightingale.backends.shared.quantize import quantize_blocks, quantize_weights

TARGET = detect_target()
if isinstance(TARGET, str):
    pytest.skip(TARGET, allow_module_level=True)

Floats = NDArray[np.float32]
HEAD_DIM = 64


def compiled(emit: Callable[[ir.Module], object], name: str, arg_count: int) -> Callable[..., None]:
    """Return the function `name` of a module that `emit` fills."""
    module = ir.Module("test")
    emit(module)
    optimized, machine = compile_module(module, TARGET)
    return CompiledModule(machine.emit_object(optimized), TARGET).function(name, arg_count)


def at(array: NDArray[Any]) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data


def noise(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_function_computes_what_was_emitted() -> None:
    def emit(module: ir.Module) -> None:
        f = Function(module, "sums", {"x": F32, "count": I64})
        x, count = f.params
        total = f.variable(f.zeros(F32, 16))
        with f.loop(count, step=16) as i:
            total.value += x.load_vector(i, 16)
        with f.if_else(count > 16) as (many, few):
            with many:
                x[0] = total.value.reduce_sum()
            with few:
                x[0] = -total.value.reduce_max()
        f.ret()

    run, x = compiled(emit, "sums", 2), noise(64)
    for count, expected in zip((64, 16), (x.sum(), -x[:16].max()), strict=True):
        y = x.copy()
        run(at(y), count)
        assert y[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["exp", "sigmoid", "gelu"])
def test_vector_math_matches_torch(name: str) -> None:
    def emit(module: ir.Module) -> None:
        f = Function(module, "apply", {"x": F32, "count": I64})
        x, count = f.params
        with f.loop(count, step=LANES) as i:
            x[i] = getattr(vector_math, f"emit_{name}")(x.load_vector(i, LANES))
        f.ret()

    in_torch = {"exp": torch.exp, "sigmoid": torch.sigmoid}.get(
        name, lambda x: torch.nn.functional.gelu(x, approximate="tanh")
    )
    run = compiled(emit, "apply", 2)
    x = np.linspace(-86, 86, 4096, dtype=np.float32)
    y = x.copy()
    run(at(y), len(y))
    expected = in_torch(torch.from_numpy(x).double()).numpy()
    # Where GELU is almost zero, only the absolute error counts.
    assert np.allclose(y, expected, rtol=1e-6, atol=1e-6 if name == "gelu" else 1e-37)
    far = np.array([-1e30, -1e4, -100, *[0.0] * 13], np.float32)
    run(at(far), len(far))
    assert np.abs(far[1:3]).max() < 1e-30
    assert np.isfinite(far).all()


@pytest.mark.parametrize("norm", Norm)
def test_rows_are_normalized_and_quantized_as_in_torch(norm: Norm) -> None:
    width = 3 * QUANT_BLOCK
    x, weight, bias = noise(width) * 3 + 0.5, noise(width, seed=1), noise(width, seed=2)
    x[QUANT_BLOCK : 2 * QUANT_BLOCK] = 0  # a block of zeros, unless LayerNorm shifts it
    codes, scales, corrections = np.zeros(width, np.int8), noise(3), np.zeros(3, np.int32)
    name = f"quantize_row_{norm.name}_{QUANT_BLOCK}"
    run = compiled(lambda module: emit_quantize_row(module, TARGET, norm), name, 8)
    run(at(x), at(weight), at(bias), at(codes), at(scales), at(corrections), width, width)
    t, w, b = (torch.from_numpy(v) for v in (x, weight, bias))
    normed = {
        Norm.NONE: t,
        Norm.RMS: w * (t * torch.rsqrt(t.square().mean() + 1e-5)),
        Norm.LAYER: torch.nn.functional.layer_norm(t, (width,), w, b, 1e-5),
    }[norm]
    expected_codes, expected_scales = quantize_blocks(normed, QUANT_BLOCK)
    assert np.allclose(scales, expected_scales.numpy(), rtol=1e-5)
    difference = np.abs(codes - expected_codes.flatten().numpy())
    assert difference.max() <= 1, "a value halfway between two codes may be rounded either way"
    assert (difference > 0).mean() < 0.01
    if not TARGET.signed_weights:
        assert (corrections == -128 * codes.reshape(3, QUANT_BLOCK).astype(np.int32).sum(-1)).all()


def gemm(rows: int, weight: Tensor, x: Tensor) -> Floats:
    """Multiply one group of outputs."""
    w_codes, w_scales = tile_weight(quantize_weights([weight]), signed=TARGET.signed_weights)
    x_codes, x_scales = quantize_blocks(x, QUANT_BLOCK)
    corrections = (-128 * x_codes.sum(-1)).to(torch.int32).numpy().copy()
    out = np.zeros((rows, GROUP_OUTPUTS), np.float32)
    run = compiled(lambda module: emit_gemm(module, TARGET, rows), f"gemm_{rows}_{QUANT_BLOCK}", 7)
    padded = np.pad(x_codes.to(torch.int8).numpy().reshape(rows, -1), ((0, 0), (0, ROW_PADDING)))
    inputs = padded, x_scales.numpy().copy(), corrections
    run(*(at(part) for part in (w_codes.numpy(), w_scales.numpy(), *inputs, out)), x.shape[1])
    return out


@pytest.mark.parametrize("rows", GEMM_ROWS)
def test_gemm_matches_the_int8_reference(rows: int) -> None:
    weight = torch.from_numpy(noise(GROUP_OUTPUTS, 5 * QUANT_BLOCK))
    x = torch.from_numpy(noise(rows, 5 * QUANT_BLOCK, seed=1))
    expected = ReferenceInt8Linear(weight, None)(x)
    assert np.abs(gemm(rows, weight, x) - expected.numpy()).max() < 1e-4 * float(expected.abs().max())


def test_the_largest_sums_do_not_overflow() -> None:
    weight, x = torch.ones(GROUP_OUTPUTS, 2 * QUANT_BLOCK), torch.ones(2, 2 * QUANT_BLOCK)
    for sign in (1, -1):
        assert gemm(2, weight * sign, x) == pytest.approx(2 * QUANT_BLOCK * sign, rel=1e-5)


@pytest.mark.parametrize("epilogue", Epilogue)
def test_epilogues_match_torch(epilogue: Epilogue) -> None:
    rows, stride = 3, 2 * GROUP_OUTPUTS
    x, bias, out = noise(rows, GROUP_OUTPUTS), noise(GROUP_OUTPUTS, seed=1), noise(rows, stride, seed=2)
    if epilogue == Epilogue.SWIGLU:
        bias[:] = 0
    before = out.copy()
    run = compiled(lambda module: emit_epilogue(module, epilogue), f"epilogue_{epilogue.name}", 5)
    run(at(x), at(bias), at(out), rows, stride)
    t, half = torch.from_numpy(x + bias), GROUP_OUTPUTS // 2
    expected = {
        Epilogue.STORE: t,
        Epilogue.ADD: t + torch.from_numpy(before[:, :GROUP_OUTPUTS]),
        Epilogue.SWIGLU: torch.nn.functional.silu(t[:, :half]) * t[:, half:],
        Epilogue.GELU: torch.nn.functional.gelu(t, approximate="tanh"),
    }[epilogue].numpy()
    outputs = expected.shape[1]
    assert np.abs(out[:, :outputs] - expected).max() < 1e-5
    assert (out[:, outputs:] == before[:, outputs:]).all(), "nothing beside it is written"


@pytest.mark.parametrize("past", [0, 1, LANES - 1, LANES, 3 * LANES + 5])
@pytest.mark.parametrize("tokens", [1, 20])
def test_attention_matches_torch(past: int, tokens: int) -> None:
    blocks, width = 6, 2 * HEAD_DIM
    qkv = noise(tokens, 3 * width) * 2
    keys, values = (noise(blocks * LANES, HEAD_DIM, seed=seed).astype(np.float16) for seed in (1, 2))
    # Whatever lies beyond the cached positions must not matter.
    keys[past:], values[past:] = np.nan, np.nan
    key_blocks = np.ascontiguousarray(keys.reshape(blocks, LANES, HEAD_DIM).transpose(0, 2, 1))
    cached_values = values.copy()
    out, logits = np.zeros((tokens, width), np.float32), np.zeros(blocks * LANES, np.float32)
    run = compiled(lambda m: emit_attention(m, head_dim=HEAD_DIM, rotary=False), "attention", 10)
    unused = noise(1)
    arrays = qkv[:, HEAD_DIM:], key_blocks, cached_values, unused, unused, out, logits
    run(*(part.ctypes.data for part in arrays), tokens, past, width)  # the second of two heads
    q, k, v = (
        torch.from_numpy(qkv[:, n * width + HEAD_DIM : n * width + 2 * HEAD_DIM].copy()) for n in range(3)
    )
    all_keys = torch.cat([torch.from_numpy(keys[:past]), k.half()]).float()
    all_values = torch.cat([torch.from_numpy(values[:past]), v.half()]).float()
    mask = torch.arange(past + tokens)[None] <= torch.arange(past, past + tokens)[:, None]
    expected = torch.nn.functional.scaled_dot_product_attention(q, all_keys, all_values, attn_mask=mask)
    assert np.abs(out[:, :HEAD_DIM] - expected.numpy()).max() < 1e-4
    assert (out[:, HEAD_DIM:] == 0).all()
    cached_keys = key_blocks.transpose(0, 2, 1).reshape(-1, HEAD_DIM)
    assert (cached_keys[past : past + tokens] == k.half().numpy()).all()
    assert (cached_values[past : past + tokens] == v.half().numpy()).all()


def test_gate_and_up_outputs_lie_in_the_same_group() -> None:
    gate, up = torch.arange(128)[:, None], torch.arange(128)[:, None] + 1000
    first = interleave_gate(gate, up)[:GROUP_OUTPUTS, 0].tolist()
    assert first == [*range(32), *range(1000, 1032)]


def test_outputs_are_padded_with_zeros_to_a_whole_group() -> None:
    codes, scales = tile_weight(quantize_weights([torch.from_numpy(noise(3, QUANT_BLOCK))]), signed=True)
    assert codes.shape == (GROUP_OUTPUTS // 16, QUANT_BLOCK // 4, 16, 4)
    assert int(codes[0, :, 3:].abs().max()) == int(codes[1:].abs().max()) == 0
    assert float(scales[0, 0, 3:].max()) == 0 < float(scales[0, 0, 0])
