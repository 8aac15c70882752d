"""Open what ONNX Runtime runs: T3 of most models, and the renderer and the encoders of wren-like ones.

PyTorch is imported only for models whose prompts need it.
"""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from nightingale.backends.base import Decoder, Encoders, ModelSource, Renderer, Setup
from nightingale.backends.onnx.capabilities import VOCODER_GRAPHS, package_reason
from nightingale.backends.onnx.embeddings import Embeddings, NumpyEmbeddings, torch_reason
from nightingale.backends.onnx.numpy_weights import (
    fitting_weights,
    flow_weights,
    t3_weights,
    vocoder_weights,
)
from nightingale.backends.onnx.renderer import OnnxRenderer
from nightingale.backends.onnx.rendering.flow_stream import FlowNetwork
from nightingale.backends.onnx.rendering.vocoder import VocoderNetwork
from nightingale.backends.onnx.runner import OnnxRunner
from nightingale.backends.onnx.streaming_session import return_freed_memory
from nightingale.backends.onnx.t3_graph import T3StepGraph
from nightingale.backends.shared.capability_checks import available_cores
from nightingale.backends.shared.pipeline import CoreShares
from nightingale.decoding.host_decoder import HostDecoder
from nightingale.decoding.kv_cache_size import KVCacheSize
from nightingale.errors import raising_memory_full
from nightingale.models.frame_vocoder.config import FrameVocoderConfig

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
    preset, shares = source.info.preset, CoreShares.of(available_cores(), available_cores())
    assert isinstance(preset.vocoder, FrameVocoderConfig)
    graph = VOCODER_GRAPHS[preset.vocoder]
    open_vocoder = partial(VocoderNetwork, preset.vocoder, graph=graph, threads=shares.vocoder)

    def load() -> tuple[FlowNetwork, VocoderNetwork]:
        # Sessions are created outside of Python's lock, so the two are loaded at the same time. Weights are
        # read here: this thread holds the lock of the source.
        weights = flow_weights(source)
        with fitting_weights(source), ThreadPoolExecutor(max_workers=1) as pool:
            vocoder = pool.submit(open_vocoder, vocoder_weights(source))
            int8 = setup.precision == "int8"
            return FlowNetwork(preset.flow, weights, threads=shares.flow, int8=int8), vocoder.result()

    check_working_memory()
    flow, vocoder = source.shared(f"onnx-renderer/{setup.precision}", load)
    return_freed_memory()
    return OnnxRenderer(flow, vocoder, shares)


def open_encoders(source: ModelSource) -> Encoders | None:
    """Return the encoders of a model that was trained without an x-vector network; None for the others."""
    if source.info.synthetic or source.info.preset.xvector is not None or package_reason() is not None:
        return None
    from nightingale.backends.onnx.encoding.encoders import OnnxEncoders

    return OnnxEncoders(source)
