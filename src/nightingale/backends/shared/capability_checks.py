"""Checks that several backends share; a check that fails returns its reason in plain English."""

from __future__ import annotations

import os
import timeit
from collections.abc import Callable
from importlib.util import find_spec
from typing import Final

from nightingale.install import install_command
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config

SMALL_MODEL_WEIGHTS: Final = 50_000_000
"""Up to so many weights ONNX Runtime may hold a copy in float32: 200 MB."""
MIN_SPEEDUP: Final = 1.3
"""A lower precision must be so many times faster than float32, or it is not worth its error."""


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def missing_package_reason(package: str) -> str | None:
    return None if find_spec(package) else f"{package} is not installed ({install_command('cpu')})"


def failed_package_reason(package: str, error: Exception) -> str:
    first_line = (str(error).strip().splitlines() or ["no message"])[0][:200]
    return f"{package} does not work here ({type(error).__name__}: {first_line})"


def width_reason(config: T3Config, multiple: int) -> str | None:
    """Return why T3's matrices cannot be quantized in blocks of `multiple` inputs, or None if they can."""
    for name, width in (("width", config.backbone.width), ("inner width", ffn_width(config))):
        if width % multiple:
            return f"its {name} is {width}, not a multiple of {multiple}"
    return None


def ffn_width(config: T3Config) -> int:
    backbone = config.backbone
    return backbone.ffn if isinstance(backbone, LlamaConfig) else 4 * backbone.width


def weight_count(config: T3Config) -> int:
    """Return how many weights a step of T3 reads, in its layers and its head."""
    width, matrices = config.backbone.width, 3 if isinstance(config.backbone, LlamaConfig) else 2
    per_layer = width * (4 * width + matrices * ffn_width(config))
    return config.backbone.layers * per_layer + width * config.speech_vocab


def fastest_s(run: Callable[[], object]) -> float:
    """Return the seconds of the fastest of five runs; the slower ones were disturbed."""
    return min(timeit.repeat(run, number=1))
