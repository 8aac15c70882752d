"""The vocoder with fixed shapes: one block of mel frames to samples, the excitation included.

The arithmetic is that of models/chatterbox/hift. The program reads the frames around its block too, so that pitch
and the first layer need no caches, and one more frame of pitch, so that the windows of the STFT are complete. All
other layers are causal. Four changes make it short:

- Snake is v - cos(v) with v = 2αx; its factors belong to the convolutions around it (hift_graph.py).
- A transposed convolution is a convolution with `stride` times the outputs, whose columns are then interleaved.
- The STFT and its inverse are convolutions.
- The noise of the nine harmonics is one normal number a sample, of the same variance.

The last 12 samples of an utterance have no meaning: the program does not reflect the excitation at its end.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.clocks import CLOCKS
from nightingale.export.phone.static_layers import elu
from nightingale.models.chatterbox.hift.config import (
    ISTFT_HOP,
    ISTFT_SIZE,
    MAX_HARMONIC_HZ,
    NOISY_HARMONICS,
    UPSAMPLE_RATES,
)
from nightingale.models.chatterbox.hift.generator import (
    BINS,
    MAGNITUDE_LIMIT,
    SAMPLE_LIMIT,
    Hift,
    ResBlock,
)
from nightingale.models.chatterbox.hift.source import (
    SINE_AMPLITUDE,
    UNVOICED_NOISE,
    VOICED_ABOVE_HZ,
    VOICED_NOISE,
)
from nightingale.models.layers.conv import padding_of

BEFORE_FRAMES = 7
"""Frames before a block that its pitch depends on."""
AHEAD_FRAMES = 4
"""Frames after a block that its samples depend on."""
HALF_WINDOW = ISTFT_SIZE // 2
HOPS = ISTFT_SIZE // ISTFT_HOP
DELAY_SAMPLES = HALF_WINDOW
"""The samples of a block begin this many before its first frame."""
LOST_SAMPLES = HALF_WINDOW + ISTFT_HOP
"""Samples at the end of an utterance that have no meaning."""
AHEAD_SAMPLES = ISTFT_HOP
"""Samples of the excitation after a block that its last windows cover."""
FRAME = CLOCKS.samples_per_frame
PADDED_SNAKE = -1.0
"""The value of v - cos(v) where x is zero."""


class ColumnCaches:
    """The caches of one call, (1, channels, columns) each."""

    def __init__(self, past: tuple[Tensor, ...] | None = None) -> None:
        """past: None for the start of an utterance."""
        self._past = None if past is None else list(reversed(past))
        self.saved: list[Tensor] = []
        self.starts: list[Tensor] = []

    def take(self, shape: tuple[int, ...], fill: float = 0.0) -> Tensor:
        """Return what the previous block saved; at the start, a constant."""
        past = torch.full(shape, fill) if self._past is None else self._past.pop()
        self.starts.append(past)
        return past

    def join(self, x: Tensor, size: int, fill: float = 0.0) -> Tensor:
        """Return x after the `size` columns before it, and save its last `size`."""
        joined = torch.cat([self.take((1, x.shape[1], size), fill), x], dim=2)
        self.saved.append(joined[:, :, joined.shape[2] - size :])
        return joined


class StaticConv(nn.Module):
    """A convolution without padding that reads the `past` columns before its input."""

    def __init__(
        self, weight: Tensor, bias: Tensor, *, stride: int = 1, dilation: int = 1, past: int | None = None
    ) -> None:
        """past: by default all that the kernel reaches back to."""
        super().__init__()
        outputs, inputs, taps = weight.shape
        self.past = (taps - 1) * dilation if past is None else past
        self.conv = nn.Conv1d(inputs, outputs, taps, stride, dilation=dilation)
        self.conv.load_state_dict({"weight": weight.detach(), "bias": bias.detach()})
        self.conv.requires_grad_(False)

    def forward(self, x: Tensor, caches: ColumnCaches, fill: float = 0.0) -> Tensor:
        return self.conv(caches.join(x, self.past, fill) if self.past else x)


class StaticUpsample(nn.Module):
    """A causal transposed convolution."""

    def __init__(self, weight: Tensor, bias: Tensor, stride: int, scale: float) -> None:
        """weight: (inputs, outputs, taps)."""
        super().__init__()
        inputs, self.outputs, taps = weight.shape
        reach, self.stride = -(-taps // stride), stride
        padded = F.pad(scale * weight, (0, reach * stride - taps)).view(inputs, self.outputs, reach, stride)
        by_phase = padded.flip(2).permute(1, 3, 0, 2).reshape(-1, inputs, reach)
        self.conv = StaticConv(by_phase, bias.repeat_interleave(stride))

    def forward(self, x: Tensor, caches: ColumnCaches) -> Tensor:
        y = self.conv(F.leaky_relu(x, 0.1), caches)
        columns = y.shape[2]
        y = y.view(self.outputs, self.stride, columns).transpose(1, 2)
        return y.reshape(1, self.outputs, columns * self.stride)


class StaticSnakeBlock(nn.Module):
    """Three residual pairs of snake and convolution."""

    def __init__(self, block: ResBlock) -> None:
        super().__init__()
        self.factors, self.convs = nn.ParameterList(), nn.ModuleList()
        layers: Any = zip(block.activations1, block.convs1, block.activations2, block.convs2, strict=True)
        for snake1, conv1, snake2, conv2 in layers:
            alpha1, alpha2 = snake1.alpha.detach(), snake2.alpha.detach()
            self.factors.append(nn.Parameter(2 * alpha1[None, :, None], requires_grad=False))
            self.convs.append(_snake_conv(conv1, alpha1, 2 * alpha2))
            self.convs.append(_snake_conv(conv2, alpha2, torch.ones_like(alpha2)))

    def forward(self, x: Tensor, caches: ColumnCaches) -> Tensor:
        for number, factor in enumerate(self.factors):
            first, second = self.convs[2 * number], self.convs[2 * number + 1]
            v = x * factor
            v = first(v - torch.cos(v), caches, PADDED_SNAKE)
            x = x + second(v - torch.cos(v), caches, PADDED_SNAKE)
        return x


def _snake_conv(conv: nn.Conv1d, alpha: Tensor, scale: Tensor) -> StaticConv:
    """Return a convolution of v - cos(v); `scale` (outputs,) multiplies the result."""
    assert conv.bias is not None
    weight = scale[:, None, None] * conv.weight.detach() / (2 * (alpha + 1e-9))[None, :, None]
    # The summand 1 of the snake, which is 0 beyond the start: there, v - cos(v) is -1.
    return StaticConv(weight, scale * conv.bias.detach() + weight.sum(dim=(1, 2)), dilation=conv.dilation[0])


class StaticSource(nn.Module):
    """f0 to the excitation: harmonics in voiced frames, noise in unvoiced ones."""

    harmonics: Tensor
    ramp: Tensor

    def __init__(self, hift: Hift) -> None:
        super().__init__()
        linear = hift.m_source.l_linear
        self.weight = nn.Parameter(SINE_AMPLITUDE * linear.weight.detach()[0], requires_grad=False)
        self.bias = float(linear.bias)
        self.noise_gain = float(linear.weight.detach()[0, :NOISY_HARMONICS].norm())
        self.register_buffer("harmonics", torch.arange(1, hift.config.harmonics + 1, dtype=torch.float32))
        self.register_buffer("ramp", torch.arange(1, FRAME + 1, dtype=torch.float32)[None])

    def forward(self, f0_hz: Tensor, noise: Tensor, cycles: Tensor) -> tuple[Tensor, Tensor]:
        """Return the excitation (1, 1, samples) and the cycles after all frames but the last.

        f0_hz is (frames, 1), noise (1, samples), which may end within the last frame; cycles is (1,) in float64, or
        in float32 where the runtime has nothing wider.
        """
        frames, samples = f0_hz.shape[0], noise.shape[1]
        step = f0_hz / CLOCKS.sample_rate_hz
        turned = FRAME * step[:, 0].to(cycles.dtype)
        ends = cycles + torch.cumsum(turned - torch.floor(turned), dim=0)
        starts = torch.cat([cycles, ends[:-1]])
        turns = (starts - torch.floor(starts)).to(torch.float32)[:, None] + step * self.ramp
        angle = (turns - torch.floor(turns)) * (2 * math.pi)
        voiced = (f0_hz > VOICED_ABOVE_HZ).to(torch.float32)
        audible = (f0_hz * self.harmonics < MAX_HARMONIC_HZ).to(torch.float32) * voiced * self.weight
        sines = torch.sin(angle[:, None] * self.harmonics[None, :, None])
        tone = torch.bmm(audible[:, None], sines).view(1, frames * FRAME)[:, :samples]
        level = voiced * VOICED_NOISE + (1 - voiced) * UNVOICED_NOISE
        levels = (level * torch.ones_like(self.ramp)).view(1, frames * FRAME)[:, :samples]
        after = ends[-2:-1]
        excitation = torch.tanh(tone + levels * (self.noise_gain * noise) + self.bias)
        return excitation[None], after - torch.floor(after)


class StaticExcitation(nn.Module):
    """Mel frames to the excitation: pitch, then the source."""

    def __init__(self, hift: Hift) -> None:
        super().__init__()
        layers = [layer for layer in hift.f0_predictor.condnet if isinstance(layer, nn.Conv1d)]
        self.pitch = nn.ModuleList(_plain(layer, past=0) for layer in layers)
        self.sides = [padding_of(layer) for layer in layers]
        self.classifier, self.source = hift.f0_predictor.classifier, StaticSource(hift)

    def forward(self, mel: Tensor, inside: Tensor, noise: Tensor, cycles: Tensor) -> tuple[Tensor, Tensor]:
        """Return the excitation (1, 1, samples), and the cycles after it."""
        return self.source(self._f0(mel, inside), noise, cycles)

    def _f0(self, mel: Tensor, inside: Tensor) -> Tensor:
        """Return f0 in Hz, (frames + 1, 1). Hidden columns outside the utterance are zeros, as padding is."""
        x, start, end = mel, 0, mel.shape[2]
        layers: Any = zip(self.pitch, self.sides, strict=True)
        for number, (layer, (left, right)) in enumerate(layers):
            x, start, end = elu(layer.conv(x)), start + left, end - right
            if number < len(self.sides) - 1:
                x = x * inside[:, :, start:end]
        return self.classifier(x[0].transpose(0, 1)).abs()


class StaticVocoder(nn.Module):
    """Inputs:

    mel      (1, mel, 7 + frames + 4)   the block's frames between those around it; zeros outside the utterance
    inside   (1, 1, 7 + frames + 4)     1 for frames of the utterance, 0 outside
    noise    (1, 480 · frames + 4)      standard normal; a block begins with the last four of the previous one
    first    (1,)                       1 in the first block, then 0
    cycles   (1,) of cycles_dtype       zero at first, later the output of the previous block
    cache.N                             at first as `example` has them, later the outputs of the previous block

    Outputs: samples (480 · frames,), which begin 8 samples before the block, then cycles and the caches.
    """

    stft: Tensor
    reversed: Tensor

    def __init__(self, hift: Hift, *, frames: int, cycles_dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        config = hift.config
        self.frames, self.bands, self.cycles_dtype = frames, config.mel_bands, cycles_dtype
        self.excitation = StaticExcitation(hift)
        self.register_buffer("stft", _stft_kernel(hift.window))
        self.register_buffer("reversed", torch.arange(HALF_WINDOW, 0, -1))
        self.downs = nn.ModuleList(_plain(down, past=padding_of(down)[0]) for down in hift.source_downs)  # type: ignore[arg-type]
        self.source_blocks = nn.ModuleList(StaticSnakeBlock(block) for block in hift.source_resblocks)  # type: ignore[arg-type]
        self.pre = _plain(hift.conv_pre, past=0)
        kernels = len(config.resblock_kernels)
        self.ups = nn.ModuleList(
            StaticUpsample(up.weight.detach(), up.bias.detach(), rate, 1 / kernels if stage else 1.0)  # type: ignore[operator]
            for stage, (up, rate) in enumerate(zip(hift.ups, UPSAMPLE_RATES, strict=True))
        )
        self.blocks = nn.ModuleList(
            nn.ModuleList(StaticSnakeBlock(block) for block in hift.blocks_of(stage))  # type: ignore[arg-type]
            for stage in range(len(UPSAMPLE_RATES))
        )
        post = hift.conv_post
        assert post.bias is not None
        self.post = StaticConv(post.weight / kernels, post.bias)
        self.istft = StaticConv(_istft_kernel(hift.window), torch.zeros(ISTFT_HOP))
        with torch.no_grad():
            self._starts = self._run(ColumnCaches(), *self._inputs())[2]

    def _inputs(self) -> tuple[Tensor, ...]:
        window = BEFORE_FRAMES + self.frames + AHEAD_FRAMES
        return (
            torch.zeros(1, self.bands, window),
            torch.ones(1, 1, window),
            torch.zeros(1, FRAME * self.frames + AHEAD_SAMPLES),
            torch.ones(1),
            torch.zeros(1, dtype=self.cycles_dtype),
        )

    def example(self) -> tuple[Tensor, ...]:
        """Return the inputs of a first block, of silence."""
        return (*self._inputs(), *(start.clone() for start in self._starts))

    def names(self) -> tuple[list[str], list[str]]:
        """Return the names of the inputs and of the outputs."""
        caches = ["cycles", *(f"cache.{number}" for number in range(len(self._starts)))]
        return ["mel", "inside", "noise", "first", *caches], ["samples", *caches]

    def forward(
        self, mel: Tensor, inside: Tensor, noise: Tensor, first: Tensor, cycles: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        caches = ColumnCaches(past)
        samples, cycles, _ = self._run(caches, mel, inside, noise, first, cycles)
        return samples, cycles, *caches.saved

    def _run(
        self, caches: ColumnCaches, mel: Tensor, inside: Tensor, noise: Tensor, first: Tensor, cycles: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        excitation, cycles = self.excitation(mel, inside, noise, cycles)
        sources = self._features(excitation, first, caches)
        reach = (self.pre.conv.kernel_size[0] - 1) // 2
        x = self.pre(mel[:, :, BEFORE_FRAMES - reach : BEFORE_FRAMES + self.frames + reach], caches)
        for stage, (up, source, blocks) in enumerate(zip(self.ups, sources, self.blocks, strict=True)):
            x = up(x, caches)
            if stage == len(UPSAMPLE_RATES) - 1:  # a centred STFT has one more column than hops
                before = caches.take((1, x.shape[1], 1)) + first * x[:, :, 1:2]
                caches.saved.append(x[:, :, x.shape[2] - 1 :])
                x = torch.cat([before, x[:, :, : x.shape[2] - 1]], dim=2)
            x = x + source
            paths = [block(x, caches) for block in blocks]  # type: ignore[attr-defined]
            x = sum(paths[1:], paths[0])
        x = self.post(F.leaky_relu(x, 0.01), caches)
        magnitude = torch.exp(x[:, :BINS].clamp(max=math.log(MAGNITUDE_LIMIT)))
        phase = torch.sin(x[:, BINS:])
        spectrum = torch.cat([magnitude * torch.cos(phase), magnitude * torch.sin(phase)], dim=1)
        hops = self.istft(spectrum, caches)
        samples = hops[0].transpose(0, 1).reshape(-1).clamp(-SAMPLE_LIMIT, SAMPLE_LIMIT)
        return samples, cycles, caches.starts

    def _features(self, excitation: Tensor, first: Tensor, caches: ColumnCaches) -> list[Tensor]:
        """Return the features of the excitation for each stage."""
        reflected = excitation.index_select(2, self.reversed)
        before = caches.take((1, 1, HALF_WINDOW)) + first * reflected
        end = FRAME * self.frames
        caches.saved.append(excitation[:, :, end - HALF_WINDOW : end])
        spectrum = F.conv1d(torch.cat([before, excitation], dim=2), self.stft, stride=ISTFT_HOP)
        return [
            block(down(spectrum, caches), caches)
            for down, block in zip(self.downs, self.source_blocks, strict=True)
        ]


def _plain(layer: nn.Module, *, past: int) -> StaticConv:
    assert isinstance(layer, nn.Conv1d)
    assert layer.bias is not None
    return StaticConv(layer.weight, layer.bias, stride=layer.stride[0], dilation=layer.dilation[0], past=past)


def _stft_kernel(window: Tensor) -> Tensor:
    """Return the real, then the imaginary parts of all bins, (18, 1, 16)."""
    angle = 2 * math.pi * torch.outer(torch.arange(BINS), torch.arange(ISTFT_SIZE)) / ISTFT_SIZE
    return (torch.cat([angle.cos(), -angle.sin()]) * window)[:, None]


def _istft_kernel(window: Tensor) -> Tensor:
    """Return the inverse, (4, 18, 4): the samples of a hop from the columns that cover it, oldest first."""
    angle = 2 * math.pi * torch.outer(torch.arange(BINS), torch.arange(ISTFT_SIZE)) / ISTFT_SIZE
    twice = torch.full((BINS, 1), 2.0)
    twice[[0, -1]] = 1.0  # these bins have no mirror image
    waves = torch.cat([twice * angle.cos(), -twice * angle.sin()]) / ISTFT_SIZE
    energy = window.square().view(HOPS, ISTFT_HOP).sum(dim=0)
    by_hop = (waves * window).view(2 * BINS, HOPS, ISTFT_HOP) / energy
    return by_hop.flip(1).permute(2, 0, 1).contiguous()
