"""Reasons why the kernels of this package should not run a network here, and the objects that run them.

No clock decides whether T3 uses them: ONNX Runtime rounds sums in another order, so a decision that varied
from start to start would give the same seed other tokens. It depends on the model's sizes, on the processor's
instructions, and on a self-test: a small T3 whose logits must be close to those of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from nightingale.backends.shared.capability_checks import (
    SMALL_MODEL_WEIGHTS,
    failed_package_reason,
    missing_package_reason,
    weight_count,
    width_reason,
)
from nightingale.backends.shared.packed_t3 import PackedWeights, WeightFormat, pack
from nightingale.decoding.runner import StepInput
from nightingale.models.chatterbox.hift.generator import Snake
from nightingale.models.chatterbox.s3gen.estimator import AttentionProduct
from nightingale.models.chatterbox.t3.config import MULTILINGUAL, NANO, Gpt2Config, LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.conv import same_conv

# llvmlite is optional, and these import it.
if TYPE_CHECKING:
    from nightingale.backends.cpu.int8_networks import KernelContext
    from nightingale.backends.cpu.kernels.jit import CompiledModule
    from nightingale.backends.cpu.kernels.target import Target
    from nightingale.backends.cpu.runner import Int8Runner

PACKAGE: Final = "llvmlite"
WIDTH_MULTIPLE, HEAD_DIM_MULTIPLE = 128, 32
"""A quantization block; two halves of a head, each in whole vectors."""
FAST_LAYER_ISAS: Final = ("neon",)
"""Int8 layers were measured to be faster than torch on these only; on x86 the waiting threads of torch occupy
the cores that the kernels need (dev/LOG.md)."""
TEST_CONFIGS: Final = {
    True: replace(MULTILINGUAL, text_vocab=8, backbone=LlamaConfig(layers=1, width=128, heads=2, ffn=256)),
    False: replace(NANO, text_vocab=8, backbone=Gpt2Config(layers=1, width=128, heads=2)),
}
"""T3 of the self-test, with rotary positions and without."""
TEST_POOL: Final[dict[str, Any]] = {
    "slots": 1, "rows_per_slot": 2, "capacity": 48, "batched": True, "max_new_tokens": 8, "threads": 2
}  # fmt: skip
ATTENTION_GAIN: Final = 6.0
"""Scales the attention's output in the self-test, so that a wrong position changes the logits."""
MAX_ERROR: Final = 0.06
"""Relative to the standard deviation of the logits: int8 changes 0.02, a missing position 0.15."""


def unsupported_reason(config: T3Config, *, cache_dir: Path | None = None) -> str | None:
    """Return why T3 should not be run by the kernels here, or None if it should.

    The first call that gets past the sizes compiles the kernels, or loads them from `cache_dir`, and runs the
    self-test.
    """
    if (reason := width_reason(config, WIDTH_MULTIPLE)) is not None:
        return reason
    if (head_dim := config.backbone.width // config.backbone.heads) % HEAD_DIM_MULTIPLE:
        return f"its attention heads have {head_dim} channels, not a multiple of {HEAD_DIM_MULTIPLE}"
    if weight_count(config) <= SMALL_MODEL_WEIGHTS:
        return "onnxruntime starts sooner with such a small model"
    return missing_package_reason(PACKAGE) or _t3_reason(isinstance(config.backbone, LlamaConfig), cache_dir)


@cache
def layers_unsupported_reason(cache_dir: Path | None = None) -> str | None:
    """Return why the flow and the vocoder should not use int8 layers here, or None if they should."""
    return missing_package_reason(PACKAGE) or _self_test_reason(
        lambda: layers_test_error(cache_dir), FAST_LAYER_ISAS
    )


@cache
def _t3_reason(rotary: bool, cache_dir: Path | None) -> str | None:
    return _self_test_reason(
        lambda: t3_test_error(TEST_CONFIGS[rotary], partial(open_test_runner, code_cache=cache_dir))
    )


def _self_test_reason(error_of: Callable[[], float], fast_isas: Collection[str] = ()) -> str | None:
    try:
        from nightingale.backends.cpu.kernels.target import detect_target

        if isinstance(target := detect_target(), str):
            return target
        if fast_isas and target.isa not in fast_isas:
            return "next to torch's own threads int8 layers are no faster than float32 on this processor"
        error = error_of()
    except Exception as problem:  # a broken installation, or another version of LLVM, may raise anything
        return failed_package_reason(PACKAGE, problem)
    # NaN must fail too.
    if not error < MAX_ERROR:
        return f"the kernels failed their self-test: relative error {error:.2f}, {MAX_ERROR} is allowed"
    return None


def open_runner(t3: T3, packed: PackedWeights, *, cache_dir: Path | None = None, **pool: Any) -> Int8Runner:
    """Open a runner over weights in `weight_format()`; `pool` is passed on to it."""
    from nightingale.backends.cpu.runner import Int8Runner

    backbone = t3.config.backbone
    module = _t3_module(backbone.width // backbone.heads, isinstance(backbone, LlamaConfig), cache_dir)
    return Int8Runner(t3, packed, module, **pool)


def weight_format() -> WeightFormat:
    """Return the format of packed weights that this machine's kernels read."""
    from nightingale.backends.cpu.int8_layout import TiledFormat

    return TiledFormat(_target().signed_weights)


@cache
def kernel_context(cache_dir: Path | None = None) -> KernelContext:
    """Return the context of all int8 layers of the flow and the vocoder."""
    from nightingale.backends.cpu.int8_networks import KernelContext
    from nightingale.backends.cpu.kernels.render_operations import emit_render_module

    module = _compiled("render", partial(emit_render_module, _target()), cache_dir)
    return KernelContext(module, signed_weights=_target().signed_weights)


@cache
def _t3_module(head_dim: int, rotary: bool, cache_dir: Path | None) -> CompiledModule:
    from nightingale.backends.cpu.kernels.t3_operations import emit_t3_step

    emit = partial(emit_t3_step, _target(), head_dim=head_dim, rotary=rotary)
    return _compiled(f"t3 {head_dim} {rotary}", emit, cache_dir)


def _compiled(name: str, emit: Callable[[], Any], cache_dir: Path | None) -> CompiledModule:
    from nightingale.backends.cpu.kernels.jit import CompiledModule, compile_cached

    return CompiledModule(compile_cached(emit, _target(), name=name, cache_dir=cache_dir), _target())


@cache
def _target() -> Target:
    from nightingale.backends.cpu.kernels.target import detect_target

    if isinstance(target := detect_target(), str):
        raise RuntimeError(target)
    return target


def open_test_runner(t3: T3, folder: Path, *, code_cache: Path | None = None) -> Any:
    packed = pack(t3.config, t3.state_dict(), weight_format(), cache_dir=folder, source="self-test")
    return open_runner(t3, packed, cache_dir=code_cache, **TEST_POOL)


@torch.inference_mode()
def t3_test_error(config: T3Config, open_runner: Callable[[T3, Path], Any] = open_test_runner) -> float:
    """Return the largest relative error of a small T3's logits, after a prompt and after two tokens."""
    rng = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        t3 = T3(config).eval().requires_grad_(False)
    for name, weight in t3.named_parameters():
        if weight.ndim == 2:
            gain = ATTENTION_GAIN if "o_proj." in name or "attn.c_proj." in name else 1.0
            weight.copy_(torch.randn(weight.shape, generator=rng) * gain * config.backbone.width**-0.5)
    prompt = torch.randn(2, 40, config.backbone.width, generator=rng)
    kv_cache = t3.new_kv_cache(rows=2, capacity=48)
    exact = [t3.next_logits(prompt, kv_cache)]
    with TemporaryDirectory(prefix="nightingale-test-") as folder:
        runner = open_runner(t3, Path(folder))
        logits = [runner.prefill_embeddings(0, prompt)]
        for position, token in enumerate((7, 4000), 1):
            exact.append(t3.next_logits(t3.embed_speech(torch.full((2, 1), token), position), kv_cache))
            (step,) = runner.step([StepInput(slot=0, token=token, position=position)])
            logits.append(torch.from_numpy(step))
    return max(_relative_error(a, b) for a, b in zip(logits, exact, strict=True))


@torch.inference_mode()
def layers_test_error(cache_dir: Path | None = None) -> float:
    """Return the largest relative error of the int8 layers, one of each type."""
    from nightingale.backends.cpu.int8_networks import FusedSnake, Int8Attend, Int8Conv1d, Int8Linear

    rng = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        wide, narrow = torch.nn.Linear(128, 64), torch.nn.Linear(64, 64)
        conv, snake = same_conv(32, 8, 3, dilation=2, causal=True), Snake(8)
    for layer in (wide, narrow, conv):
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=rng))
    context = kernel_context(cache_dir)
    pairs: list[tuple[torch.nn.Module, torch.nn.Module, tuple[int, ...]]] = [
        (wide, Int8Linear(wide, context), (5, 128)),
        (narrow, Int8Linear(narrow, context), (18, 64)),
        (conv, Int8Conv1d(conv, context), (1, 32, 37)),
        (snake, FusedSnake(snake, context), (1, 8, 37)),
    ]
    inputs = [torch.randn(shape, generator=rng) for _, _, shape in pairs]
    errors = [_relative_error(ours(x), plain(x)) for (plain, ours, _), x in zip(pairs, inputs, strict=True)]
    queries, keys = (torch.randn(1, 2, 20, 64, generator=rng) for _ in range(2))
    attended = [attend(queries, keys, keys, None) for attend in (Int8Attend(context), AttentionProduct())]
    return max(*errors, _relative_error(*attended))


def _relative_error(got: Tensor, exact: Tensor) -> float:
    return float((got - exact).square().mean().sqrt() / exact.std())
