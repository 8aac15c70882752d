"""HiFT as three graphs: pitch, the features of the excitation, and the generator, which may be divided.

Activations are (rows, channels, 1, columns): ONNX Runtime has its fastest convolutions in two dimensions.

    f0 = |linear(elu(conv(… elu(conv(mel)))))|                                  PitchGraph

    spectrum = stft(excitation)                                                  SourceGraph
    source[stage] = resblock(strided_conv(spectrum))

    x = conv_pre(mel)                                                            GeneratorGraph
    for each stage:
        x = transposed_conv(leaky_relu(x)) + source[stage]
        x = Σ resblock(x) over the stage's kernel sizes     (their mean: the next layer's weights are divided)
    magnitude ‖ phase = causal_conv(leaky_relu(x))
    samples = istft(min(exp(magnitude), 100) · e^{i·sin(phase)})

    resblock(x): three times   x += conv(snake(dilated_conv(snake(x))))

Snake is x + sin²(αx)/α = (v - cos v + 1)/(2α) with v = 2αx. Factor and summand belong to the convolution after
it, and the factor of v to the convolution before it if there is one. What is left is v - cos(v): two passes
over memory instead of five. In these terms a zero, which convolutions are padded with, is -1.

The STFT and its inverse are convolutions too: with a window of four hops, each hop is a sum over four columns.
"""

from __future__ import annotations

import math

import numpy as np

from nightingale.backends.onnx.network_graph import NEW, NetworkGraph
from nightingale.backends.onnx.numpy_weights import Floats, Weights
from nightingale.backends.onnx.protobuf import FLOAT, FLOAT16, INT64
from nightingale.models.chatterbox.hift.config import (
    CAUSAL_LOOKAHEAD_FRAMES,
    ISTFT_HOP,
    ISTFT_SIZE,
    RESBLOCK_DILATIONS,
    UPSAMPLE_KERNELS,
    UPSAMPLE_RATES,
    HiftConfig,
)

BINS = ISTFT_SIZE // 2 + 1
HOPS = ISTFT_SIZE // ISTFT_HOP
"""Hops that a window covers."""
F0_LAYERS = 5
STAGES = range(len(UPSAMPLE_RATES))
LAST_STAGE = STAGES[-1]
MAGNITUDE_LIMIT = 100.0
PADDED_SNAKE = -1.0


class ConvGraph(NetworkGraph):
    """Convolutions over (rows, channels, 1, columns).

    Those of a causal vocoder are streaming. A two-sided one is computed whole: its layers are padded.
    """

    def __init__(self, config: HiftConfig, weights: Weights, *, float16: bool = False) -> None:
        """float16: compute the convolutions of resblocks in float16."""
        super().__init__(weights, whole=not config.causal)
        self.config, self.float16 = config, float16

    def conv(
        self, x: str, weight: Floats, bias: Floats, name: str, *, stride: int = 1, dilation: int = 1
    ) -> str:
        """Convolve without padding; weight is (outputs, inputs, taps)."""
        inputs = [x, self.tensor(f"{name}.weight", weight[:, :, None]), self.tensor(f"{name}.bias", bias)]
        return self.node("Conv", inputs, strides=(1, stride), dilations=(1, dilation))

    def join_inputs(
        self, x: str, name: str, channels: int, *, span: int, left: int, fill: float = 0.0
    ) -> str:
        """Return x after the columns before it: `left` padding at first, later `span` from earlier blocks.

        Computed whole, x has half of the span on each side.
        """
        if self.whole:
            return self.pad(x, 4, 3, span // 2, span - span // 2, fill)
        cache = self.cache(f"{name}.inputs", (channels, 1, f"{name}.past"), axis=3, start=left, fill=fill)
        joined = self.node("Concat", [cache, x], axis=3)
        self.slice(joined, -span, None, 3, NEW + cache)
        return joined

    def named_conv(self, x: str, name: str, *, dilation: int = 1, scale: float = 1.0) -> str:
        """Convolve causally with a layer of the checkpoint; `scale` is a factor of its input."""
        weight, bias = scale * self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        span = (weight.shape[2] - 1) * dilation
        joined = self.join_inputs(x, name, weight.shape[1], span=span, left=span)
        return self.conv(joined, weight, bias, name, dilation=dilation)

    def resblock(self, x: str, name: str) -> str:
        for number, dilation in enumerate(RESBLOCK_DILATIONS):
            first, second = (f"{name}.convs{n}.{number}" for n in (1, 2))
            alpha1, alpha2 = (self.weights[f"{name}.activations{n}.{number}.alpha"] for n in (1, 2))
            factor = self.tensor(f"{first}.factor", (2 * alpha1)[:, None, None])
            y = self._snake_conv(self.node("Mul", [x, factor]), first, alpha1, dilation, 2 * alpha2)
            y = self._snake_conv(y, second, alpha2, 1, np.ones_like(alpha2))
            x = self.node("Add", [x, y])
        return x

    def _snake_conv(self, v: str, name: str, alpha: Floats, dilation: int, scale: Floats) -> str:
        """Apply snake to v = 2αx and convolve; `scale` (outputs,) multiplies the result."""
        snake = self.node("Sub", [v, self.node("Cos", [v])])
        weight = scale[:, None, None] * self.weights[f"{name}.weight"] / (2 * (alpha + 1e-9))[None, :, None]
        # The summand 1 of the snake, which is 0 beyond the start: there, v - cos v is -1.
        bias = scale * self.weights[f"{name}.bias"] + weight.sum(axis=(1, 2))
        span = (weight.shape[2] - 1) * dilation
        joined = self.join_inputs(snake, name, weight.shape[1], span=span, left=span, fill=PADDED_SNAKE)
        if not self.float16:
            return self.conv(joined, weight, bias, name, dilation=dilation)
        half = self.node("Cast", [joined], to=FLOAT16)
        y = self.conv(half, weight.astype(np.float16), bias.astype(np.float16), name, dilation=dilation)
        return self.node("Cast", [y], to=FLOAT)


class PitchGraph(ConvGraph):
    """mel (rows, bands, 1, frames) -> f0_hz (rows, 1, 1, frames).

    The first layers look one frame ahead each, so the output is three frames behind the input. In the last
    block they are padded by mel_tail and hidden_tail (rows, bands or channels, 1, 0 or 1), which are zeros. A
    two-sided vocoder has neither.
    """

    def __init__(self, config: HiftConfig, weights: Weights) -> None:
        super().__init__(config, weights)
        self.input("mel", FLOAT, ("rows", config.mel_bands, 1, "frames"))
        if not self.whole:
            self.input("mel_tail", FLOAT, ("rows", config.mel_bands, 1, "tail"))
            self.input("hidden_tail", FLOAT, ("rows", config.f0_channels, 1, "tail"))
        x = "mel"
        for layer in range(F0_LAYERS):
            name = f"f0_predictor.condnet.{2 * layer}"
            weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
            looks_ahead = layer < CAUSAL_LOOKAHEAD_FRAMES and not self.whole
            if looks_ahead:
                x = self.node("Concat", [x, "hidden_tail" if layer else "mel_tail"], axis=3)
            span = weight.shape[2] - 1
            x = self.join_inputs(x, name, weight.shape[1], span=span, left=span - looks_ahead)
            x = self.node("Elu", [self.conv(x, weight, bias, name)])
        name = "f0_predictor.classifier"
        f0 = self.conv(x, self.weights[f"{name}.weight"][..., None], self.weights[f"{name}.bias"], name)
        self.node("Abs", [f0], ["f0_hz"])
        self.output("f0_hz", FLOAT, ("rows", 1, 1, "known"))


class SourceGraph(ConvGraph):
    """excitation (rows, 1, 1, samples) -> source.N (rows, channels, 1, columns) of each stage.

    Windows of the STFT reach from block to block, so the excitation includes the last samples of the previous
    block, and it is padded by reflection at both ends of the utterance.
    """

    def __init__(self, config: HiftConfig, weights: Weights, *, float16: bool = False) -> None:
        super().__init__(config, weights, float16=float16)
        self.input("excitation", FLOAT, ("rows", 1, 1, "samples"))
        zeros = np.zeros(2 * BINS, np.float32)
        spectrum = self.conv("excitation", stft_kernel(), zeros, "stft", stride=ISTFT_HOP)
        for stage in STAGES:
            name, stride = f"source_downs.{stage}", math.prod(UPSAMPLE_RATES[stage + 1 :])
            weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
            x = spectrum
            if stride > 1:
                # A two-sided layer has as many columns of padding as its stride, half of them on each side.
                span = stride // 2 * 2 if self.whole else weight.shape[2] - 1
                x = self.join_inputs(x, name, 2 * BINS, span=span, left=stride)
            x = self.resblock(self.conv(x, weight, bias, name, stride=stride), f"source_resblocks.{stage}")
            self.node("Identity", [x], [f"source.{stage}"])
            channels = config.base_channels >> (stage + 1)
            self.output(f"source.{stage}", FLOAT, ("rows", channels, 1, f"columns.{stage}"))


class GeneratorGraph(ConvGraph):
    """The generator, or some of its upsampling stages. Inputs and output, besides the caches:

    mel         (rows, bands, 1, frames)       with three frames of zeros after the last one
    x           (rows, channels, 1, columns)   of the stages before; in place of mel if the first stage is not included
    source.N    (rows, channels, 1, columns)   of each stage
    reflect     (1 or 0,) int64                1 in the first block: the column that is put before the others
    tail        (rows, 18, 1, 0 or 1)          a column of zeros after the last one
    hops        (rows, 4, 1, n)                n · 4 samples
    upsampled   (rows, channels, 1, columns)   in place of the last three if the last stage is not included
    """

    def __init__(
        self, config: HiftConfig, weights: Weights, *, stages: range = STAGES, float16: bool = False
    ) -> None:
        super().__init__(config, weights, float16=float16)
        self.kernels = len(config.resblock_kernels)
        x = self._pre() if 0 in stages else self.input("x", FLOAT, self._shape(stages[0], "columns"))
        if LAST_STAGE in stages:
            self.input("reflect", INT64, ("reflected",))
            self.input("tail", FLOAT, ("rows", 2 * BINS, 1, "tail"))
        for stage in stages:
            x = self._stage(x, stage)
        if LAST_STAGE in stages:
            x = self.node("LeakyRelu", [x], alpha=0.01)
            self._istft(self.named_conv(x, "conv_post", scale=1 / self.kernels))
        else:
            self.node("Identity", [x], ["upsampled"])
            self.output("upsampled", FLOAT, self._shape(stages[-1] + 1, "upsampled"))

    def _shape(self, stage: int, columns: str) -> tuple[int | str, ...]:
        """Return the shape of a stage's input."""
        return "rows", self.config.base_channels >> stage, 1, columns

    def _pre(self) -> str:
        mel, name = self.input("mel", FLOAT, ("rows", self.config.mel_bands, 1, "frames")), "conv_pre"
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        span = weight.shape[2] - 1
        x = self.join_inputs(mel, name, self.config.mel_bands, span=span, left=span // 2)
        return self.conv(x, weight, bias, name)

    def _stage(self, x: str, stage: int) -> str:
        """Add an upsampling stage; return the sum of its resblocks."""
        scale = 1 / self.kernels if stage else 1.0
        x = self._upsample(self.node("LeakyRelu", [x], alpha=0.1), stage, scale)
        if stage == LAST_STAGE:  # a centred STFT has one more column than hops
            x = self.node("Concat", [self.node("Gather", [x, "reflect"], axis=3), x], axis=3)
        x = self._add_source(x, stage)
        blocks = [self.resblock(x, f"resblocks.{stage * self.kernels + n}") for n in range(self.kernels)]
        return blocks[0] if self.kernels == 1 else self.node("Sum", blocks)

    def _upsample(self, x: str, stage: int, scale: float) -> str:
        """Apply a transposed convolution; in a causal one, inputs before the block reach into it."""
        name, stride, taps = f"ups.{stage}", UPSAMPLE_RATES[stage], UPSAMPLE_KERNELS[stage]
        weight = scale * self.weights[f"{name}.weight"]  # (inputs, outputs, taps)
        if self.whole:
            inputs = [x, self.tensor(f"{name}.weight", weight[:, :, None]), self.weight(f"{name}.bias")]
            cut = (taps - stride) // 2
            return self.node("ConvTranspose", inputs, strides=(1, stride), pads=(0, cut, 0, cut))
        before = -(-taps // stride) - 1
        joined = self.join_inputs(x, name, weight.shape[0], span=before, left=before)
        inputs = [joined, self.tensor(f"{name}.weight", weight[:, :, None]), self.weight(f"{name}.bias")]
        y = self.node("ConvTranspose", inputs, strides=(1, stride))
        return self.slice(y, before * stride, stride - taps, 3)

    def _add_source(self, x: str, stage: int) -> str:
        """Add the excitation's features; the one of the two that is ahead waits in a cache.

        The mel's path is one column ahead in the first stage, whose windows reach farther, and behind in the
        others, which follow the first.
        """
        channels = self.config.base_channels >> (stage + 1)
        columns = ("rows", channels, 1, f"columns.{stage}")
        source = self.input(f"source.{stage}", FLOAT, columns)
        if self.whole:
            return self.node("Add", [x, source])
        ahead, behind = (x, source) if stage == 0 else (source, x)
        cache = self.cache(f"ahead.{stage}", (channels, 1, f"ahead.{stage}.columns"), axis=3)
        joined = self.node("Concat", [cache, ahead], axis=3)
        end = self.node("Shape", [behind], start=3)
        known = self.node("Slice", [joined, self.ints(0), end, self.ints(3)])
        self.node("Slice", [joined, end, self.ints(np.iinfo(np.int64).max), self.ints(3)], [NEW + cache])
        return self.node("Add", [known, behind])

    def _istft(self, x: str) -> None:
        """Overlap-add windows, four samples at a time, and divide by the energy of four windows."""
        self.node("Split", [x], ["log_magnitude", "raw_phase"], axis=1, num_outputs=2)
        limit = self.number(math.log(MAGNITUDE_LIMIT))
        magnitude = self.node("Exp", [self.node("Min", ["log_magnitude", limit])])
        phase = self.node("Sin", ["raw_phase"])
        parts = [self.node("Mul", [magnitude, self.node(wave, [phase])]) for wave in ("Cos", "Sin")]
        spectrum = self.node("Concat", [self.node("Concat", parts, axis=1), "tail"], axis=3)
        if self.whole:
            joined = self.pad(spectrum, 4, 3, HOPS - 1, 0)
        else:
            joined = self.join_inputs(spectrum, "istft", 2 * BINS, span=HOPS - 1, left=HOPS - 1)
        zeros = np.zeros(ISTFT_HOP, np.float32)
        self.node("Identity", [self.conv(joined, istft_kernel(), zeros, "istft")], ["hops"])
        self.output("hops", FLOAT, ("rows", ISTFT_HOP, 1, "n"))


def window() -> Floats:
    """Return the periodic Hann window of the STFT."""
    angle = 2 * np.pi * np.arange(ISTFT_SIZE) / ISTFT_SIZE
    hann: Floats = (0.5 - 0.5 * np.cos(angle)).astype(np.float32)
    return hann


def window_energy() -> Floats:
    """Return the squares of the window by hop, (hops, samples of a hop); all hops add up to 1.5."""
    return np.square(window()).reshape(HOPS, ISTFT_HOP)


def stft_kernel() -> Floats:
    """Return the real, then the imaginary parts of all bins, (18, 1, 16)."""
    angle = 2 * np.pi * np.outer(np.arange(BINS), np.arange(ISTFT_SIZE)) / ISTFT_SIZE
    waves = np.concatenate([np.cos(angle), -np.sin(angle)])
    return (waves * window()).astype(np.float32)[:, None]


def istft_kernel() -> Floats:
    """Return the inverse, (4, 18, 4): the samples of a hop from the columns that cover it, oldest first."""
    angle = 2 * np.pi * np.outer(np.arange(BINS), np.arange(ISTFT_SIZE)) / ISTFT_SIZE
    twice = np.full((BINS, 1), 2.0)
    twice[[0, -1]] = 1.0  # these bins have no mirror image
    waves = np.concatenate([twice * np.cos(angle), -twice * np.sin(angle)]) / ISTFT_SIZE
    by_hop = (waves * window()).reshape(2 * BINS, HOPS, ISTFT_HOP) / window_energy().sum(axis=0)
    return np.ascontiguousarray(by_hop[:, ::-1].transpose(2, 0, 1), np.float32)
