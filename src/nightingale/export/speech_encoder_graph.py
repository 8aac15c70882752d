"""The graph from a reference clip to a voice.

speech_encoder
    audio_values        (1, samples)          mono, 24 kHz, a second or more
    audio_features      (1, 1, width)         what the language model reads before the text
    audio_tokens        (1, n) int64          the clip's first tokens, a prompt of the decoder
    speaker_embeddings  (1, speaker)
    speaker_features    (1, 2n, mel)          the mel of the audio_tokens

It is the path of engine/cloning.py and backends/onnx/encoding, except that all resampling is by the short sinc
filters; the engine uses soxr for the speaker vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from nightingale.audio import reference_check
from nightingale.audio.resample import sinc_filters
from nightingale.backends.onnx.encoding.encoder_graphs import SpeechTokenizerGraph, VoiceEncoderGraph
from nightingale.backends.onnx.numpy_weights import PackedWeights, Weights, dequantize
from nightingale.backends.onnx.protobuf import FLOAT, INT64
from nightingale.backends.onnx.streaming_session import MASKED
from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS
from nightingale.export.composed_graph import ComposedGraph, WeightsFile
from nightingale.models.chatterbox.encoders.config import FSQ_LEVELS, FSQ_SCALE, ROPE_THETA
from nightingale.models.chatterbox.presets import Preset
from nightingale.models.layers.mel_config import (
    FLOW_MEL,
    TOKEN_MEL,
    VOICE_MEL,
    MelConfig,
    slaney_triangles,
)

END: Final = int(np.iinfo(np.int64).max)


def speech_encoder(
    preset: Preset,
    weights: Mapping[str, Weights],
    t3_weights: PackedWeights,
    file: WeightsFile,
    *,
    prompt_samples: int,
) -> ComposedGraph:
    """Build the graph from the weights of "speech_tokenizer" and "voice_encoder", and T3's."""
    return _Encoder(preset, weights, file).build(t3_weights, prompt_samples)


class _Encoder:
    def __init__(self, preset: Preset, weights: Mapping[str, Weights], file: WeightsFile) -> None:
        self.graph, self.preset, self.weights = ComposedGraph(file), preset, weights

    def build(self, t3_weights: PackedWeights, prompt_samples: int) -> ComposedGraph:
        graph = self.graph
        clip = graph.input("audio_values", FLOAT, (1, "samples"))
        prompt = graph.slice(clip, 0, prompt_samples, 1)
        mel = self._flow_mel(prompt)
        ids = self._tokens(self._resample(prompt))
        most = graph.node("Div", [graph.size(mel, 1), graph.ints(CLOCKS.frames_per_token)])
        ids = graph.cut(ids, graph.ints(0), most, 1)
        frames = graph.node("Mul", [graph.size(ids, 1), graph.ints(CLOCKS.frames_per_token)])
        speaker = self._speaker(self._trim(self._resample(clip)))
        layer = [
            graph.store(f"spkr_enc.{part}", dequantize(t3_weights[f"cond_enc.spkr_enc.{part}"]))
            for part in ("weight", "bias")
        ]
        features = graph.node("Unsqueeze", [graph.node("Gemm", [speaker, *layer], transB=1), graph.ints(1)])
        outputs = {
            "audio_features": (features, FLOAT, (1, 1, self.preset.t3.backbone.width)),
            "audio_tokens": (ids, INT64, (1, "n")),
            "speaker_embeddings": (speaker, FLOAT, (1, self.preset.voice_encoder.embedding)),
            "speaker_features": (
                graph.cut(mel, graph.ints(0), frames, 1),
                FLOAT,
                (1, "frames", self.preset.flow.mel_bands),
            ),
        }
        for name, (value, dtype, shape) in outputs.items():
            graph.node("Identity", [value], [name])
            graph.output(name, dtype, shape)
        return graph

    def _resample(self, clip: str) -> str:
        """Return samples (1, n) at 16 kHz: the filters of `resample_sinc` as one convolution."""
        graph = self.graph
        common = np.gcd(CLOCKS.sample_rate_hz, ANALYSIS_RATE_HZ)
        down, up = int(CLOCKS.sample_rate_hz // common), int(ANALYSIS_RATE_HZ // common)
        filters, reach = sinc_filters(down, up)
        x = graph.node("Unsqueeze", [clip, graph.ints(1)])
        kernel = graph.tensor("resampling", filters[:, None])
        x = graph.node("Conv", [x, kernel], strides=(down,), pads=(reach, reach + down))
        x = graph.node("Reshape", [graph.node("Transpose", [x], perm=(0, 2, 1)), graph.ints(1, -1)])
        count = graph.node("Mul", [graph.size(clip, 1), graph.ints(up)])
        count = graph.node("Div", [graph.node("Add", [count, graph.ints(down - 1)]), graph.ints(down)])
        return graph.cut(x, graph.ints(0), count, 1)

    def _trim(self, samples: str) -> str:
        """Cut off silence at both ends, as `sound_span` does."""
        graph, hop = self.graph, reference_check.HOP_SAMPLES
        overlap = reference_check.FRAME_SAMPLES // hop
        # As many zeros after the clip as fill the last hop and the last frame.
        pads = graph.ints(0, reference_check.FRAME_SAMPLES // 2, 0, reference_check.FRAME_SAMPLES + hop)
        padded = graph.node("Pad", [graph.node("Mul", [samples, samples]), pads])
        frames = graph.node(
            "Add", [graph.node("Div", [graph.size(samples, 1), graph.ints(hop)]), graph.ints(1)]
        )
        hops = graph.node("Add", [frames, graph.ints(overlap - 1)])
        padded = graph.cut(padded, graph.ints(0), graph.node("Mul", [hops, graph.ints(hop)]), 1)
        energy = graph.node(
            "ReduceSum", [graph.node("Reshape", [padded, graph.ints(1, 1, -1, hop)]), graph.ints(3)]
        )
        energy = graph.node("Reshape", [energy, graph.ints(1, 1, -1)])
        ones = graph.tensor("frame_of_hops", np.full((1, 1, overlap), 1 / reference_check.FRAME_SAMPLES))
        power = graph.node("Reshape", [graph.node("Conv", [energy, ones]), graph.ints(-1)])
        power = graph.node("Max", [power, graph.number(reference_check.FLOOR_POWER)])
        limit = graph.node("ReduceMax", [power], keepdims=1)
        limit = graph.node("Mul", [limit, graph.number(10 ** (-reference_check.TOP_DB / 10))])
        loud = graph.node(
            "Reshape", [graph.node("NonZero", [graph.node("Greater", [power, limit])]), graph.ints(-1)]
        )
        first, last = graph.slice(loud, 0, 1, 0), graph.slice(loud, -1, None, 0)
        start = graph.node("Mul", [first, graph.ints(hop)])
        end = graph.node("Mul", [graph.node("Add", [last, graph.ints(1)]), graph.ints(hop)])
        return graph.cut(samples, start, end, 1)

    def _power(self, samples: str, config: MelConfig, margin: int) -> str:
        """Return the power (1, frames, bins) of samples that are padded by reflection."""
        graph, size = self.graph, config.fft_samples
        padded = graph.node("Pad", [samples, graph.ints(0, margin, 0, margin)], mode="reflect")
        padded = graph.node("Unsqueeze", [padded, graph.ints(2)])
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
        step, length = (graph.node("Squeeze", [graph.ints(n)]) for n in (config.hop_samples, size))
        window_name = graph.store(f"window.{size}", window.astype(np.float32))
        spectrum = graph.node("STFT", [padded, step, window_name, length], onesided=1)
        return graph.node("ReduceSumSquare", [spectrum, graph.ints(3)], keepdims=0)

    def _bands(self, power: str, config: MelConfig, name: str) -> str:
        filters = self.graph.store(f"filters.{name}", np.ascontiguousarray(slaney_triangles(config).T))
        return self.graph.node("MatMul", [power, filters])

    def _flow_mel(self, prompt: str) -> str:
        graph, config = self.graph, replace(FLOW_MEL, bands=self.preset.flow.mel_bands)
        power = self._power(prompt, config, (config.fft_samples - config.hop_samples) // 2)
        magnitude = graph.node("Sqrt", [graph.node("Add", [power, graph.number(1e-9)])])
        mel = self._bands(magnitude, config, "flow")
        return graph.node("Log", [graph.node("Max", [mel, graph.number(1e-5)])])

    def _tokens(self, prompt: str) -> str:
        """Return the speech tokens (1, n) of a prompt at 16 kHz."""
        graph, tokenizer = self.graph, self.preset.speech_tokenizer
        config = replace(TOKEN_MEL, bands=tokenizer.mel_bands)
        power = graph.slice(self._power(prompt, config, config.fft_samples // 2), 0, -1, 1)
        mel = graph.node("Max", [self._bands(power, config, "tokens"), graph.number(1e-10)])
        mel = graph.node("Mul", [graph.node("Log", [mel]), graph.number(1 / np.log(10))])
        floor = graph.node("Sub", [graph.node("ReduceMax", [mel], keepdims=1), graph.number(8.0)])
        mel = graph.node("Add", [graph.node("Max", [mel, floor]), graph.number(4.0)])
        mel = graph.node("Transpose", [graph.node("Div", [mel, graph.number(4.0)])], perm=(0, 2, 1))
        count = graph.size(mel, 2)
        for _ in range(2):  # two convolutions with stride two
            count = graph.node("Div", [graph.node("Add", [count, graph.ints(1)]), graph.ints(2)])
        place = graph.range(graph.ints(0), count)
        column, row = (graph.node("Unsqueeze", [place, graph.ints(axis)]) for axis in (1, 0))
        distance = graph.node("Abs", [graph.node("Sub", [column, row])])
        reach = END if tokenizer.attention_reach is None else tokenizer.attention_reach
        far = graph.node("Greater", [distance, graph.ints(reach)])
        mask = graph.node("Where", [far, graph.number(float(MASKED)), graph.number(0.0)])
        half = tokenizer.width // tokenizer.heads // 2
        rate = ROPE_THETA ** (-np.arange(half, dtype=np.float32) / np.float32(half))
        angle = graph.node("Mul", [graph.node("Cast", [column], to=FLOAT), graph.tensor("rope", rate[None])])
        values = {
            "mel": mel,
            "mask": graph.node("Unsqueeze", [mask, graph.ints(0, 1)]),
            "cos": graph.node("Cos", [angle]),
            "sin": graph.node("Sin", [angle]),
            "digits": "digits",
        }
        network = SpeechTokenizerGraph(tokenizer, self.weights["speech_tokenizer"])
        graph.add(network, "tokenizer", values)
        digits = graph.node("Mul", [graph.node("Tanh", ["digits"]), graph.number(FSQ_SCALE)])
        digits = graph.node("Add", [graph.node("Round", [digits]), graph.number(1.0)])
        places = (FSQ_LEVELS ** np.arange(tokenizer.code_digits)).astype(np.float32)
        ids = graph.node("MatMul", [digits, graph.tensor("digit_places", places)])
        return graph.node("Cast", [graph.node("Round", [ids])], to=INT64)

    def _speaker(self, samples: str) -> str:
        """Return the mean vector (1, speaker) over windows, of length one."""
        graph, encoder = self.graph, self.preset.voice_encoder
        config = replace(VOICE_MEL, bands=encoder.mel_bands)
        mel = self._bands(self._power(samples, config, config.fft_samples // 2), config, "voice")
        size, step = encoder.window_frames, encoder.step_frames
        # A last window that the clip fills to min_coverage or more counts, and there is at least one.
        missing = size - int(np.ceil(encoder.min_coverage * size))
        whole = graph.node("Add", [graph.size(mel, 1), graph.ints(missing + step - size)])
        count = graph.node("Max", [graph.node("Div", [whole, graph.ints(step)]), graph.ints(1)])
        pads = graph.ints(0, 0, 0, 0, size, 0)
        mel = graph.node("Squeeze", [graph.node("Pad", [mel, pads]), graph.ints(0)])
        starts = graph.node("Mul", [graph.range(graph.ints(0), count), graph.ints(step)])
        within = graph.node("Unsqueeze", [graph.range(graph.ints(0), graph.ints(size)), graph.ints(1)])
        windows = graph.node("Gather", [mel, graph.node("Add", [within, starts])], axis=0)
        network = VoiceEncoderGraph(encoder, self.weights["voice_encoder"])
        graph.add(network, "voice", {"windows": windows, "embeddings": "embeddings"})
        mean = graph.node("ReduceMean", [self._unit("embeddings"), graph.ints(0)], keepdims=1)
        return self._unit(mean)

    def _unit(self, vectors: str) -> str:
        length = self.graph.node("ReduceL2", [vectors, self.graph.ints(1)], keepdims=1)
        longest = self.graph.node("Max", [length, self.graph.number(1e-12)])
        return self.graph.node("Div", [vectors, longest])
