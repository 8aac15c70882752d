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
    mel                 (1, frames, mel)    two frames for each token of the block; the first block of a
                                            vocoder needs four frames or more, and lags three behind
    waveform            (1, samples)

The block graphs use the weights of conditional_decoder. The excitation's noise is a table, so that results can
be compared: that of seed 0, repeated after `NOISE_SAMPLES`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from nightingale.backends.onnx.network_graph import NEW
from nightingale.backends.onnx.numpy_weights import LazyFloats, PackedWeights, Weights
from nightingale.backends.onnx.protobuf import DOUBLE, FLOAT, INT64
from nightingale.backends.onnx.rendering import excitation as source
from nightingale.backends.onnx.rendering.flow_graph import (
    ESTIMATOR,
    EstimatorGraph,
    TokenEncoderGraph,
    attention_names,
)
from nightingale.backends.onnx.rendering.flow_stream import EMBEDDING, SOLVER_STEPS, time_inputs
from nightingale.backends.onnx.rendering.hift_graph import (
    BINS,
    GeneratorGraph,
    PitchGraph,
    SourceGraph,
    window_energy,
)
from nightingale.backends.onnx.rendering.vocoder_stream import HALF_WINDOW, SAMPLE_LIMIT
from nightingale.clocks import CLOCKS
from nightingale.decoding.philox import normal, stream_key
from nightingale.export.composed_graph import ComposedGraph, WeightsFile
from nightingale.models.chatterbox.hift.config import (
    CAUSAL_LOOKAHEAD_FRAMES,
    ISTFT_HOP,
    ISTFT_SIZE,
    MAX_HARMONIC_HZ,
    NOISY_HARMONICS,
    UPSAMPLE_RATES,
    HiftConfig,
)
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS, FlowConfig

FRAMES: Final = CLOCKS.frames_per_token
FRAME: Final = CLOCKS.samples_per_frame
NOISE_SAMPLES: Final = 10 * CLOCKS.sample_rate_hz
MAX_BLOCK_TOKENS: Final = 64
"""The longest block of a stream."""


def conditional_decoder(
    flow: FlowConfig, flow_weights: PackedWeights, hift: HiftConfig, hift_weights: Weights, file: WeightsFile
) -> ComposedGraph:
    graph = ComposedGraph(file)
    tokens, speaker, features = _token_inputs(graph, flow)
    mel = _Flow(graph, flow, flow_weights).mel(tokens, speaker, features, final=graph.ints(1))
    last = graph.ints(np.iinfo(np.int64).max)
    mel = graph.cut(mel, graph.size(features, 1), last, 1)
    _Vocoder(graph, hift, hift_weights).add_waveform(mel, final=graph.ints(1))
    return graph


def flow_block(config: FlowConfig, weights: PackedWeights, file: WeightsFile) -> ComposedGraph:
    graph = ComposedGraph(file, streaming=True)
    tokens, speaker, features = _token_inputs(graph, config)
    final = graph.input("final", INT64, (1,))
    mel = _Flow(graph, config, weights).mel(tokens, speaker, features, final=final)
    graph.node("Identity", [mel], ["mel"])
    graph.output("mel", FLOAT, (1, "frames", config.mel_bands))
    return graph


def vocoder_block(config: HiftConfig, weights: Weights, file: WeightsFile) -> ComposedGraph:
    graph = ComposedGraph(file, streaming=True)
    mel = graph.input("mel", FLOAT, (1, "frames", config.mel_bands))
    final = graph.input("final", INT64, (1,))
    _Vocoder(graph, config, weights).add_waveform(mel, final=final)
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


class _Vocoder:
    """Adds the vocoder to a graph: its three networks, with what vocoder_stream.py computes in numpy."""

    def __init__(self, graph: ComposedGraph, config: HiftConfig, weights: Weights) -> None:
        self.graph, self.config, self.weights = graph, config, weights

    def add_waveform(self, mel: str, *, final: str) -> None:
        """Add the output "waveform" of frames (1, frames, mel)."""
        graph, config = self.graph, self.config
        done = graph.state("vocoder.frames", INT64, (1,), (1,))
        first = graph.node("Cast", [graph.node("Equal", [done, graph.ints(0)])], to=INT64)
        mel = graph.node("Unsqueeze", [graph.node("Transpose", [mel], perm=(0, 2, 1)), graph.ints(2)])
        values = {
            "mel": mel,
            "mel_tail": graph.zeros(1, config.mel_bands, 1, final),
            "hidden_tail": graph.zeros(1, config.f0_channels, 1, final),
            "f0_hz": "f0_hz",
        }
        graph.add(PitchGraph(config, self.weights), "pitch", values, float16=True)
        sources = {f"source.{stage}": f"source.{stage}" for stage in range(len(UPSAMPLE_RATES))}
        padded = self._pad_excitation(self._excitation("f0_hz", done), first, final)
        # Streams are for browsers, whose Cos is slow.
        polynomial = graph.streaming
        values = {"excitation": padded, **sources}
        graph.add(
            SourceGraph(config, self.weights), "source", values, float16=True, polynomial_cos=polynomial
        )
        after = graph.node("Mul", [final, graph.ints(CAUSAL_LOOKAHEAD_FRAMES)])
        padded_mel = [mel, graph.zeros(1, config.mel_bands, 1, after)]
        values = {
            **sources,
            "mel": graph.node("Concat", padded_mel, axis=3),
            "reflect": graph.cut(graph.ints(1), graph.ints(0), first, 0),
            "tail": graph.zeros(1, 2 * BINS, 1, final),
            "hops": "hops",
        }
        graph.add(
            GeneratorGraph(config, self.weights), "generator", values, float16=True, polynomial_cos=polynomial
        )
        self._finish("hops", first, final)

    def _excitation(self, f0: str, done: str) -> str:
        """Return the excitation (frames, 480) of excitation.py; `done` frames came before."""
        graph, config = self.graph, self.config
        f0 = graph.node("Reshape", [f0, graph.ints(-1, 1)])
        voiced = graph.node("Greater", [f0, graph.number(source.VOICED_ABOVE_HZ)])
        weight = self.weights["m_source.l_linear.weight"]  # (1, harmonics)
        numbers = graph.tensor("harmonics", np.arange(1, config.harmonics + 1, dtype=np.float32)[None])
        below = graph.node("Less", [graph.node("Mul", [f0, numbers]), graph.number(MAX_HARMONIC_HZ)])
        audible = graph.node("Cast", [graph.node("And", [voiced, below])], to=FLOAT)
        scaled = graph.tensor("harmonic_amplitudes", np.float32(source.SINE_AMPLITUDE) * weight)
        amplitude = graph.node("Mul", [audible, scaled])
        angle = self._angles(f0)
        tone = self._sum_in_phase(angle, amplitude)
        key = stream_key(0, "source")
        noise = normal(key, 0, NOISE_SAMPLES, NOISY_HARMONICS) @ weight[0, :NOISY_HARMONICS]
        count = graph.node("Mul", [graph.size(f0, 0), graph.ints(FRAME)])
        start = graph.node("Mul", [done, graph.ints(FRAME)])
        place = graph.range(start, graph.node("Add", [start, count]))
        place = graph.node("Mod", [place, graph.ints(NOISE_SAMPLES)])
        hiss = graph.node("Gather", [graph.store("excitation_noise", noise, float16=True), place], axis=0)
        hiss = graph.node("Reshape", [hiss, graph.ints(-1, FRAME)])
        levels = [graph.number(level) for level in (source.VOICED_NOISE, source.UNVOICED_NOISE)]
        hiss = graph.node("Mul", [graph.node("Where", [voiced, *levels]), hiss])
        bias = graph.tensor("excitation_bias", self.weights["m_source.l_linear.bias"])
        graph.node("Add", [done, graph.size(f0, 0)], [NEW + done])
        return graph.node("Tanh", [graph.node("Add", [graph.node("Add", [tone, hiss]), bias])])

    def _angles(self, f0: str) -> str:
        """Return the phase (frames, 480) of the fundamental, in radians; cycles are counted in float64."""
        graph = self.graph
        known = graph.state("vocoder.cycles", DOUBLE, (1,), (1,))
        steps = graph.node("Div", [f0, graph.number(float(CLOCKS.sample_rate_hz))])
        steps = graph.node("Cast", [steps], to=DOUBLE)
        frame, places = (
            graph.node("Cast", [value], to=DOUBLE)
            for value in (
                graph.number(float(FRAME)),
                graph.node("Unsqueeze", [graph.range(graph.ints(1), graph.ints(FRAME + 1)), graph.ints(0)]),
            )
        )
        moved = graph.node("Mul", [frame, steps])
        ends = graph.node(
            "Add", [graph.node("CumSum", [moved, graph.node("Squeeze", [graph.ints(0)])]), known]
        )
        graph.node("Reshape", [graph.slice(ends, -1, None, 0), graph.ints(1)], [NEW + known])
        cycles = graph.node("Add", [graph.node("Sub", [ends, moved]), graph.node("Mul", [steps, places])])
        fraction = graph.node("Sub", [cycles, graph.node("Floor", [cycles])])
        return graph.node("Mul", [graph.node("Cast", [fraction], to=FLOAT), graph.number(2 * np.pi)])

    def _sum_in_phase(self, angle: str, amplitude: str) -> str:
        """Sum the harmonics (frames, harmonics) of one phase by Clenshaw's recurrence."""
        graph, count = self.graph, self.config.harmonics
        factors = [f"harmonic.{number}" for number in range(count)]
        graph.node("Split", [amplitude], factors, axis=1, num_outputs=count)
        twice_cos = graph.node("Mul", [graph.node("Cos", [angle]), graph.number(2.0)])
        last, last_but_one = factors[-1], graph.number(0.0)
        for factor in factors[-2::-1]:
            product = graph.node("Mul", [twice_cos, last])
            last, last_but_one = (
                graph.node("Add", [graph.node("Sub", [factor, last_but_one]), product]),
                last,
            )
        return graph.node("Mul", [last, graph.node("Sin", [angle])])

    def _pad_excitation(self, excitation: str, first: str, final: str) -> str:
        """Return (1, 1, 1, samples): after the samples that windows reach back to, reflected at both ends."""
        graph, half, zero = self.graph, self.graph.ints(HALF_WINDOW), self.graph.ints(0)
        x = graph.node("Reshape", [excitation, graph.ints(1, 1, 1, -1)])
        name, kept = "vocoder.excitation", ISTFT_SIZE - ISTFT_HOP
        known = graph.state(name, FLOAT, (1, 1, 1, f"{name}.past"), (1, 1, 1, 0))
        left = graph.cut(x, graph.node("Mul", [first, half]), zero, 3, step=-1)
        x = graph.node("Concat", [known, left, x], axis=3)
        start = graph.node("Sub", [graph.size(x, 3), graph.ints(2)])
        end = graph.node("Sub", [start, graph.node("Mul", [final, half])])
        x = graph.node("Concat", [x, graph.cut(x, start, end, 3, step=-1)], axis=3)
        graph.slice(x, -kept, None, 3, NEW + known)
        return x

    def _finish(self, hops: str, first: str, final: str) -> None:
        """Add samples from hops (1, 4, 1, n): the energy of the last hop, the limit, and the fade-in."""
        graph, last = self.graph, self.graph.ints(np.iinfo(np.int64).max)
        x = graph.node("Transpose", [hops], perm=(0, 3, 1, 2))
        x = graph.node("Reshape", [x, graph.ints(1, -1)])
        energy = window_energy()
        gain = graph.tensor("last_hop_gain", energy.sum(axis=0) / energy[1:].sum(axis=0))
        hop = graph.node("Mul", [final, graph.ints(ISTFT_HOP)])
        end = graph.node("Sub", [graph.size(x, 1), hop])
        tail = graph.node("Mul", [graph.cut(x, end, last, 1), graph.cut(gain, graph.ints(0), hop, 0)])
        x = graph.node("Concat", [graph.cut(x, graph.ints(0), end, 1), tail], axis=1)
        x = graph.cut(x, graph.node("Mul", [first, graph.ints(HALF_WINDOW)]), last, 1)
        x = graph.node("Clip", [x, graph.number(-SAMPLE_LIMIT), graph.number(SAMPLE_LIMIT)])
        emitted = graph.state("vocoder.samples", INT64, (1,), (1,))
        total = graph.node("Add", [emitted, graph.size(x, 1)])
        if graph.streaming:
            graph.node("Identity", [total], [NEW + emitted])
        # 20 ms of silence, then 20 ms of raised cosine: audio/crossfade.py::fade_in.
        place = graph.node("Cast", [graph.range(emitted, total)], to=FLOAT)
        place = graph.node("Div", [graph.node("Sub", [place, graph.number(FRAME)]), graph.number(FRAME - 1)])
        place = graph.node("Clip", [place, graph.number(0.0), graph.number(1.0)])
        fade = graph.node("Cos", [graph.node("Mul", [place, graph.number(np.pi)])])
        fade = graph.node("Mul", [graph.node("Sub", [graph.number(1.0), fade]), graph.number(0.5)])
        graph.node("Mul", [x, fade], ["waveform"])
        graph.output("waveform", FLOAT, (1, "samples"))
