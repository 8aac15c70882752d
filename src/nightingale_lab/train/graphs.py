"""Stage `graphs`: write wren's vocoder as a graph of ONNX (needs onnx and onnxscript).

The graph is that of the network's own forward pass. It has no weights: they are supplied when it is loaded, by the
names of the parameters and buffers (`add_external_initializers`), since the package stores them compactly. Rows and
frames may have any number. The state is explicit: each entry of `FrameVocoder.state_shapes` is an input, and an output
with the prefix "new.".
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.export import Dim

from nightingale.backends.onnx.network_graph import NEW, WEIGHTS_FILE
from nightingale.backends.onnx.protobuf import CONTRIB
from nightingale.files import write_whole
from nightingale.models.frame_vocoder.config import FRAME_SAMPLES, FrameVocoderConfig
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale_lab.train.seeding import seeded

VOCODER_GRAPH: Final = "vocoder.onnx"
FLOAT_BYTES: Final = 4


def write_graphs(out: Path, config: FrameVocoderConfig) -> None:
    """Write the graph to a folder, without weights."""
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / VOCODER_GRAPH, vocoder_graph(config))


def vocoder_graph(config: FrameVocoderConfig) -> bytes:
    """Return the graph of a vocoder of these sizes, an `onnx.ModelProto`."""
    from onnxscript import optimizer

    net = FrameVocoder(config).eval().requires_grad_(False)
    with seeded(0):
        for parameter in net.parameters():  # equal ones would become one
            nn.init.normal_(parameter)
    names = [name for name, _ in net.state_shapes()]
    rows, frames = Dim("rows"), Dim("frames")
    examples, size = 3, 4  # any numbers that are not those of other axes
    inputs = (
        torch.zeros(examples, config.mel_bands, size),
        torch.zeros(examples, size * FRAME_SAMPLES),
        net.initial_state(examples),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's about itself, and that many inputs share a dimension
        program = torch.onnx.export(
            net,
            inputs,
            dynamo=True,
            verbose=False,
            optimize=False,
            input_names=["mel", "noise", *names],
            output_names=["samples", *(NEW + name for name in names)],
            dynamic_shapes=(
                {0: rows, 2: frames},
                {0: rows, 1: FRAME_SAMPLES * frames},
                tuple({0: rows} for _ in names),
            ),
        )
    assert program is not None
    weights = {*net.state_dict(), *(name for name, _ in net.named_buffers())}

    def should_fold(node: Any) -> bool | None:
        """Return False for what is computed from weights, whose values are not known here."""
        return False if any(value is not None and value.name in weights for value in node.inputs) else None

    optimizer.optimize_ir(program.model, should_fold=should_fold)
    model = program.model_proto
    _multiply_by_stored_weights(model, weights)
    return _without_weights(model, weights)


def _multiply_by_stored_weights(model: Any, weights: set[str]) -> None:
    """Replace products with the transpose of a weight, of which ONNX Runtime would keep another copy."""
    from onnx import helper

    graph = model.graph
    transposed = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Transpose" and node.input[0] in weights
    }
    products = [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in transposed]
    for node in products:
        node.op_type, node.domain = "FusedMatMul", CONTRIB
        node.input[1] = transposed[node.input[1]]
        node.attribute.append(helper.make_attribute("transB", 1))
    used = {name for node in graph.node for name in node.input}
    for node in [node for node in graph.node if node.output[0] in transposed.keys() - used]:
        graph.node.remove(node)
    model.opset_import.append(helper.make_opsetid(CONTRIB, 1))


def _without_weights(model: Any, weights: set[str]) -> bytes:
    """Return the model with references in place of weights, and without the exporter's notes."""
    from onnx import TensorProto

    graph = model.graph
    for tensor in graph.initializer:
        if tensor.name in weights:
            length = math.prod(tensor.dims) * FLOAT_BYTES
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", WEIGHTS_FILE), ("offset", 0), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
    for note in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        note.ClearField("metadata_props")
        note.ClearField("doc_string")
    graph.ClearField("value_info")
    return bytes(model.SerializeToString())
