"""Read the vocoder's graph, which the package has without weights (nightingale_lab/train/graphs.py).

Its operations and weights become a `NetworkGraph`, which a `ComposedGraph` adds like the graphs that are built here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import onnx
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from nightingale.backends.onnx.network_graph import Cache, NetworkGraph
from nightingale.backends.onnx.numpy_weights import Floats
from nightingale.backends.onnx.protobuf import Attribute, Node
from nightingale.errors import CheckpointError
from nightingale.models.frame_vocoder.config import (
    SILENT_LOG_MEL,
    SILENT_STATES,
    FrameVocoderConfig,
    state_shapes,
)
from nightingale.models.frame_vocoder.transforms import matrices


def read_vocoder_graph(path: Path, config: FrameVocoderConfig, weights: Mapping[str, Floats]) -> NetworkGraph:
    """Return the graph in a file with its weights, which have the names of its external tensors.

    Raises:
        CheckpointError: The file is missing or damaged.
        KeyError: A weight is missing.
        ValueError: A weight has another shape than in the graph.
    """
    try:
        stored = onnx.load(path, load_external_data=False).graph
    except Exception as error:  # protobuf's have no types
        raise CheckpointError(
            "the vocoder's graph cannot be read", got=f"{path}: {error}", fix="Install the package again."
        ) from error
    weights = {**weights, **matrices(config.mel_bands)}
    graph = NetworkGraph({})
    constants = {}
    for tensor in stored.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            graph.initializers[tensor.name] = _checked(tensor, weights[tensor.name])
        else:
            value = numpy_helper.to_array(tensor)
            name = constants[tensor.name] = f"{path.stem}.{tensor.name}"
            graph.constant(name, tensor.data_type, value.shape, value.tobytes())
    for value in stored.input:
        graph.input(value.name, value.type.tensor_type.elem_type, _shape(value))
    for name, shape in state_shapes(config):
        fill = SILENT_LOG_MEL if name in SILENT_STATES else 0.0
        graph.caches.append(Cache(name, (1, *shape), axis=len(shape), fill=fill, positions_per_token=0))
    for node in stored.node:
        inputs = [constants.get(name, name) for name in node.input]
        attributes = {one.name: _attribute(one) for one in node.attribute}
        graph.nodes.append(Node(node.name, node.op_type, inputs, list(node.output), node.domain, attributes))
    return graph


def _checked(tensor: TensorProto, value: Floats) -> Floats:
    if value.shape != tuple(tensor.dims):
        raise ValueError(f"{tensor.name} has the shape {value.shape}, not {tuple(tensor.dims)}")
    return value


def _shape(value: ValueInfoProto) -> list[int | str]:
    return [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]


def _attribute(attribute: onnx.AttributeProto) -> Attribute:
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else cast("Attribute", value)
