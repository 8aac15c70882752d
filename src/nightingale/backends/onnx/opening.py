"""Open what ONNX Runtime runs: T3 of most models, and the renderer and the encoders of wren-like ones.

PyTorch is imported only for models whose prompts need it.
"""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from nightingale.backends.base import Decoder, Encoders, ModelSource, Renderer, Setup
from nightingale.backends.onnx.capabilities import package_reason
from nightingale.backends.onnx.embeddings import Embeddings, NumpyEmbeddings, torch_reason
from nightingale.backends.onnx.numpy_weights import (
    fitting_weights,
    flow_weights,
    hift_weights,
    network_weights,
    t3_weights,
)
from nightingale.backends.onnx.renderer import OnnxRenderer
from nightingale.backends.onnx.rendering.flow_stream import FlowNetwork
from nightingale.backends.onnx.rendering.vocoder_stream import VocoderNetwork
from nightingale.backends.onnx.runner import OnnxRunner
from nightingale.backends.onnx.streaming_session import return_freed_memory
from nightingale.backends.onnx.t3_graph import T3StepGraph
from nightingale.backends.shared.capability_checks import available_cores
from nightingale.backends.shared.pipeline import CoreShares
from nightingale.decoding.host_decoder import HostDecoder
from nightingale.decoding.kv_cache_size import KVCacheSize
from nightingale.errors import raising_memory_full

WORKING_BYTES: Final = 192 << 20
"""Address space for threads and activations, besides weights and KV caches."""


def check_working_memory() -> None:
    """Raise MemoryFull unless there is memory to work with.

    While ONNX Runtime computes, an allocation that fails may end the process. So a limit of the address space
    is tested before.
    """
    with raising_memory_full():
        mmap.mmap(-1, WORKING_BYTES).close()


def open_decoder(source: ModelSource, setup: Setup) -> Decoder:
    info = source.info
    threads, on_start = available_cores() if setup.threads is None else setup.threads, None
    if torch_reason(info.preset.t3) is not None:
        from nightingale.backends.onnx.torch_model import torch_threads

        threads, on_start = torch_threads(setup.threads)
    runner = _open_runner(source, setup, threads)
    return_freed_memory()
    check_working_memory()
    return HostDecoder(runner, KVCacheSize(info.preset.t3, itemsize=4), on_start=on_start)


def _open_runner(source: ModelSource, setup: Setup, threads: int) -> OnnxRunner:
    info, config = source.info, source.info.preset.t3
    embeddings: Embeddings
    graph: T3StepGraph | Path
    with fitting_weights(source):
        if torch_reason(config) is not None:
            from nightingale.backends.onnx.torch_model import open_torch_model

            embeddings, graph = open_torch_model(source, setup)
        else:
            weights = t3_weights(source)
            embeddings = NumpyEmbeddings(config, weights)
            graph = T3StepGraph(config, weights, int8=setup.precision == "int8")
        return OnnxRunner(
            config,
            embeddings,
            graph,
            threads=threads,
            slots=setup.slots,
            rows_per_slot=info.rows_per_slot,
            capacity=info.max_positions,
            batched=setup.profile.batched,
        )


def open_renderer(source: ModelSource, setup: Setup) -> Renderer:
    parts = setup.precision.split("-")
    int8, float16 = "int8" in parts, "float16" in parts
    if not source.info.preset.flow.block_causal:
        return _open_segment_renderer(source, setup, int8=int8, float16=float16)
    preset, shares = source.info.preset, CoreShares.of(available_cores(), available_cores())

    def load() -> tuple[FlowNetwork, VocoderNetwork]:
        # Sessions are created outside of Python's lock, so the two are loaded at the same time. Weights are
        # read here: this thread holds the lock of the source.
        weights = flow_weights(source), hift_weights(source)
        with fitting_weights(source), ThreadPoolExecutor(max_workers=1) as pool:
            hift = pool.submit(
                VocoderNetwork, preset.hift, weights[1], threads=shares.vocoder, float16=float16
            )
            return FlowNetwork(preset.flow, weights[0], threads=shares.flow, int8=int8), hift.result()

    check_working_memory()
    flow, hift = source.shared(f"onnx-renderer/{setup.precision}", load)
    return_freed_memory()
    return OnnxRenderer(flow, hift, shares)


def _open_segment_renderer(source: ModelSource, setup: Setup, *, int8: bool, float16: bool) -> Renderer:
    """Open the renderer of an official model, whose files PyTorch reads."""
    from nightingale.backends.onnx.rendering.segment_flow import SegmentFlow
    from nightingale.backends.onnx.segment_renderer import SegmentRenderer
    from nightingale.backends.torch.weights import load_rendering

    preset, threads, steps = source.info.preset, available_cores(), setup.profile.flow_steps

    def load() -> SegmentRenderer:
        flow, hift = (network_weights(network) for network in load_rendering(source))
        return SegmentRenderer(
            SegmentFlow(preset.flow, flow, threads=threads, int8=int8, steps=steps),
            VocoderNetwork(preset.hift, hift, threads=threads, float16=float16),
        )

    check_working_memory()
    renderer = source.shared(f"onnx-segments/{setup.precision}/{steps}", load)
    return_freed_memory()
    return renderer


def open_encoders(source: ModelSource) -> Encoders | None:
    """Return the encoders of a model that was trained without an x-vector network; None for the others."""
    if source.info.synthetic or source.info.preset.xvector is not None or package_reason() is not None:
        return None
    from nightingale.backends.onnx.encoding.encoders import OnnxEncoders

    return OnnxEncoders(source)
