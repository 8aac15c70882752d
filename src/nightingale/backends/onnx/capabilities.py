"""Whether T3 in eight bits can run here, and whether it pays: asked before anything is loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import numpy as np
import torch
import torch.nn.functional as F

from nightingale.backends.onnx.graph import INT8_INPUTS
from nightingale.backends.onnx.protobuf import CONTRIB, FLOAT, UINT8, Graph
from nightingale.backends.shared.quantize import BLOCKS
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config

PACKAGE = "onnxruntime"
EXTRA = "nightingale-tts[cpu]"
OLDEST = (1, 23)
"""Before it, eight bits had no kernels on ARM."""
WORTH = 1.3
"""So many times faster than torch in float32 must the products be, or rounding is not worth its error."""
MOST_EXACT = 50_000_000
"""Weights that are copied for ONNX Runtime without a word: 200 MB in float32."""
PROBE_INPUTS, PROBE_OUTPUTS, PROBE_PRODUCTS, PROBE_ROWS = 1024, 4096, 4, 2


def refusal(config: T3Config, *, threads: int | None = None) -> str | None:
    """Why this T3 cannot be run in eight bits on this machine, or should not be; None if it can.

    threads: as for `CpuRunner`. The first call measures both ways on a few products, for a tenth of a second.
    """
    if (odd := odd_width(config)) is not None:
        return odd
    if find_spec(PACKAGE) is None:
        return f"{PACKAGE} is not installed (pip install '{EXTRA}')"
    return _against(torch.get_num_threads() if threads is None else threads)


def odd_width(config: T3Config) -> str | None:
    """Why this T3 cannot be rounded by blocks."""
    backbone = config.backbone
    inner = backbone.ffn if isinstance(backbone, LlamaConfig) else 4 * backbone.width
    for name, width in (("width", backbone.width), ("inner width", inner)):
        if width % BLOCKS[-1]:
            return f"its {name} is {width}, not a multiple of {BLOCKS[-1]}"
    return None


def exact_refusal(config: T3Config) -> str | None:
    """Why this T3 should not be run by ONNX Runtime in float32; None if it should."""
    if (weights := weights_of(config)) > MOST_EXACT:
        return f"its {weights / 1e6:.0f} million weights would be held twice"
    if find_spec(PACKAGE) is None:
        return f"{PACKAGE} is not installed (pip install '{EXTRA}')"
    return _too_old()


def weights_of(config: T3Config) -> int:
    """That a step reads: layers and head."""
    backbone, width = config.backbone, config.backbone.width
    inner = 3 * backbone.ffn if isinstance(backbone, LlamaConfig) else 8 * width
    return backbone.layers * width * (4 * width + inner) + width * config.speech_vocab


@cache
def _too_old() -> str | None:
    try:
        import onnxruntime

        version = str(onnxruntime.__version__)
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
            return f"{PACKAGE} {version} is too old, {'.'.join(map(str, OLDEST))} is needed"
    except Exception as error:  # whatever a broken installation or an unknown instruction set raises
        return broken(PACKAGE, error)
    return None


@cache
def _against(threads: int) -> str | None:
    if (old := _too_old()) is not None:
        return old
    try:
        gain = measure_gain(threads)
    except Exception as error:  # whatever a broken installation or an unknown instruction set raises
        return broken(PACKAGE, error)
    if gain < WORTH:
        return f"products in int8 are {gain:.1f} times as fast as in float32 on this CPU; {WORTH} would pay"
    return None


def broken(package: str, error: Exception) -> str:
    """In a line."""
    told = (str(error).strip().splitlines() or ["no word"])[0][:200]
    return f"{package} does not work here ({type(error).__name__}: {told})"


def measure_gain(threads: int) -> float:
    """How many times faster products of two rows are in eight bits than in torch's float32."""
    import onnxruntime

    rng, block = np.random.default_rng(0), BLOCKS[0]
    blocks = PROBE_INPUTS // block
    graph = Graph("")
    graph.input("x", FLOAT, (PROBE_ROWS, PROBE_INPUTS))
    for number in range(PROBE_PRODUCTS):
        codes = rng.integers(0, 256, (PROBE_OUTPUTS, blocks, block), np.uint8)
        scales = np.full((PROBE_OUTPUTS, blocks), 1e-3, np.float32)
        given = [
            graph.small(f"codes.{number}", UINT8, codes.shape, codes.tobytes()),
            graph.small(f"scales.{number}", FLOAT, scales.shape, scales.tobytes()),
        ]
        settings = {
            "K": PROBE_INPUTS,
            "N": PROBE_OUTPUTS,
            "bits": 8,
            "block_size": block,
            "accuracy_level": INT8_INPUTS,
        }
        graph.node("MatMulNBits", ["x", *given], [f"y.{number}"], domain=CONTRIB, attributes=settings)
        graph.output(f"y.{number}", FLOAT, (PROBE_ROWS, PROBE_OUTPUTS))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(graph.model(), options, providers=["CPUExecutionProvider"])
    x = torch.zeros(PROBE_ROWS, PROBE_INPUTS)
    weights = [torch.zeros(PROBE_OUTPUTS, PROBE_INPUTS).fill_(1e-3) for _ in range(PROBE_PRODUCTS)]

    def plain() -> None:
        with torch.inference_mode():
            for weight in weights:
                F.linear(x, weight)

    return quickest_s(plain) / quickest_s(lambda: session.run(None, {"x": x.numpy()}))


def quickest_s(act: Callable[[], object]) -> float:
    """Seconds of the quickest of a few runs: what is slower was disturbed."""
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        act()
        taken.append(time.perf_counter() - started)
    return min(taken)
