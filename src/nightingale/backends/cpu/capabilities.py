"""Reasons why the kernels of this package should not run a network here.

No clock decides whether T3 uses them: ONNX Runtime rounds sums in another order, so a decision that varied
from start to start would give the same seed other tokens. It depends on the model's sizes, on the processor's
instructions, and on a self-test: a small T3 whose logits must be close to those of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from torch import Tensor, nn

from nightingale.backends.shared import capability_checks
from nightingale.backends.shared.capability_checks import fastest_s, width_reason
from nightingale.backends.shared.packed_t3 import pack
from nightingale.decoding.runner import StepInput
from nightingale.models.chatterbox.hift.generator import ResBlock, Snake
from nightingale.models.chatterbox.s3gen.estimator import AttentionProduct
from nightingale.models.chatterbox.t3.config import MULTILINGUAL, NANO, Gpt2Config, LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.conv import same_conv
from nightingale.models.layers.weight_layout import pack_for_rendering

PACKAGE: Final = "llvmlite"
WIDTH_MULTIPLE, HEAD_DIM_MULTIPLE = 128, 32
"""A quantization block; two halves of a head, each in whole vectors."""
PROBE_CHANNELS, PROBE_COLUMNS = (128, 128), 2048
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


def unsupported_reason(config: T3Config, bits: int = 8) -> str | None:
    """Return why T3 with weights of 8 or 4 bits should not be run by the kernels here, or None if it should.

    The first call that gets past the sizes compiles or loads the kernels, and runs the self-test.
    """
    if (reason := width_reason(config, WIDTH_MULTIPLE)) is not None:
        return reason
    if (head_dim := config.backbone.width // config.backbone.heads) % HEAD_DIM_MULTIPLE:
        return f"its attention heads have {head_dim} channels, not a multiple of {HEAD_DIM_MULTIPLE}"
    missing = capability_checks.missing_package_reason(PACKAGE)
    return missing or _t3_reason(isinstance(config.backbone, LlamaConfig), bits)


@cache
def layers_unsupported_reason() -> str | None:
    """Return why the flow and the vocoder should not use int8 layers here, or None if they should."""
    missing = capability_checks.missing_package_reason(PACKAGE)
    return missing or _self_test_reason(layers_test_error)


@cache
def vocoder_unsupported_reason(threads: int) -> str | None:
    """Return why the float32 vocoder should not use these kernels here, or None if it should; measures once."""
    missing = capability_checks.missing_package_reason(PACKAGE)
    if (reason := missing or _self_test_reason(vocoder_test_error)) is not None:
        return reason
    if (speedup := vocoder_speedup()) >= capability_checks.MIN_SPEEDUP:
        return None
    return (
        f"its convolutions are {speedup:.1f} times as fast as torch's with {threads} threads; "
        f"at least {capability_checks.MIN_SPEEDUP} is required"
    )


@cache
def _t3_reason(rotary: bool, bits: int = 8) -> str | None:
    return _self_test_reason(
        lambda: t3_test_error(TEST_CONFIGS[rotary], partial(open_test_runner, bits=bits))
    )


def _self_test_reason(error_of: Callable[[], float]) -> str | None:
    try:
        from nightingale.backends.cpu.kernels.target import detect_target

        if isinstance(target := detect_target(), str):
            return target
        error = error_of()
    except Exception as problem:  # a broken installation, or another version of LLVM, may raise anything
        return capability_checks.failed_package_reason(PACKAGE, problem)
    # NaN must fail too.
    if not error < MAX_ERROR:
        return f"the kernels failed their self-test: relative error {error:.2f}, {MAX_ERROR} is allowed"
    return None


def open_test_runner(t3: T3, folder: Path, bits: int) -> Any:
    from nightingale.backends.cpu.int8_layout import TiledFormat, round_weights
    from nightingale.backends.cpu.runner import Int8Runner

    packed = pack(t3.config, t3.state_dict(), TiledFormat(bits), cache_dir=folder, source="self-test")
    if bits == 4:  # the rounding of the weights is no error of the kernels
        round_weights(t3, bits)
    return Int8Runner(t3, packed, **TEST_POOL)


@torch.inference_mode()
def t3_test_error(config: T3Config, open_runner: Callable[[T3, Path], Any]) -> float:
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
    with TemporaryDirectory(prefix="nightingale-test-") as folder:
        runner = open_runner(t3, Path(folder))
        exact = [t3.next_logits(prompt, kv_cache)]
        logits = [torch.from_numpy(runner.prefill_embeddings(0, prompt.numpy()))]
        for position, token in enumerate((7, 4000), 1):
            exact.append(t3.next_logits(t3.embed_speech(torch.full((2, 1), token), position), kv_cache))
            (step,) = runner.step([StepInput(slot=0, token=token, position=position)])
            logits.append(torch.from_numpy(step))
    return _largest_error(zip(logits, exact, strict=True))


@torch.inference_mode()
def layers_test_error() -> float:
    """Return the largest relative error of the int8 layers, one of each type."""
    from nightingale.backends.cpu.int8_networks import with_int8_layers

    rng = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        conv, snake = same_conv(32, 8, 3, dilation=2, causal=True), Snake(8)
        layers: list[Any] = [nn.Linear(128, 64), nn.Linear(64, 64), conv, snake, AttentionProduct()]
    for layer in layers[:3]:
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=rng))
    shapes = (5, 128), (18, 64), (1, 32, 37), (1, 8, 37)
    q, k = (torch.randn(1, 2, 20, 64, generator=rng) for _ in range(2))
    inputs: list[Any] = [[torch.randn(shape, generator=rng)] for shape in shapes]
    inputs.append([q, k, k, None])
    pairs = zip(with_int8_layers(nn.ModuleList(layers)), layers, inputs, strict=True)
    return _largest_error((ours(*x), plain(*x)) for ours, plain, x in pairs)


@torch.inference_mode()
def vocoder_test_error() -> float:
    """Return the relative error of a residual block in float32."""
    from nightingale.backends.cpu.winograd_networks import WinogradResBlock

    rng = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        block = ResBlock(16, 7).requires_grad_(False)
    for weight in block.parameters():
        if weight.dim() > 1:
            weight.copy_(torch.randn(weight.shape, generator=rng) / weight[0].numel() ** 0.5)
    x = torch.randn(1, 16, 301, generator=rng)
    return _largest_error([(WinogradResBlock(block)(x), block(x))])


@torch.inference_mode()
def vocoder_speedup() -> float:
    """Return how many times faster a convolution is than torch's."""
    from nightingale.backends.cpu.winograd_networks import WinogradConv1d

    with torch.random.fork_rng(devices=[]):
        plain = same_conv(*PROBE_CHANNELS, 7, causal=False).requires_grad_(False)
    x = torch.ones(1, PROBE_CHANNELS[0], PROBE_COLUMNS)
    ours = WinogradConv1d(plain)
    pack_for_rendering(plain)
    return fastest_s(lambda: plain(x)) / fastest_s(lambda: ours(x))


def _largest_error(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the largest relative error of values and exact values; NaN if one is NaN."""
    errors = [(got - exact).square().mean().sqrt() / exact.std() for got, exact in pairs]
    return float(torch.stack(errors).max())
