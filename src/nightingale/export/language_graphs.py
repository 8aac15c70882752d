"""The graphs between text and speech tokens, with the inputs and outputs that other Chatterbox runtimes expect.

embed_tokens
    input_ids       (1, n) int64          start of text ‖ text ‖ stop of text ‖ start of speech; then one token a step
    position_ids    (1, n) int64          not used: wren's positions are rotary
    exaggeration    (1,) float32          not used: wren has no such control
    inputs_embeds   (1, n, width)

language_model
    inputs_embeds   (1, n, width)         after the voice's audio_features in the first pass
    attention_mask  (1, past + n) int64   ones
    past_key_values.N.key, past_key_values.N.value   (1, heads, past, head_dim)
    logits          (1, 1, vocab)         of the last position
    present.N.key, present.N.value        (1, heads, past + n, head_dim)
"""

from __future__ import annotations

import numpy as np

from nightingale.backends.onnx.embeddings import rotary_tables
from nightingale.backends.onnx.network_graph import NEW
from nightingale.backends.onnx.numpy_weights import PackedWeights, dequantize
from nightingale.backends.onnx.protobuf import FLOAT, INT32, INT64
from nightingale.backends.onnx.t3_graph import T3StepGraph
from nightingale.export.composed_graph import ComposedGraph, WeightsFile
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config


def embed_tokens(config: T3Config, weights: PackedWeights, file: WeightsFile) -> ComposedGraph:
    """Build the embedding of a prompt or of one speech token.

    Text ends with the first 0, the stop of text; what follows is speech. A single id is always speech.
    """
    graph = ComposedGraph(file)
    ids = graph.input("input_ids", INT64, (1, "n"))
    graph.input("position_ids", INT64, (1, "n"))
    graph.input("exaggeration", FLOAT, (1,))
    zero = graph.ints(0)
    stops = graph.node("Cast", [graph.node("Equal", [ids, zero])], to=INT32)
    before = graph.node("CumSum", [stops, graph.node("Squeeze", [graph.ints(1)])], exclusive=1)
    before = graph.node("Cast", [before], to=INT64)
    stopped = graph.node("ReduceSum", [graph.node("Cast", [stops], to=INT64), graph.ints(1)], keepdims=1)
    is_prompt = graph.node("Greater", [graph.size(ids, 1), graph.ints(1)])
    in_text = graph.node("And", [graph.node("Equal", [before, zero]), graph.node("Greater", [stopped, zero])])
    in_text = graph.node("And", [in_text, is_prompt])
    embedded = [
        graph.node("Gather", [graph.store(name, dequantize(weights[name])), own], axis=0)
        for name, own in (
            ("text_emb.weight", graph.node("Where", [in_text, ids, zero])),
            ("speech_emb.weight", graph.node("Where", [in_text, zero, ids])),
        )
    ]
    in_text = graph.node("Unsqueeze", [in_text, graph.ints(2)])
    graph.node("Where", [in_text, *embedded], ["inputs_embeds"])
    graph.output("inputs_embeds", FLOAT, (1, "n", config.backbone.width))
    return graph


def language_model(
    config: T3Config, weights: PackedWeights, file: WeightsFile, *, positions: int
) -> ComposedGraph:
    """Build T3. positions: of the longest sequence."""
    backbone = config.backbone
    assert isinstance(backbone, LlamaConfig)
    graph = ComposedGraph(file)
    head_dim = backbone.width // backbone.heads
    graph.input("inputs_embeds", FLOAT, (1, "n", backbone.width))
    mask = graph.input("attention_mask", INT64, (1, "total"))
    last = graph.node("Sub", [graph.node("ReduceSum", [mask, graph.ints(1)], keepdims=0), graph.ints(1)])
    values = {
        "x": "inputs_embeds",
        "seqlens_k": graph.node("Cast", [last], to=INT32),
        "total_sequence_length": graph.node("Cast", [graph.size(mask, 1)], to=INT32),
        "logit_positions": graph.ints(-1),
        "logits": "logits",
    }
    for name, table in rotary_tables(head_dim, positions, theta=backbone.rope_theta).items():
        values[name] = graph.store(name, table.astype(np.float32))
    for layer in range(backbone.layers):
        for part, name in (("keys", "key"), ("values", "value")):
            past, present = f"past_key_values.{layer}.{name}", f"present.{layer}.{name}"
            graph.input(past, FLOAT, (1, backbone.heads, "past", head_dim))
            values |= {f"{part}.{layer}": past, f"{NEW}{part}.{layer}": present}
    graph.add(T3StepGraph(config, weights, int8=False), "t3", values)
    graph.output("logits", FLOAT, (1, 1, config.speech_vocab))
    for layer in range(backbone.layers):
        for name in ("key", "value"):
            graph.output(f"present.{layer}.{name}", FLOAT, (1, backbone.heads, "total", head_dim))
    return graph
