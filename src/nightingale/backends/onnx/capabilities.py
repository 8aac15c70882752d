"""Reasons why ONNX Runtime should not run a model on this machine; asked before weights are loaded."""

from __future__ import annotations

from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from nightingale.backends.base import ModelInfo, Setup
from nightingale.backends.onnx.embeddings import torch_reason
from nightingale.backends.shared.capability_checks import (
    MIN_SPEEDUP,
    SMALL_MODEL_WEIGHTS,
    available_cores,
    failed_package_reason,
    fastest_s,
    missing_package_reason,
    weight_count,
    width_reason,
)
from nightingale.backends.shared.int8_blocks import BLOCK_SIZES
from nightingale.errors import memory_full
from nightingale.models.chatterbox.t3.config import T3Config
from nightingale.models.frame_vocoder.config import FrameVocoderConfig
from nightingale.wren import vocoder_graph

PACKAGE: Final = "onnxruntime"
MIN_VERSION: Final = (1, 23)
"""Earlier versions have no int8 kernels for ARM."""
PROBE_LAYERS: Final = 4
SMALL_PROBE: Final = ((1, 320), 2048)
INT8_INSTRUCTIONS: Final = ("asimddp", "avx_vnni", "avx512_vnni")
"""Instructions, by Linux's names, with which small models are twice as fast in int8: nothing is measured."""
LARGE_PROBE: Final = ((2, 1024), 4096)
"""Rows and inputs, and outputs of the products that are measured."""

VOCODER_GRAPHS: Final[dict[Any, Path]] = {FrameVocoderConfig(): vocoder_graph()}
"""The graph of each size of vocoder."""


def decoder_unsupported_reason(model: ModelInfo, setup: Setup) -> str | None:
    """Return why T3 cannot be run here, or None if it can."""
    config = model.preset.t3
    if setup.precision not in ("float32", "int8"):
        return f"it computes in float32 and int8, not in {setup.precision}"
    if find_spec("torch") is None and (reason := torch_reason(config)) is not None:
        return reason
    if setup.precision == "int8":
        return int8_unsupported_reason(config)
    return float32_unsupported_reason(config)


def renderer_unsupported_reason(model: ModelInfo, setup: Setup) -> str | None:
    """Return why flow and vocoder cannot be run here, or None if they can."""
    if setup.precision not in ("float32", "int8"):
        return f"it renders in float32 and int8, not in {setup.precision}"
    if (reason := _shape_reason(model, setup) or package_reason()) is not None:
        return reason
    return _small_int8_reason() if setup.precision == "int8" else None


def _shape_reason(model: ModelInfo, setup: Setup) -> str | None:
    """Return why the graphs do not fit the model's flow and vocoder."""
    flow = model.preset.flow
    if not setup.profile.in_blocks and find_spec("torch") is not None:
        return "PyTorch renders segments whole, as upstream does"
    if not (flow.block_causal and flow.meanflow and setup.profile.flow_steps in (None, 2)):
        return "its flow has two steps and attends to earlier blocks only"
    if model.preset.vocoder not in VOCODER_GRAPHS:
        return "there is a graph for the vocoder of wren only"
    return None


def int8_unsupported_reason(config: T3Config) -> str | None:
    """Return why T3 should not be run in int8 here, or None if it should.

    The first call that gets past the sizes may measure a few products, for a tenth of a second.
    """
    if (reason := width_reason(config, BLOCK_SIZES[-1]) or package_reason()) is not None:
        return reason
    if weight_count(config) <= SMALL_MODEL_WEIGHTS:
        return _small_int8_reason()
    return _slow_reason(*LARGE_PROBE, threads=available_cores())


def float32_unsupported_reason(config: T3Config) -> str | None:
    """Return why T3 should not be run in float32 here, or None if it should."""
    if torch_reason(config) is not None and (weights := weight_count(config)) > SMALL_MODEL_WEIGHTS:
        return f"ONNX Runtime would hold a second copy of its {weights / 1e6:.0f} million weights"
    return package_reason()


@cache
def package_reason() -> str | None:
    """Return why ONNX Runtime cannot be used, or None if it can: it must be able to run a graph."""
    if (reason := missing_package_reason(PACKAGE)) is not None:
        return reason
    try:
        import onnxruntime

        version = str(onnxruntime.__version__)
        if tuple(int(part) for part in version.split(".")[:2]) < MIN_VERSION:
            return f"{PACKAGE} {version} is too old; {'.'.join(map(str, MIN_VERSION))} or later is needed"
        _run_smallest_graph()
    except Exception as error:  # a broken installation, or an unknown instruction set, may raise anything
        if (full := memory_full(error)) is not None:
            raise full from error
        return failed_package_reason(PACKAGE, error)
    return None


def _run_smallest_graph() -> None:
    from nightingale.backends.onnx.network_graph import NetworkGraph
    from nightingale.backends.onnx.protobuf import FLOAT
    from nightingale.backends.onnx.streaming_session import create_session

    graph = NetworkGraph({})
    graph.output(graph.node("Cos", [graph.input("x", FLOAT, (1,))], ["y"]), FLOAT, (1,))
    create_session(graph, 1).run(None, {"x": np.zeros(1, np.float32)})


def _small_int8_reason() -> str | None:
    """Return why a small model should not be run in int8 here, or None if it should."""
    with suppress(OSError):  # not Linux
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
        if not {*INT8_INSTRUCTIONS}.isdisjoint(flags):
            return None
    return _slow_reason(*SMALL_PROBE, threads=1)


@cache
def _slow_reason(shape: tuple[int, int], outputs: int, *, threads: int) -> str | None:
    try:
        speedup = measure_speedup(shape, outputs, threads=threads)
    except Exception as error:  # as above
        return failed_package_reason(PACKAGE, error)
    if speedup < MIN_SPEEDUP:
        return (
            f"int8 matrix products are {speedup:.1f} times as fast as float32 on this CPU; "
            f"at least {MIN_SPEEDUP} is required"
        )
    return None


def measure_speedup(shape: tuple[int, int], outputs: int, *, threads: int) -> float:
    """Return how many times faster products of a few rows (rows, inputs) are in int8 than in float32."""
    from nightingale.backends.onnx.network_graph import NetworkGraph
    from nightingale.backends.onnx.protobuf import FLOAT
    from nightingale.backends.onnx.streaming_session import create_session

    x, weight, seconds = np.zeros(shape, np.float32), np.ones((outputs, shape[1]), np.float32), []
    for int8 in (False, True):
        graph = NetworkGraph({}, int8=int8)
        graph.input("x", FLOAT, shape)
        for layer in range(PROBE_LAYERS):
            graph.product("x", f"weight.{layer}", weight, f"y.{layer}")
            graph.output(f"y.{layer}", FLOAT, (shape[0], outputs))
        session = create_session(graph, threads)
        seconds.append(fastest_s(partial(session.run, None, {"x": x})))
    return seconds[0] / seconds[1]
