"""T3 of the official models for the ONNX runner: PyTorch embeds their prompts, and int8 weights are packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

from nightingale.backends.base import ModelSource, Setup
from nightingale.backends.onnx.numpy_weights import Floats, LazyFloats
from nightingale.backends.onnx.t3_graph import T3StepGraph
from nightingale.backends.shared.packed_t3 import TensorFileWriter, TensorSource, open_packed
from nightingale.backends.shared.t3_inputs import InputEmbeddings, rotary_tables
from nightingale.backends.torch.devices import use_threads
from nightingale.backends.torch.runner import embed_prompt
from nightingale.backends.torch.weights import t3_weights
from nightingale.decoding.decoding import Prompt
from nightingale.models.chatterbox.t3.config import T3Config
from nightingale.models.chatterbox.t3.model import T3

GRAPH_FILE = "graph.onnx"


class OnnxFormat:
    """Packed weights for ONNX Runtime: a graph, and weights as MatMulNBits reads them."""

    name = "onnx"

    def write(self, config: T3Config, source: TensorSource, file: TensorFileWriter) -> Mapping[str, bytes]:
        graph = T3StepGraph(config, to_numpy(source), int8=True, file=file)
        return {GRAPH_FILE: graph.model()}


def to_numpy(source: TensorSource) -> LazyFloats:
    return LazyFloats(lambda name: source(name).detach().float().numpy())


class TorchEmbeddings(InputEmbeddings):
    """Embeddings of a T3 whose prompts PyTorch embeds."""

    def __init__(self, t3: T3, *, max_new_tokens: int) -> None:
        super().__init__(t3)
        self._t3, self._max_new_tokens = t3, max_new_tokens

    def prompt(self, prompt: Prompt) -> Floats:
        return embed_prompt(self._t3, prompt, max_new_tokens=self._max_new_tokens).float().numpy()

    def rotary_tables(self, positions: int) -> dict[str, Floats]:
        tables = rotary_tables(self._t3, positions) or ()
        return {
            name: np.ascontiguousarray(table[:, : table.shape[1] // 2])
            for name, table in zip(("cos", "sin"), tables, strict=False)
        }


def float32_graph(t3: T3) -> T3StepGraph:
    """Return the graph of T3's step in float32."""
    weights = to_numpy(t3.state_dict().__getitem__)
    return T3StepGraph(t3.config, weights, int8=False)


def open_torch_model(source: ModelSource, setup: Setup) -> tuple[TorchEmbeddings, T3StepGraph | Path]:
    load_t3 = partial(t3_weights, source, "cpu", "float32")
    graph: T3StepGraph | Path
    if setup.precision == "int8":
        t3, folder = open_packed(source, OnnxFormat(), load_t3)
        graph = folder / GRAPH_FILE
    else:
        t3 = load_t3()
        graph = float32_graph(t3)
    return TorchEmbeddings(t3, max_new_tokens=source.info.defaults.max_new_tokens), graph


def torch_threads(wanted: int | None) -> tuple[int, Callable[[], None] | None]:
    """Return the threads of a session beside PyTorch, and what sets PyTorch's number in its thread."""
    if wanted is None:
        return torch.get_num_threads(), None
    return wanted, partial(use_threads, wanted)
