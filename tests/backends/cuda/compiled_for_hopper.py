"""Compile every Triton kernel for a Hopper GPU, at the sizes of the product, on a machine without one.

The interpreter accepts programs that the compiler refuses. test_compilation.py runs this in a process of its
own: Triton decides when a kernel is defined whether it is interpreted. It prints one kernel per line.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from parity.tiny import TINY_GPT2, TINY_LLAMA, fill
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from nightingale.backends.cuda import random_kernels, triton_support
from nightingale.backends.cuda.flow import flow_launches, packed_estimator
from nightingale.backends.cuda.flow.flow_steps import FlowSteps
from nightingale.backends.cuda.hift import packed_hift
from nightingale.backends.cuda.t3 import sampling_kernels, t3_kernels
from nightingale.backends.cuda.t3.batched_sampling import DecodeState
from nightingale.backends.cuda.triton_support import Tuning
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.config import FlowConfig
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.model import T3


class Hopper:
    """A driver without a device: kernels are compiled for it and never launched."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def launcher_cls(self, src: Any, metadata: Any) -> None:
        """Print which launchers are built ahead; the real ones need CUDA's headers."""
        del metadata
        sys.stdout.write(f"launcher:{src.fn.fn.__name__}\n")  # one call, since threads write too


def compile_only(kernel: JITFunction, *args: Any, run: Any = JITFunction.run, **options: Any) -> Any:
    compiled = run(kernel, *args, **{**options, "warmup": True})
    sys.stdout.write(f"{kernel.fn.__name__}\n")
    return compiled


def compile_t3() -> None:
    x, ones = torch.zeros(2, 1024).bfloat16(), torch.ones(1024).bfloat16()
    weight, lengths = torch.zeros(2048, 1024).bfloat16(), torch.zeros(2, dtype=torch.int64)
    cache, table = torch.zeros(2, 16, 64, 64).bfloat16(), torch.zeros(64, 64).bfloat16()
    for tuning in (Tuning(8, 512, 4, True), Tuning(4, 256, 4, False)):
        linear = {"norm_weight": ones, "tuning": tuning}
        t3_kernels.linear(x, weight, **linear, norm=t3_kernels.RMS_NORM, gated=True)
        t3_kernels.linear(x, weight, **linear, norm=t3_kernels.LAYER_NORM, bias=torch.zeros(2048), gelu=True)
        t3_kernels.linear(x, weight[:1024], tuning, residual=x)
        for rotation in (None, (table, table)):
            t3_kernels.attend(
                torch.zeros(2, 3072).bfloat16(), rotation, cache, cache, lengths, pdl=tuning.pdl
            )
    t3_kernels.rms_norm(x, ones)
    t3_kernels.swiglu(x)


def compile_random() -> None:
    keys = torch.zeros(4, dtype=torch.int64)
    for rows, width in ((960, 9), (37, 80)):
        random_kernels.normal(keys, keys, rows, width)


def compile_sampling() -> None:
    for rows, vocab, order in ((2, 8194, "chatterbox"), (1, 6563, "turbo")):
        state = DecodeState.empty(slots=2, rows=rows, vocab=vocab, steps=4, device=torch.device("cpu"))
        t3 = fill(T3(TINY_LLAMA if rows == 2 else TINY_GPT2))
        for cuts in (False, True):
            drawn = sampling_kernels.draw(state, order=order, cuts=cuts)  # type: ignore[arg-type]
            sampling_kernels.append(t3, drawn, state, None, order=order)  # type: ignore[arg-type]


def compile_flow() -> None:
    small = {"encoder_width": 64, "encoder_heads": 4, "encoder_blocks": 1, "encoder_up_blocks": 1}
    config = FlowConfig(**small, encoder_ffn=64, estimator_mid_stages=1, estimator_stage_blocks=1)
    steps = FlowSteps(fill(Flow(config)), steps=1, precision=torch.bfloat16)
    estimator = packed_estimator.PackedEstimator(steps, "eager")
    for rows in (packed_estimator.TILE, flow_launches.MANY_ROWS):
        estimator.compile(rows)


def compile_hift() -> None:
    hift = fill(Hift(HiftConfig()))
    for dtype in (torch.float16, torch.float32):
        packed = packed_hift.PackedHift(hift, dtype)
        del packed._stages[1:]  # the first and widest one has all kinds of launches
        packed.compile(16, 204)


if __name__ == "__main__":
    driver.set_active(Hopper())
    JITFunction.run = compile_only
    triton_support.supports_pdl = flow_launches.supports_pdl = lambda _: True
    with torch.inference_mode():
        compile_random()
        compile_sampling()
        compile_t3()
        compile_flow()
        compile_hift()
