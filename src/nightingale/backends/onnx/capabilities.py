"""Reasons why ONNX Runtime should not run a T3 on this machine; asked before weights are loaded."""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.backends.onnx.graph import GraphBuilder
from nightingale.backends.onnx.protobuf import FLOAT
from nightingale.backends.shared.capability_checks import (
    MIN_SPEEDUP,
    SMALL_MODEL_WEIGHTS,
    failed_package_reason,
    fastest_s,
    missing_package_reason,
    weight_count,
    width_reason,
)
from nightingale.backends.shared.quantize import BLOCK_SIZES, ZERO_POINT, QuantizedWeight
from nightingale.models.chatterbox.t3.config import T3Config

PACKAGE: Final = "onnxruntime"
MIN_VERSION: Final = (1, 23)
"""Earlier versions have no int8 kernels for ARM."""
PROBE_INPUTS, PROBE_OUTPUTS, PROBE_LAYERS, PROBE_ROWS = 1024, 4096, 4, 2


def unsupported_reason(config: T3Config, *, threads: int | None = None) -> str | None:
    """Return why T3 should not be run in int8 here, or None if it should.

    The first call that gets past the sizes measures a few products with `threads` threads, or as many as
    torch uses, for a tenth of a second.
    """
    return (
        width_reason(config, BLOCK_SIZES[-1])
        or missing_package_reason(PACKAGE)
        or _slow_reason(torch.get_num_threads() if threads is None else threads)
    )


def float32_unsupported_reason(config: T3Config) -> str | None:
    """Return why T3 should not be run in float32 here, or None if it should."""
    if (weights := weight_count(config)) > SMALL_MODEL_WEIGHTS:
        return f"ONNX Runtime would hold a second copy of its {weights / 1e6:.0f} million weights"
    return missing_package_reason(PACKAGE) or _version_reason()


@cache
def _version_reason() -> str | None:
    try:
        import onnxruntime

        version = str(onnxruntime.__version__)
        if tuple(int(part) for part in version.split(".")[:2]) < MIN_VERSION:
            return f"{PACKAGE} {version} is too old; {'.'.join(map(str, MIN_VERSION))} or later is needed"
    except Exception as error:  # a broken installation, or an unknown instruction set, may raise anything
        return failed_package_reason(PACKAGE, error)
    return None


@cache
def _slow_reason(threads: int) -> str | None:
    if (reason := _version_reason()) is not None:
        return reason
    try:
        speedup = measure_speedup(threads)
    except Exception as error:  # as above
        return failed_package_reason(PACKAGE, error)
    if speedup < MIN_SPEEDUP:
        return (
            f"int8 matrix products are {speedup:.1f} times as fast as float32 on this CPU; "
            f"at least {MIN_SPEEDUP} is required"
        )
    return None


def measure_speedup(threads: int) -> float:
    """Return how many times faster products of a few rows are in int8 than in torch's float32."""
    from nightingale.backends.onnx.runner import open_session

    rng, blocks = torch.Generator().manual_seed(0), PROBE_INPUTS // BLOCK_SIZES[0]
    graph = GraphBuilder(dict[str, Tensor]().__getitem__, int8=True)
    graph.input("x", FLOAT, (PROBE_ROWS, PROBE_INPUTS))
    for layer in range(PROBE_LAYERS):
        shape = (PROBE_OUTPUTS, blocks, BLOCK_SIZES[0])
        codes = torch.randint(0, 2 * ZERO_POINT, shape, dtype=torch.uint8, generator=rng)
        weight = QuantizedWeight(codes, torch.full(shape[:2], 1e-3))
        name = graph.int8_linear(f"y.{layer}", "x", weight)
        graph.output(name, FLOAT, (PROBE_ROWS, PROBE_OUTPUTS))
    session = open_session(graph.model(), threads)
    x = torch.zeros(PROBE_ROWS, PROBE_INPUTS)
    weights = [torch.full((PROBE_OUTPUTS, PROBE_INPUTS), 1e-3) for _ in range(PROBE_LAYERS)]

    def run_float32() -> None:
        with torch.inference_mode():
            for weight in weights:
                F.linear(x, weight)

    return fastest_s(run_float32) / fastest_s(lambda: session.run(None, {"x": x.numpy()}))
