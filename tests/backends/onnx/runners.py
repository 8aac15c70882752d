"""ONNX runners over networks of PyTorch, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from nightingale.backends.onnx.embeddings import NumpyEmbeddings
from nightingale.backends.onnx.numpy_weights import read_packed
from nightingale.backends.onnx.runner import OnnxRunner
from nightingale.backends.onnx.t3_graph import T3StepGraph
from nightingale.backends.onnx.torch_model import TorchEmbeddings, float32_graph
from nightingale.models.chatterbox.t3.config import T3Config
from nightingale.models.chatterbox.t3.model import T3

Runner = TypeVar("Runner", bound=OnnxRunner)


def runner_over(
    t3: T3, packed: Path | None = None, kind: type[Runner] = OnnxRunner, *, max_new_tokens: int, **pool: Any
) -> Runner:  # type: ignore[assignment]
    """Return a runner of a T3 in float32, or in int8 over a packed graph."""
    graph = float32_graph(t3) if packed is None else packed
    embeddings = TorchEmbeddings(t3, max_new_tokens=max_new_tokens)
    return kind(t3.config, embeddings, graph, **{"threads": 1, **pool})


def runner_without_torch(config: T3Config, path: Path, *, int8: bool, **pool: Any) -> OnnxRunner:
    """Return a runner of weights in a file."""
    weights = read_packed(path)
    graph = T3StepGraph(config, weights, int8=int8)
    return OnnxRunner(config, NumpyEmbeddings(config, weights), graph, **{"threads": 1, **pool})
