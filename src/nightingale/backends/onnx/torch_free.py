"""Check and open what ONNX Runtime runs without PyTorch: T3, renderer and encoders of wren-like models."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib.util import find_spec

import numpy as np

from nightingale.backends.base import Decoder, Encoders, ModelInfo, ModelSource, Renderer, Setup
from nightingale.models.chatterbox.hift.config import NOISY_HARMONICS
from nightingale.models.chatterbox.t3.config import T3Config

MIN_VERSION = (1, 23)
"""Earlier versions have no int8 kernels for ARM."""
MIN_SPEEDUP = 1.3
"""Int8 must be so many times faster than float32, or it is not worth its error."""


def decoder_unsupported_reason(model: ModelInfo, setup: Setup) -> str | None:
    """Return why T3 cannot be run without PyTorch, or None if it can."""
    if setup.profile.needs_torch_kv_cache or setup.profile.draft:
        return "this profile's KV cache or draft needs PyTorch"
    if setup.precision not in ("float32", "int8"):
        return f"it computes in float32 and int8, not in {setup.precision}"
    if (reason := _config_reason(model.preset.t3) or package_reason()) is not None:
        return reason
    return _slow_int8_reason() if setup.precision == "int8" else None


def _slow_int8_reason() -> str | None:
    if (speedup := int8_speedup()) >= MIN_SPEEDUP:
        return None
    return (
        f"int8 matrix products are {speedup:.1f} times as fast as float32 on this CPU; "
        f"at least {MIN_SPEEDUP} is required"
    )


def renderer_unsupported_reason(model: ModelInfo, setup: Setup) -> str | None:
    """Return why flow and vocoder cannot be run here, or None if they can."""
    flow, hift = model.preset.flow, model.preset.hift
    if setup.precision not in ("float32", "int8"):
        return f"it renders in float32, or with the flow in int8, not in {setup.precision}"
    if not setup.profile.streaming:
        return "it renders block by block, and this profile renders segments whole"
    if not (flow.block_causal and flow.meanflow):
        return "its flow has two steps and attends to earlier blocks only"
    if not (hift.causal and hift.in_phase) or hift.harmonics == NOISY_HARMONICS:
        return "its vocoder is causal and has harmonics in phase"
    return package_reason() or (_slow_int8_reason() if setup.precision == "int8" else None)


def _config_reason(config: T3Config) -> str | None:
    if find_spec("onnxruntime") is None:
        return None  # `package_reason` says it
    from nightingale.backends.onnx.llama_runner import unsupported_config_reason

    return unsupported_config_reason(config)


@cache
def package_reason() -> str | None:
    """Return why ONNX Runtime cannot be used, or None if it can."""
    if find_spec("onnxruntime") is None:
        return "onnxruntime is not installed (pip install onnxruntime)"
    try:
        import onnxruntime

        version = str(onnxruntime.__version__)
        if tuple(int(part) for part in version.split(".")[:2]) < MIN_VERSION:
            return f"onnxruntime {version} is too old; {'.'.join(map(str, MIN_VERSION))} or later is needed"
    except Exception as error:  # a broken installation, or an unknown instruction set, may raise anything
        first_line = (str(error).strip().splitlines() or ["no message"])[0][:200]
        return f"onnxruntime does not work here ({type(error).__name__}: {first_line})"
    return None


@cache
def int8_speedup() -> float:
    """Measure how many times faster one product of a single row is in int8 than in float32."""
    from nightingale.backends.onnx.network_graph import NetworkGraph
    from nightingale.backends.onnx.protobuf import FLOAT
    from nightingale.backends.onnx.streaming_session import create_session
    from nightingale.backends.shared.capability_checks import fastest_s

    inputs, outputs, layers = 320, 2048, 4
    seconds = []
    x = np.zeros((1, inputs), np.float32)
    for int8 in (False, True):
        graph = NetworkGraph({}, int8=int8)
        graph.input("x", FLOAT, (1, inputs))
        for layer in range(layers):
            graph.product("x", f"weight.{layer}", np.ones((outputs, inputs), np.float32), f"y.{layer}")
            graph.output(f"y.{layer}", FLOAT, (1, outputs))
        session = create_session(graph, 1)
        seconds.append(fastest_s(partial(session.run, None, {"x": x})))
    return seconds[0] / seconds[1]


def open_decoder(source: ModelSource, setup: Setup) -> Decoder:
    from nightingale.backends.onnx.llama_runner import LlamaRunner
    from nightingale.backends.onnx.numpy_weights import fitting_weights, t3_weights
    from nightingale.backends.onnx.streaming_session import default_threads, return_freed_memory
    from nightingale.decoding.host_decoder import HostDecoder
    from nightingale.decoding.kv_budget import KVBudget

    info, profile = source.info, setup.profile
    with fitting_weights(source):
        runner = LlamaRunner(
            info.preset.t3,
            t3_weights(source),
            int8=setup.precision == "int8",
            threads=default_threads() if setup.threads is None else setup.threads,
            slots=profile.slots,
            rows_per_slot=info.rows_per_slot,
            capacity=info.max_positions,
            batched=profile.batched,
        )
    return_freed_memory()
    budget = KVBudget.dense(info.preset.t3, info.defaults, itemsize=4)
    return HostDecoder(runner, budget)


def open_renderer(source: ModelSource, setup: Setup) -> Renderer:
    from nightingale.backends.onnx.numpy_weights import fitting_weights, flow_weights, hift_weights
    from nightingale.backends.onnx.renderer import OnnxRenderer, share_cores
    from nightingale.backends.onnx.rendering.flow_stream import FlowNetwork
    from nightingale.backends.onnx.rendering.vocoder_stream import VocoderNetwork
    from nightingale.backends.onnx.streaming_session import return_freed_memory

    int8 = setup.precision == "int8"
    preset, shares = source.info.preset, share_cores()

    def load() -> tuple[FlowNetwork, VocoderNetwork]:
        # Sessions are created outside of Python's lock, so the two are loaded at the same time. Weights are
        # read here: this thread holds the lock of the source.
        weights = flow_weights(source), hift_weights(source)
        with fitting_weights(source), ThreadPoolExecutor(max_workers=1) as pool:
            hift = pool.submit(VocoderNetwork, preset.hift, weights[1], threads=shares.vocoder)
            return FlowNetwork(preset.flow, weights[0], threads=shares.flow, int8=int8), hift.result()

    flow, hift = source.shared(f"onnx-renderer/{setup.precision}", load)
    return_freed_memory()
    return OnnxRenderer(flow, hift, shares)


def open_encoders(source: ModelSource) -> Encoders | None:
    """Return the encoders of a model that was trained without an x-vector network; None for the others."""
    if source.info.synthetic or source.info.preset.xvector is not None or package_reason() is not None:
        return None
    from nightingale.backends.onnx.encoding.encoders import OnnxEncoders

    return OnnxEncoders(source)
