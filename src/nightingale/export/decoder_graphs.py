"""The graphs from speech tokens to samples: whole utterances, and blocks of a stream.

conditional_decoder, a whole utterance
    speech_tokens       (1, n) int64        the voice's audio_tokens, then those of the language model
    speaker_embeddings  (1, speaker)
    speaker_features    (1, frames, mel)    the mel of the audio_tokens, two frames each
    waveform            (1, samples)        of the tokens after the audio_tokens

flow_block and vocoder_block, the same in blocks of a stream; both also have states (`ComposedGraph.states`)
    speech_tokens       (1, n + 3) int64    a block, and the next three tokens; in the last block, its own only
    final               (1,) int64          1 in the last block, 0 elsewhere
    speaker_embeddings, speaker_features    as above; of the features, those of the block's tokens
    mel                 (1, frames, mel)    two frames for each token of the block; a vocoder takes blocks of any length
    waveform            (1, samples)        67.5 ms behind the mel, up to the last block

The block graphs use the weights of conditional_decoder. The vocoder is the graph in the package (vocoder_graph.py). Its
noise is a table, so that results can be compared: that of seed 0, repeated after `NOISE_FRAMES`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from nightingale.audio.crossfade import fade_in
from nightingale.backends.onnx.network_graph import NEW, NetworkGraph
from nightingale.backends.onnx.numpy_weights import LazyFloats, PackedWeights
from nightingale.backends.onnx.protobuf import FLOAT, INT64
from nightingale.backends.onnx.rendering.flow_graph import (
    ESTIMATOR,
    EstimatorGraph,
    TokenEncoderGraph,
    attention_names,
)
from nightingale.backends.onnx.rendering.flow_stream import EMBEDDING, SOLVER_STEPS, time_inputs
from nightingale.clocks import CLOCKS
from nightingale.decoding.philox import normal, stream_key
from nightingale.export.composed_graph import ComposedGraph, WeightsFile
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS, FlowConfig
from nightingale.models.frame_vocoder.config import (
    DELAY_SAMPLES,
    FLUSH_FRAMES,
    SILENT_LOG_MEL,
    FrameVocoderConfig,
)

FRAMES: Final = CLOCKS.frames_per_token
FRAME: Final = CLOCKS.samples_per_frame
NOISE_FRAMES: Final = 500
"""10 s."""
MAX_BLOCK_TOKENS: Final = 64
"""The longest block of a stream."""


def conditional_decoder(
    config: FlowConfig, weights: PackedWeights, vocoder: NetworkGraph, file: WeightsFile
) -> ComposedGraph:
    graph = ComposedGraph(file)
    tokens, speaker, features = _token_inputs(graph, config)
    mel = _Flow(graph, config, weights).mel(tokens, speaker, features, final=graph.ints(1))
    last = graph.ints(np.iinfo(np.int64).max)
    mel = graph.cut(mel, graph.size(features, 1), last, 1)
    _add_waveform(graph, vocoder, mel, final=graph.ints(1))
    return graph


def flow_block(config: FlowConfig, weights: PackedWeights, file: WeightsFile) -> ComposedGraph:
    graph = ComposedGraph(file, streaming=True)
    tokens, speaker, features = _token_inputs(graph, config)
    final = graph.input("final", INT64, (1,))
    mel = _Flow(graph, config, weights).mel(tokens, speaker, features, final=final)
    graph.node("Identity", [mel], ["mel"])
    graph.output("mel", FLOAT, (1, "frames", config.mel_bands))
    return graph


def vocoder_block(config: FrameVocoderConfig, vocoder: NetworkGraph, file: WeightsFile) -> ComposedGraph:
    graph = ComposedGraph(file, streaming=True)
    mel = graph.input("mel", FLOAT, (1, "frames", config.mel_bands))
    final = graph.input("final", INT64, (1,))
    _add_waveform(graph, vocoder, mel, final=final)
    return graph


def _token_inputs(graph: ComposedGraph, config: FlowConfig) -> tuple[str, str, str]:
    return (
        graph.input("speech_tokens", INT64, (1, "n")),
        graph.input("speaker_embeddings", FLOAT, (1, config.speaker_width)),
        graph.input("speaker_features", FLOAT, (1, "feature_frames", config.mel_bands)),
    )


class _Flow:
    """Adds the flow to a graph: token encoder and solver steps, with what flow_stream.py computes in numpy."""

    def __init__(self, graph: ComposedGraph, config: FlowConfig, weights: PackedWeights) -> None:
        self.graph, self.config, self.packed = graph, config, weights
        self.weights = LazyFloats(weights.__getitem__)

    def mel(self, tokens: str, speaker: str, features: str, *, final: str) -> str:
        """Add the frames (1, frames, mel) of a block, those of the prompt included."""
        graph, config = self.graph, self.config
        ahead = graph.ints(LOOKAHEAD_TOKENS)
        missing = graph.node("Mul", [final, ahead])
        count = graph.node("Sub", [graph.node("Add", [graph.size(tokens, 1), missing]), ahead])
        frames = graph.node("Mul", [count, graph.ints(FRAMES)])
        normalized = graph.node("Sub", [features, graph.number(config.mel_mean)])
        normalized = graph.node("Div", [normalized, graph.number(config.mel_std)])
        rest = graph.node("Sub", [frames, graph.size(features, 1)])
        prompt = [normalized, graph.zeros(1, rest, config.mel_bands)]
        embedding = graph.store(f"flow.{EMBEDDING}", self.weights[EMBEDDING])
        values = {
            "embedded": graph.node("Gather", [embedding, tokens], axis=0),
            "tail": graph.zeros(1, missing, config.encoder_width),
            "speaker": self._speaker(speaker),
            "prompt_mel": graph.node("Concat", prompt, axis=1),
            "conditioning": "conditioning",
        }
        encoder = TokenEncoderGraph(config, self.packed, int8=False)
        for rate, positions in enumerate((count, frames)):
            names = attention_names(config)[rate]
            keys = graph.node("Add", [self._cached("encoder", f"{names[0]}.keys"), positions])
            values[f"mask.{rate}"] = graph.zeros(1, 1, positions, keys)
            values |= self._distances(names, positions, keys, longest=(1 + rate) * MAX_BLOCK_TOKENS)
        graph.add(encoder, "encoder", values)
        return self._solve(frames)

    def _solve(self, frames: str) -> str:
        graph, config, step = self.graph, self.config, 1 / SOLVER_STEPS
        estimator = EstimatorGraph(config, self.packed, step, int8=False)
        keys = self._cached("estimator.0", f"{ESTIMATOR}.down_blocks.0.1.0.keys")
        mask = graph.zeros(1, 1, frames, graph.node("Add", [keys, frames]))
        x = graph.zeros(1, frames, config.mel_bands)
        for number, (t, r) in enumerate(pairwise(n * step for n in range(SOLVER_STEPS + 1))):
            times = {
                name: graph.store(f"{name}.{number}", value)
                for name, value in time_inputs(config, self.weights, t, r).items()
            }
            values = {"x": x, "conditioning": "conditioning", "mask": mask, "next_x": f"x.{number}"}
            graph.add(estimator, f"estimator.{number}", values | times, weights="estimator")
            x = f"x.{number}"
        scaled = graph.node("Mul", [x, graph.number(config.mel_std)])
        return graph.node("Add", [scaled, graph.number(config.mel_mean)])

    def _cached(self, prefix: str, name: str) -> str:
        """Return the cached positions (1,)."""
        return self.graph.size(f"{prefix}.{name}", 2) if self.graph.streaming else self.graph.ints(0)

    def _speaker(self, vector: str) -> str:
        """Project a vector (1, speaker) of length one to (1, 1, mel)."""
        graph, name = self.graph, "spk_embed_affine_layer"
        length = graph.node("ReduceL2", [vector, graph.ints(1)], keepdims=1)
        vector = graph.node("Div", [vector, graph.node("Max", [length, graph.number(1e-12)])])
        parts = [
            graph.store(f"flow.{name}.{part}", self.weights[f"{name}.{part}"]) for part in ("weight", "bias")
        ]
        return graph.node("Unsqueeze", [graph.node("Gemm", [vector, *parts], transB=1), graph.ints(1)])

    def _distances(self, names: list[str], queries: str, keys: str, *, longest: int) -> dict[str, str]:
        """Add the encodings of the distances keys-1 … -queries, projected by each attention layer.

        In a stream, those of the longest block are constants, and each block takes a part.
        """
        graph, width, heads = self.graph, self.config.encoder_width, self.config.encoder_heads
        one, reach = graph.ints(1), (self.config.left_context or 0) + longest
        below = graph.node("Neg", [graph.node("Add", [queries, one])])
        distance = graph.range(graph.node("Sub", [keys, one]), below, -1)
        if graph.streaming:
            distance = graph.range(graph.ints(reach), graph.ints(-reach - 1), -1)
        exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
        rate = np.exp(exponent * np.float32(-np.log(10000.0)))[:, None].astype(np.float32)
        angle = graph.node(
            "Mul", [graph.store("flow.distance_rate", rate), graph.node("Cast", [distance], to=FLOAT)]
        )
        waves = [
            graph.node("Unsqueeze", [graph.node(wave, [angle]), graph.ints(1)]) for wave in ("Sin", "Cos")
        ]
        encoding = graph.node("Reshape", [graph.node("Concat", waves, axis=1), graph.ints(width, -1)])
        first = graph.node("Sub", [graph.ints(reach + 1), keys])
        end = graph.node("Add", [graph.ints(reach + 1), queries])
        values = {}
        for name in names:
            weight = graph.store(f"flow.{name}.linear_pos", self.weights[f"{name}.linear_pos.weight"])
            table = graph.node("MatMul", [weight, encoding])
            table = graph.node("Mul", [table, graph.number((width // heads) ** -0.5)])
            table = graph.node("Reshape", [table, graph.ints(heads, width // heads, -1)])
            values[f"{name}.distances"] = graph.cut(table, first, end, 2) if graph.streaming else table
        return values


def _add_waveform(graph: ComposedGraph, vocoder: NetworkGraph, mel: str, *, final: str) -> None:
    """Add the output "waveform" of frames (1, frames, mel), with what vocoder_blocks.py computes in numpy."""
    done = graph.state("vocoder.frames", INT64, (1,), (1,))
    if graph.streaming:
        graph.node("Add", [done, graph.size(mel, 1)], [NEW + done])
    flush = graph.node("Mul", [final, graph.ints(FLUSH_FRAMES)])
    shape = graph.node("Concat", [graph.ints(1), flush, graph.size(mel, 2)], axis=0)
    silence = graph.node("Expand", [graph.number(SILENT_LOG_MEL), shape])
    mel = graph.node("Concat", [mel, silence], axis=1)
    values = {
        "mel": graph.node("Transpose", [mel], perm=(0, 2, 1)),
        "noise": _noise(graph, done, graph.size(mel, 1)),
        "samples": "vocoder.samples",
    }
    graph.add(vocoder, "vocoder", values)
    start = graph.node("Sub", [graph.node("Mul", [done, graph.ints(FRAME)]), graph.ints(DELAY_SAMPLES)])
    zero = graph.ints(0)
    before = graph.node("Max", [graph.node("Neg", [start]), zero])
    after = graph.node("Mul", [final, graph.ints(FLUSH_FRAMES * FRAME - DELAY_SAMPLES)])
    end = graph.node("Sub", [graph.size("vocoder.samples", 1), after])
    x = graph.cut("vocoder.samples", before, end, 1)
    first = graph.node("Max", [start, zero])
    place = graph.range(first, graph.node("Add", [first, graph.size(x, 1)]))
    gain = fade_in()
    place = graph.node("Min", [place, graph.ints(len(gain) - 1)])
    gains = graph.node("Gather", [graph.store("fade_in", gain), place], axis=0)
    graph.node("Mul", [x, gains], ["waveform"])
    graph.output("waveform", FLOAT, (1, "samples"))


def _noise(graph: ComposedGraph, done: str, frames: str) -> str:
    """Return the noise (1, samples) of frames, of which the first has the number `done`."""
    noise = normal(stream_key(0, "source"), 0, NOISE_FRAMES * FRAME, 1).astype(np.float16)
    table = graph.store("vocoder.noise", noise.reshape(NOISE_FRAMES, FRAME))
    place = graph.range(done, graph.node("Add", [done, frames]))
    place = graph.node("Mod", [place, graph.ints(NOISE_FRAMES)])
    return graph.node("Reshape", [graph.node("Gather", [table, place], axis=0), graph.ints(1, -1)])
