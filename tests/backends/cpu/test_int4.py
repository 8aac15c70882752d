"""Int4 weights of T3: their codes, the kernel bit for bit, and whole steps."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("llvmlite")
from backends.int8_reference import quantize_t3
from backends.small_t3 import GPT2, prompt, relative_error, small_t3
from llvmlite import ir

from nightingale.backends.cpu import capabilities
from nightingale.backends.cpu.int8_layout import TiledFormat, round_weights, tile_weight
from nightingale.backends.cpu.kernels.int8_gemm import GEMM_ROWS, GROUP_OUTPUTS, ROW_PADDING, emit_gemm
from nightingale.backends.cpu.kernels.jit import CompiledModule, compile_module
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, detect_target
from nightingale.backends.cpu.runner import Int8Runner
from nightingale.backends.shared.int8_blocks import INT4_BLOCK, INT4_GROUP, ZERO_POINT
from nightingale.backends.shared.packed_t3 import pack
from nightingale.backends.shared.quantize import dequantize, quantize_blocks, quantize_weights
from nightingale.decoding.runner import StepInput
from nightingale.models.chatterbox.t3.model import T3

TARGET = detect_target()
if isinstance(TARGET, str):
    pytest.skip(TARGET, allow_module_level=True)
Floats = NDArray[np.float32]
K = 5 * INT4_BLOCK


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_weight_is_rounded_by_half_a_scale_and_the_largest_sets_it() -> None:
    weight = noise(8, K)
    weight[3, :INT4_BLOCK] = 0
    codes, scales = quantize_weights([weight], bits=4)
    rounded = dequantize(quantize_weights([weight], bits=4))
    steps = (rounded - weight).view_as(codes).abs() / (16 * scales.abs()).clamp_min(1e-9)[..., None]
    # The largest weights of the other sign may be a whole scale away: 7 is the largest code.
    assert 0.49 < float(steps.max()) <= 1.01
    assert float((steps > 0.501).float().mean()) < 0.02
    assert 0.07 < float((rounded - weight).norm() / weight.norm()) < 0.1
    assert int((scales[3, 0] != 0).sum()) == 0
    assert torch.equal(rounded[3, :INT4_BLOCK], torch.zeros(INT4_BLOCK))
    assert INT4_GROUP == DOT_INPUTS


@pytest.mark.parametrize("signed", [True, False])
def test_a_byte_holds_the_codes_of_two_groups(signed: bool) -> None:
    quantized = quantize_weights([noise(GROUP_OUTPUTS, K)], bits=4)
    packed, scales = tile_weight(quantized, signed=signed, bits=4)
    assert packed.numel() == GROUP_OUTPUTS * K // 2
    assert scales.dtype == torch.float16
    whole, _ = tile_weight(quantized, signed=signed)
    low = packed << 4 if signed else (packed << 4) + ZERO_POINT
    assert torch.equal(torch.stack([low, packed], 2).flatten(1, 2), whole)
    tiled_back = scales.float().transpose(1, 2).reshape(GROUP_OUTPUTS, -1) / 16
    assert torch.equal(tiled_back, quantized.scales)


def reference_gemm(weight: torch.Tensor, x: torch.Tensor) -> Floats:
    """Return the product in numpy, in the order of the kernel, each multiply-add rounded once."""
    codes, scales = (part.numpy() for part in quantize_weights([weight], bits=4))
    x_codes, x_scales = (part.numpy() for part in quantize_blocks(x, INT4_BLOCK))
    w = codes.astype(np.int64) - ZERO_POINT
    total: Floats = np.zeros((len(x), len(weight)), np.float32)
    for block in range(w.shape[1]):
        sums = x_codes[:, block].astype(np.int64) @ w[:, block].T
        scale = (16 * scales[:, block]) * x_scales[:, block, None]
        total = (sums * scale.astype(np.float64) + total).astype(np.float32)
    return total / np.float32(16)


@pytest.mark.parametrize("rows", GEMM_ROWS)
def test_the_kernel_equals_the_numpy_reference_bit_for_bit(rows: int) -> None:
    weight, x = noise(GROUP_OUTPUTS, K), noise(rows, K, seed=1)
    w_codes, w_scales = tile_weight(quantize_weights([weight], bits=4), signed=TARGET.signed_weights, bits=4)
    codes, x_scales = quantize_blocks(x, INT4_BLOCK)
    x_codes = torch.nn.functional.pad(codes.to(torch.int8).flatten(1), (0, ROW_PADDING))
    corrections = (-ZERO_POINT * codes.sum(-1)).to(torch.int32)
    out = torch.zeros(rows, GROUP_OUTPUTS)
    module = ir.Module("test")
    emit_gemm(module, TARGET, rows, INT4_BLOCK, bits=4)
    optimized, machine = compile_module(module, TARGET)
    run = CompiledModule(machine.emit_object(optimized), TARGET).function(f"gemm_{rows}_{INT4_BLOCK}", 7)
    arrays = w_codes, w_scales, x_codes.contiguous(), x_scales.contiguous(), corrections.contiguous(), out
    run(*(array.data_ptr() for array in arrays), K)
    assert np.array_equal(out.numpy(), reference_gemm(weight, x))
    assert relative_error(out, x @ weight.t()) < 0.15


def test_the_kernels_pass_their_self_test() -> None:
    open_runner = partial(capabilities.open_test_runner, bits=4)
    assert capabilities.t3_test_error(capabilities.TEST_CONFIGS[False], open_runner) < 0.02
    assert capabilities.unsupported_reason(GPT2, bits=4) is None


def runner_over(t3: T3, folder: Path, *, batched: bool = True) -> Int8Runner:
    packed = pack(t3.config, t3.state_dict(), TiledFormat(4), cache_dir=folder, source="test")
    pool = {"slots": 3, "rows_per_slot": 1, "capacity": 40, "max_new_tokens": 24, "threads": 2}
    return Int8Runner(t3, packed, batched=batched, **pool)


def test_steps_have_the_error_of_the_reference_with_the_same_quantization(tmp_path: Path) -> None:
    t3, reference, rounded = (small_t3(GPT2) for _ in range(3))
    runner = runner_over(t3, tmp_path)
    quantize_t3(reference, bits=4)
    round_weights(rounded, bits=4)
    x, tokens = prompt(1, 12, 2), [5, 17, 290, 41]
    caches = [one.new_kv_cache(rows=1, capacity=40) for one in (t3, reference, rounded)]
    errors = []
    for position, token in enumerate([None, *tokens]):
        logits = []
        for one, cache in zip((t3, reference, rounded), caches, strict=True):
            new = x if token is None else one.embed_speech(torch.tensor([[token]]), position)
            logits.append(one.next_logits(new, cache))
        step = StepInput(0, token or 0, position)
        ours = runner.prefill_embeddings(0, x) if token is None else runner.step([step])[0]
        errors.append([relative_error(ours, expected) for expected in logits])
    plain, quantized, inputs_only = np.mean(errors, axis=0)
    assert 0.03 < plain < 0.2, "the weights are rounded to four bits"
    assert quantized < plain / 4
    assert inputs_only < plain / 4, "inputs in int8 add little"


def test_a_batch_gives_the_same_bits_as_its_utterances_alone(tmp_path: Path) -> None:
    t3 = small_t3(GPT2)
    together, alone = (runner_over(t3, tmp_path, batched=batched) for batched in (True, False))
    for slot, time in enumerate((5, 11, 8)):
        x = prompt(1, time, slot).numpy()
        first, second = together.prefill_embeddings(slot, x), alone.prefill_embeddings(slot, x)
        assert np.array_equal(first, second)
    for position in range(1, 4):
        turns = [StepInput(slot, 10 * slot + position, position) for slot in range(3)]
        for a, b in zip(together.step(turns), alone.step(turns), strict=True):
            assert np.array_equal(a, b)
