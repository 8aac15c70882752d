"""Reasons why MLX cannot run a model, and its device; asked before weights are loaded."""

from __future__ import annotations

import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final

from nightingale.backends.base import Machine, ModelInfo, Role, Setup
from nightingale.backends.mlx.host_blas import load_fast_blas
from nightingale.backends.shared.capability_checks import failed_package_reason, ffn_width
from nightingale.errors import DeviceError
from nightingale.install import install_command
from nightingale.models.chatterbox.t3.config import T3Config

MIN_VERSION: Final = (0, 32)
"""The oldest version that was tested."""
DECODER_PRECISIONS: Final = ("float32", "float16", "bfloat16", "int8", "int4")
RENDERER_PRECISIONS: Final = ("float32", "float16", "bfloat16")
GROUP_SIZES: Final = (64, 32)
"""Weights that share a scale, where T3 is quantized."""
BYTES_PER_WEIGHT: Final = {"int8": 1.07, "int4": 0.72}
"""With scales; some of the layers in int4 have six bits."""
RENDERER_BYTES: Final = 600 << 20
"""The flow and the vocoder of official models in float32."""


def is_apple_silicon() -> bool:
    return sys.platform == "darwin" and platform.machine() == "arm64"


def missing_reason() -> str | None:
    """Return why MLX cannot be imported, or None if it can."""
    if find_spec("mlx") is None:
        return f"mlx is not installed ({install_command('mlx')})"
    try:
        found = version("mlx")
    except PackageNotFoundError:
        return f"mlx is not installed ({install_command('mlx')})"
    if tuple(int(number) for number in re.findall(r"\d+", found)[:2]) < MIN_VERSION:
        return f"mlx {found} is too old ({install_command('mlx')})"
    load_fast_blas()
    try:
        import mlx.core  # noqa: F401, is it usable?
    except Exception as error:  # a wheel for another system, or an old C library
        return failed_package_reason("mlx", error)
    return None


def probe(device: str) -> Machine | None:
    """Describe MLX's device: the best one of a Mac, and elsewhere only if it is asked for by name."""
    if device != "mlx" and not (device == "auto" and is_apple_silicon()):
        return None
    if (reason := missing_reason()) is not None:
        if device == "auto":
            return None
        raise DeviceError(
            "the device cannot be used", got=f"'mlx' ({reason})", fix=f"Install MLX: {install_command('mlx')}"
        )
    import mlx.core as mx

    info = mx.device_info()
    memory = info.get("max_recommended_working_set_size")
    return Machine(
        device="mlx",
        name=str(info.get("device_name", platform.machine())),
        instructions="Metal" if mx.metal.is_available() else "CPU",
        free_bytes=int(memory) if memory else None,
    )


def unsupported_reason(role: Role, model: ModelInfo, setup: Setup) -> str | None:
    """Return why MLX cannot take a role here, or None if it can."""
    if model.synthetic:
        return "the model has no weights"
    allowed = DECODER_PRECISIONS if role == "decoder" else RENDERER_PRECISIONS
    if setup.precision not in allowed:
        return f"its {role} computes in {', '.join(allowed)}, not in {setup.precision}"
    if role == "decoder":
        if (reason := memory_reason(model, setup)) is not None:
            return reason
        if setup.precision in ("int8", "int4") and (reason := group_reason(model.preset.t3)) is not None:
            return reason
    return missing_reason()


def weight_bytes(t3: T3Config, precision: str) -> float:
    """Return the bytes of T3's weights: layers, embedding tables and head."""
    itemsize = 4 if precision == "float32" else 2
    tables = t3.backbone.width * (t3.text_vocab + 2 * t3.speech_vocab)
    return t3.backbone.parameters * BYTES_PER_WEIGHT.get(precision, itemsize) + tables * itemsize


def needed_bytes(model: ModelInfo, precision: str) -> float:
    """Return the memory of one request: T3's weights and KV cache, and the renderer."""
    itemsize = 4 if precision == "float32" else 2
    return weight_bytes(model.preset.t3, precision) + model.kv_cache_bytes(1, itemsize) + RENDERER_BYTES


def memory_reason(model: ModelInfo, setup: Setup) -> str | None:
    """Return why a model does not fit the memory that the GPU may use, or None if it fits or that is not known."""
    free, needed = setup.machine.free_bytes, needed_bytes(model, setup.precision)
    if free is None or needed <= free:
        return None
    gib = 1 << 30
    return f"it needs {needed / gib:.1f} GiB of memory, and the GPU may use {free / gib:.1f} GiB"


def group_size_for(inputs: int, bits: int) -> int:
    """Return the group size for a matrix of so many inputs: the larger one only if eight bits need no more scales."""
    large, small = GROUP_SIZES
    return large if bits == 8 and inputs % large == 0 else small


def group_reason(config: T3Config) -> str | None:
    """Return why T3's matrices cannot be quantized in groups, or None if they can."""
    smallest = GROUP_SIZES[-1]
    for name, width in (("width", config.backbone.width), ("inner width", ffn_width(config))):
        if width % smallest:
            return f"its {name} is {width}, not a multiple of {smallest}, the smallest group of weights"
    return None
