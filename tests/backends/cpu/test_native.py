"""Machine code beside the same arithmetic in torch: each part by itself, and the threads around it."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

pytest.importorskip("llvmlite")
from llvmlite import binding, ir

from nightingale.backends.cpu import t3_kernels as kernels
from nightingale.backends.cpu.thread_pool import CLAIM_LENGTH, JOB_LENGTH, OP_LENGTH, Crew, Job, Op
from nightingale.backends.cpu.t3_kernels import BLOCK, LANES, PER_GROUP, ROWS
from nightingale.backends.cpu.int8_layout import by_halves, laid_out
from nightingale.backends.cpu.t3_program import write_step
from nightingale.backends.cpu.target import Code, Target, compiled, machine_code, of_this_machine
from nightingale.backends.cpu.llvm_builder import F32, I64, Function
from nightingale.backends.shared.quantize import RoundedLinear, round_blocks, round_weight

TARGET = of_this_machine()
if isinstance(TARGET, str):
    pytest.skip(TARGET, allow_module_level=True)

Floats = NDArray[np.float32]
HEAD = 64


def made(write: Callable[[ir.Module], object]) -> Code:
    module = ir.Module("test")
    write(module)
    return Code(machine_code(lambda: module, TARGET, name="test", home=None), TARGET)


def at(array: NDArray[Any]) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data


def some(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_function_is_what_was_written() -> None:
    def sums(module: ir.Module) -> None:
        f = Function(module, "sums", {"x": F32, "count": I64})
        x, total = f.array("x"), f.variable(f.zeros(F32, 16))
        with f.loop(f["count"], step=16) as i:
            total.value += x.vector(i, 16)
        with f.either(f["count"] > 16) as (many, few):
            with many:
                x[0] = total.value.sum()
            with few:
                x[0] = -total.value.largest()
        f.end()

    run, x = made(sums).function("sums", 2), some(64)
    wanted = x.sum(), -x[:16].max()
    for count, want in zip((64, 16), wanted, strict=True):
        y = x.copy()
        run(at(y), count)
        assert y[0] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("name", ["exp", "sigmoid", "gelu"])
def test_curves_are_torchs_to_the_last_places(name: str) -> None:
    def curve(module: ir.Module) -> None:
        f = Function(module, "curve", {"x": F32, "count": I64})
        with f.loop(f["count"], step=LANES) as i:
            f.array("x")[i] = getattr(kernels, name)(f.array("x").vector(i, LANES))
        f.end()

    plain = {"exp": torch.exp, "sigmoid": torch.sigmoid}.get(
        name, lambda x: torch.nn.functional.gelu(x, approximate="tanh")
    )
    run = made(curve).function("curve", 2)
    x = np.linspace(-86, 86, 4096, dtype=np.float32)
    y = x.copy()
    run(at(y), len(y))
    wanted = plain(torch.from_numpy(x).double()).numpy()
    # Where GELU is next to nothing, next to nothing is right.
    assert np.allclose(y, wanted, rtol=1e-6, atol=1e-6 if name == "gelu" else 1e-37)
    far = np.array([-1e30, -1e4, -100, *[0.0] * 13], np.float32)
    run(at(far), len(far))
    assert np.abs(far[1:3]).max() < 1e-30
    assert np.isfinite(far).all()


@pytest.mark.parametrize("norm", [kernels.PLAIN, kernels.ROOT_MEAN_SQUARE, kernels.LAYER])
def test_inputs_are_normed_and_rounded_as_torch_does(norm: int) -> None:
    width = 3 * BLOCK
    x, weight, bias = some(width) * 3 + 0.5, some(width, seed=1), some(width, seed=2)
    x[BLOCK : 2 * BLOCK] = 0  # a block that is silent, where no norm shifts it
    codes, scales, zeros = np.zeros(width, np.int8), some(3), np.zeros(3, np.int32)
    run = made(lambda m: kernels.write_rounding(m, TARGET, norm)).function(f"round_{norm}_{BLOCK}", 7)
    run(at(x), at(weight), at(bias), at(codes), at(scales), at(zeros), width)
    t, w, b = (torch.from_numpy(v) for v in (x, weight, bias))
    normed = {
        kernels.PLAIN: t,
        kernels.ROOT_MEAN_SQUARE: w * (t * torch.rsqrt(t.square().mean() + 1e-5)),
        kernels.LAYER: torch.nn.functional.layer_norm(t, (width,), w, b, 1e-5),
    }[norm]
    whole, steps = round_blocks(normed, BLOCK)
    assert np.allclose(scales, steps.numpy(), rtol=1e-5)
    away = np.abs(codes - whole.flatten().numpy())
    assert away.max() <= 1, "halves may tip"
    assert (away > 0).mean() < 0.01
    if not TARGET.signed:
        assert (zeros == -128 * codes.reshape(3, BLOCK).astype(np.int32).sum(-1)).all()


def product(rows: int, weight: Tensor, x: Tensor) -> Floats:
    """One group of outputs."""
    rounded = round_weight(weight)
    codes, scales = laid_out(rounded.codes, rounded.scales, signed=TARGET.signed)
    whole, steps = round_blocks(x, BLOCK)
    inputs = whole.to(torch.int8).numpy().copy()
    zeros = (-128 * whole.sum(-1)).to(torch.int32).numpy().copy()
    out = np.zeros((rows, PER_GROUP), np.float32)
    run = made(lambda m: kernels.write_product(m, TARGET, rows)).function(f"product_{rows}_{BLOCK}", 7)
    given = codes.numpy(), scales.numpy(), inputs, steps.numpy().copy(), zeros, out
    run(*(at(part) for part in given), x.shape[1])
    return out


@pytest.mark.parametrize("rows", ROWS)
def test_a_product_is_its_twins(rows: int) -> None:
    weight, x = torch.from_numpy(some(PER_GROUP, 5 * BLOCK)), torch.from_numpy(some(rows, 5 * BLOCK, seed=1))
    wanted = RoundedLinear(weight, None)(x)
    assert np.abs(product(rows, weight, x) - wanted.numpy()).max() < 1e-4 * float(wanted.abs().max())


def test_the_largest_sums_do_not_overflow() -> None:
    weight, x = torch.ones(PER_GROUP, 2 * BLOCK), torch.ones(2, 2 * BLOCK)
    for sign in (1, -1):
        assert product(2, weight * sign, x) == pytest.approx(2 * BLOCK * sign, rel=1e-5)


@pytest.mark.parametrize("how", [kernels.STORE, kernels.ADD, kernels.GATED, kernels.GELU])
def test_what_becomes_of_a_product(how: int) -> None:
    rows, stride = 3, 2 * PER_GROUP
    x, bias, out = some(rows, PER_GROUP), some(PER_GROUP, seed=1), some(rows, stride, seed=2)
    if how == kernels.GATED:
        bias[:] = 0
    before = out.copy()
    made(lambda m: kernels.write_finish(m, how)).function(f"finish_{how}", 5)(
        at(x), at(bias), at(out), rows, stride
    )
    t, half = torch.from_numpy(x + bias), PER_GROUP // 2
    wanted = {
        kernels.STORE: t,
        kernels.ADD: t + torch.from_numpy(before[:, :PER_GROUP]),
        kernels.GATED: torch.nn.functional.silu(t[:, :half]) * t[:, half:],
        kernels.GELU: torch.nn.functional.gelu(t, approximate="tanh"),
    }[how].numpy()
    kept = wanted.shape[1]
    assert np.abs(out[:, :kept] - wanted).max() < 1e-5
    assert (out[:, kept:] == before[:, kept:]).all(), "nothing beside it is touched"


@pytest.mark.parametrize("past", [0, 1, LANES - 1, LANES, 3 * LANES + 5])
@pytest.mark.parametrize("tokens", [1, 20])
def test_attention_is_torchs(past: int, tokens: int) -> None:
    blocks, width = 6, 2 * HEAD
    qkv = some(tokens, 3 * width) * 2
    keys, values = (some(blocks * LANES, HEAD, seed=seed).astype(np.float16) for seed in (1, 2))
    # What nobody remembers is not heard, whatever it is.
    keys[past:], values[past:] = np.nan, np.nan
    laid = np.ascontiguousarray(keys.reshape(blocks, LANES, HEAD).transpose(0, 2, 1))
    kept = values.copy()
    heard, scores = np.zeros((tokens, width), np.float32), np.zeros(blocks * LANES, np.float32)
    run = made(lambda m: kernels.write_attention(m, head_width=HEAD, rotary=False)).function("attention", 10)
    nothing = some(1)
    given = qkv[:, HEAD:], laid, kept, nothing, nothing, heard, scores
    addresses = [part.ctypes.data for part in given]  # the second of two heads
    run(*addresses, tokens, past, width)
    q, k, v = (torch.from_numpy(qkv[:, n * width + HEAD : n * width + 2 * HEAD].copy()) for n in range(3))
    all_keys = torch.cat([torch.from_numpy(keys[:past]), k.half()]).float()
    all_values = torch.cat([torch.from_numpy(values[:past]), v.half()]).float()
    mask = torch.arange(past + tokens)[None] <= torch.arange(past, past + tokens)[:, None]
    wanted = torch.nn.functional.scaled_dot_product_attention(q, all_keys, all_values, attn_mask=mask)
    assert np.abs(heard[:, :HEAD] - wanted.numpy()).max() < 1e-4
    assert (heard[:, HEAD:] == 0).all()
    again = laid.transpose(0, 2, 1).reshape(-1, HEAD)[past : past + tokens]
    assert (again == k.half().numpy()).all()
    assert (kept[past : past + tokens] == v.half().numpy()).all()


def test_a_gate_lies_with_what_it_opens() -> None:
    gate, up = torch.arange(128)[:, None], torch.arange(128)[:, None] + 1000
    first = by_halves(gate, up)[:PER_GROUP, 0].tolist()
    assert first == [*range(32), *range(1000, 1032)]


def test_outputs_that_fill_no_group_are_filled_with_zeros() -> None:
    rounded = round_weight(torch.from_numpy(some(3, BLOCK)))
    codes, scales = laid_out(rounded.codes, rounded.scales, signed=True)
    assert codes.shape == (PER_GROUP // 16, BLOCK // 4, 16, 4)
    assert int(codes[0, :, 3:].abs().max()) == int(codes[1:].abs().max()) == 0
    assert float(scales[0, 0, 3:].max()) == 0 < float(scales[0, 0, 0])


X86 = {"avx512": (16, "sapphirerapids"), "avxvnni": (8, "alderlake")}


@pytest.mark.parametrize("name", X86)
@pytest.mark.parametrize("rotary", [True, False])
def test_other_processors_get_code_with_their_instructions(name: str, rotary: bool) -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    triple = "x86_64-unknown-linux-gnu"
    try:
        binding.Target.from_triple(triple)
    except RuntimeError:
        pytest.skip("this LLVM writes no code for x86")
    lanes, cpu = X86[name]
    target = Target(
        name=name, lanes=lanes, signed=False, prefetch=1024, looks_a_ms=1, triple=triple, cpu=cpu, features=""
    )
    module, machine = compiled(write_step(target, head_width=HEAD, rotary=rotary), target)
    text = machine.emit_assembly(module)
    register = {"avx512": "zmm", "avxvnni": "ymm"}[name]
    assert any("vpdpbusd" in line and register in line for line in text.splitlines())
    assert "prefetcht0" in text


def test_code_is_made_once_and_again_if_it_is_damaged(tmp_path: Path) -> None:
    written: list[int] = []

    def write() -> ir.Module:
        written.append(1)
        module = ir.Module("one")
        f = Function(module, "one", {"x": I64}, arrays=("x",))
        f.array("x")[0] = f.number(7)
        f.end()
        return module

    def answer() -> int:
        made_now = machine_code(write, TARGET, name="one", home=tmp_path / "code")
        x = np.zeros(1, np.int64)
        Code(made_now, TARGET).function("one", 1)(at(x))
        return int(x[0])

    assert [answer(), answer()] == [7, 7]
    assert len(written) == 1
    (kept,) = (tmp_path / "code").iterdir()
    good = kept.read_bytes()
    for bad in (good[:-1], good[:40] + bytes([good[40] ^ 1]) + good[41:], b""):
        kept.write_bytes(bad)
        assert answer() == 7
        assert kept.read_bytes() == good
    assert len(written) == 4
    machine_code(write, TARGET, name="two", home=tmp_path / "code")
    assert len(written) == 5, "under another name it is something else"
    machine_code(write, TARGET, name="one", home=kept)  # no folder: then it is not kept
    assert len(written) == 6


class Rig:
    """A program of operations that do nothing but count who did them."""

    def __init__(self, threads: int) -> None:
        self.ops = np.zeros((5, OP_LENGTH), np.int64)
        self.ops[:, Op.KIND] = -1
        self.claims = np.zeros((5, threads, CLAIM_LENGTH), np.int64)
        self.ops[:, Op.CLAIMS] = [at(own) for own in self.claims]
        self.job = np.zeros(JOB_LENGTH, np.int64)
        self.job[[Job.OPS, Job.OP_COUNT, Job.THREADS]] = at(self.ops), len(self.ops), threads
        self.crew = Crew(CODE, self.job, threads)


def step() -> ir.Module:
    return write_step(TARGET, head_width=HEAD, rotary=True)


CODE = Code(machine_code(step, TARGET, name="step", home=None), TARGET)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_meet_after_every_operation_awake_or_asleep(threads: int) -> None:
    rig = Rig(threads)
    for turn in range(300):
        if turn % 100 == 0:
            time.sleep(0.02)  # they fall asleep
        rig.crew.run()
    assert rig.job[Job.CLOCK] == 300 * len(rig.ops)
    assert not rig.claims.any(), "ready for the next step"


def test_threads_end_with_whoever_asked_them() -> None:
    before = set(threading.enumerate())
    rig = Rig(3)
    rig.crew.run()
    own = set(threading.enumerate()) - before
    assert len(own) == 2
    del rig
    gc.collect()
    for thread in own:
        thread.join(10)
        assert not thread.is_alive()
