"""HiFT over a mel that arrives in blocks, on MLX.

The port of models/chatterbox/hift/hift_stream.py: each layer keeps the few columns that its next outputs depend
on, so that joined blocks equal the whole. The whole is one block that is first and final. Which columns are kept
depends on shapes alone, so building a block's graph never waits for the device.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import mlx.core as mx

from nightingale.backends.mlx.arrays import CompiledFunctions, Linear, compiled_elementwise, elu
from nightingale.backends.mlx.rendering.convolutions import Conv
from nightingale.backends.mlx.rendering.hift_network import (
    BINS,
    MlxHift,
    ResidualBlock,
    SnakeConv,
    UpsamplingLayer,
)
from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.config import HARMONICS, ISTFT_HOP, ISTFT_SIZE

HALF_WINDOW = ISTFT_SIZE // 2
MAGNITUDE_LIMIT = 100.0
SAMPLE_LIMIT = 0.99
SINE_AMPLITUDE = 0.1
VOICED_NOISE = 0.003
UNVOICED_NOISE = SINE_AMPLITUDE / 3
VOICED_ABOVE_HZ = 10.0
Noise = Callable[[int, int], mx.array]
"""(start, count) -> standard normal rows (count, HARMONICS), addressed by absolute sample."""


@lru_cache(maxsize=4)
def compiled_vocoder(hift: MlxHift) -> CompiledFunctions:
    return CompiledFunctions(partial(vocode, hift=hift))


@compiled_elementwise
def _snake(x: mx.array, alpha: mx.array) -> mx.array:
    """Return x + sin²(αx)/α. α is in float32."""
    return (x + mx.square(mx.sin(x * alpha)) / (alpha + 1e-9)).astype(x.dtype)


def _leaky_relu(x: mx.array, slope: float) -> mx.array:
    return mx.maximum(x, slope * x)


class Progress(NamedTuple):
    """The state that a stream's next block depends on besides its arrays and their shapes."""

    final: bool = False
    reflected: bool = False
    dropped: tuple[tuple[str, int], ...] = ()
    """Columns of the stream's start that were dropped, by layer."""


class HiftBlocks:
    """The vocoder's state of one utterance. Arrays inside are (1, columns, channels)."""

    def __init__(self, hift: MlxHift, *, phase: mx.array, noise: Noise) -> None:
        self._hift, self._phase, self._noise = hift, phase, noise
        self._kept: dict[str, mx.array] = {}
        self._progress = Progress()
        self._frames = self._source_frames = 0

    def fork(self) -> HiftBlocks:
        """Return an independent stream that continues from here."""
        return copy.copy(self)

    def state(self) -> list[mx.array]:
        """Return what must be evaluated with a block, so that no graph grows from block to block."""
        return list(self._kept.values())

    def push(self, mel: mx.array, *, final: bool) -> mx.array:
        """Return the samples (n,) after mel (1, frames, bands) that no later frame can change."""
        self._frames += mel.shape[1]
        start, self._source_frames = (
            self._source_frames,
            max(self._source_frames, self._frames - (0 if final else self._hift.f0_lookahead)),
        )
        per_frame = CLOCKS.samples_per_frame
        noise = self._noise(start * per_frame, (self._source_frames - start) * per_frame)
        (samples, self._kept), self._progress = compiled_vocoder(self._hift)(
            self._progress._replace(final=final), mel, noise, self._phase, self._kept
        )
        return samples


class BlockPass:
    """One pass over one block."""

    def __init__(self, hift: MlxHift, progress: Progress, kept: Mapping[str, mx.array]) -> None:
        self._hift, self._kept = hift, dict(kept)
        self._dropped, self._reflected = dict(progress.dropped), progress.reflected

    def run(self, mel: mx.array, noise: mx.array, phase: mx.array, final: bool) -> mx.array:
        hift = self._hift
        spectrum = self._stft(self._excitation(self._f0(mel, final), noise, phase), final)
        spectrum, mel = spectrum.astype(hift.dtype), mel.astype(hift.dtype)
        x = self._conv("pre", hift.pre, mel, final)
        for number, stage in enumerate(hift.stages):
            source = self._conv(f"down{number}", stage.source_down, spectrum, final)
            source = self._block(f"source{number}", stage.source_block, source, final)
            x = self._upsample(f"up{number}", stage.up, _leaky_relu(x, 0.1), final)
            if number == len(hift.stages) - 1:
                x = self._reflect_start(x)
            x = self._sum(f"join{number}", [x, source])
            paths = [
                self._block(f"block{number}.{n}", block, x, final) for n, block in enumerate(stage.blocks)
            ]
            x = self._sum(f"mean{number}", paths) / len(paths)
        return self._istft(self._conv("post", hift.post, _leaky_relu(x, 0.01), final), final)

    def state(self) -> tuple[dict[str, mx.array], Progress]:
        """Return what the next block needs."""
        return self._kept, Progress(reflected=self._reflected, dropped=tuple(self._dropped.items()))

    def _f0(self, mel: mx.array, final: bool) -> mx.array:
        """Return f0 of the frames that no later frame can change: (frames,), in Hz."""
        for n, layer in enumerate(self._hift.f0):
            mel = elu(self._conv(f"f0.{n}", layer, mel, final))
        return mx.abs(self._hift.f0_head(mel)[0, :, 0])

    def _excitation(self, f0_hz: mx.array, noise: mx.array, phase: mx.array) -> mx.array:
        """Return the excitation of the next frames: (1, samples)."""
        if not f0_hz.shape[0]:
            return mx.zeros((1, 0))
        source, self._kept["cycles"] = _excitation(
            f0_hz, phase, noise, self._hift.mix, self._kept.get("cycles")
        )
        return source

    def _stft(self, source: mx.array, final: bool) -> mx.array:
        """Return the excitation's spectrum (1, columns, 18); a column is 4 samples and looks 8 ahead."""
        kept = self._kept.get("stft")
        if not source.shape[1] and kept is None:
            return mx.zeros((1, 0, 2 * BINS))
        # The whole is reflected at its two ends. A block is at least a frame long, so it can be too.
        if kept is None:
            kept = source[:, HALF_WINDOW:0:-1]
        source = mx.concatenate([kept, source], axis=1)
        if final:
            source = mx.concatenate([source, source[:, -2 : -2 - HALF_WINDOW : -1]], axis=1)
        columns = max(0, (source.shape[1] - ISTFT_SIZE) // ISTFT_HOP + 1)
        self._keep("stft", source[:, columns * ISTFT_HOP :])
        if not columns:
            return mx.zeros((1, 0, 2 * BINS))
        windows = mx.as_strided(source, (1, columns, ISTFT_SIZE), (source.shape[1], ISTFT_HOP, 1))
        return windows @ self._hift.analysis

    def _istft(self, x: mx.array, final: bool) -> mx.array:
        x = x.astype(mx.float32)
        magnitude = mx.minimum(mx.exp(x[..., :BINS]), MAGNITUDE_LIMIT)
        phase = mx.sin(x[..., BINS:])
        columns = [magnitude * mx.cos(phase), magnitude * mx.sin(phase), mx.ones((*x.shape[:2], 1))]
        done, rest = self._hift.synthesis(mx.concatenate(columns, axis=-1), self._kept.get("istft"))
        self._keep("istft", rest)
        tail = ISTFT_SIZE - ISTFT_HOP - HALF_WINDOW if final else 0
        both = self._drop_head("istft", mx.concatenate([done, rest[:, :tail]], axis=1), HALF_WINDOW)
        return mx.clip(both[0, :, 0] / both[0, :, 1], -SAMPLE_LIMIT, SAMPLE_LIMIT)

    def _conv(self, name: str, layer: Conv, x: mx.array, final: bool) -> mx.array:
        kept = self._kept.get(name)
        if kept is None:
            kept = mx.zeros((1, layer.left, x.shape[2]), x.dtype)
        right = mx.zeros((1, layer.right if final else 0, x.shape[2]), x.dtype)
        x = mx.concatenate([kept, x, right], axis=1)
        columns = max(0, (x.shape[1] - layer.span) // layer.stride + 1)
        self._keep(name, x[:, columns * layer.stride :])
        return layer.unpadded(x) if columns else mx.zeros((1, 0, layer.weight.shape[0]), x.dtype)

    def _block(self, name: str, block: ResidualBlock, x: mx.array, final: bool) -> mx.array:
        def layer(part: str, own: SnakeConv, x: mx.array) -> mx.array:
            return self._conv(f"{name}.{part}", own.conv, _snake(x, own.alpha), final)

        for n, (first, second) in enumerate(block):
            hidden = layer(f"{n}.conv2", second, layer(f"{n}.conv1", first, x))
            x = self._sum(f"{name}.{n}", [x, hidden])
        return x

    def _upsample(self, name: str, layer: UpsamplingLayer, x: mx.array, final: bool) -> mx.array:
        done, rest = layer.conv(x, self._kept.get(name))
        self._keep(name, rest)
        tail = rest[:, : layer.head if final else 0]
        return self._drop_head(name, mx.concatenate([done, tail], axis=1), layer.head) + layer.bias

    def _keep(self, name: str, x: mx.array) -> None:
        """Keep a copy: a view would keep the memory of the whole block."""
        self._kept[name] = mx.contiguous(x)

    def _drop_head(self, name: str, x: mx.array, head: int) -> mx.array:
        """Return x without the first `head` columns of the stream."""
        dropped = self._dropped.get(name, 0)
        now = min(head - dropped, x.shape[1])
        self._dropped[name] = dropped + now
        return x[:, now:]

    def _reflect_start(self, x: mx.array) -> mx.array:
        """Put a copy of the stream's second column before it: a centred STFT has one more frame than hops."""
        if self._reflected:
            return x
        held = self._kept.pop("reflect", None)
        x = x if held is None else mx.concatenate([held, x], axis=1)
        if x.shape[1] < 2:
            self._keep("reflect", x)
            return x[:, :0]
        self._reflected = True
        return mx.concatenate([x[:, 1:2], x], axis=1)

    def _sum(self, name: str, terms: Sequence[mx.array]) -> mx.array:
        """Add terms as far as all go, and keep the rest of the longer ones."""
        joined = []
        for n, term in enumerate(terms):
            rest = self._kept.pop(f"{name}+{n}", None)
            joined.append(term if rest is None else mx.concatenate([rest, term], axis=1))
        columns = min(term.shape[1] for term in joined)
        for n, term in enumerate(joined):
            if columns < term.shape[1]:
                self._keep(f"{name}+{n}", term[:, columns:])
        first, *others = (term[:, :columns] for term in joined)
        return sum(others, first)


def vocode(
    progress: Progress,
    mel: mx.array,
    noise: mx.array,
    phase: mx.array,
    kept: dict[str, mx.array],
    *,
    hift: MlxHift,
) -> tuple[tuple[mx.array, dict[str, mx.array]], Progress]:
    """Return the samples of a block, and what the next block needs."""
    block = BlockPass(hift, progress, kept)
    samples = block.run(mel, noise, phase, progress.final)
    kept, progress = block.state()
    return (samples, kept), progress


def _excitation(
    f0_hz: mx.array, phase: mx.array, noise: mx.array, mix: Linear, start: mx.array | None
) -> tuple[mx.array, mx.array]:
    """Return the excitation (1, samples) of frames (frames,), and the cycles reached, modulo one (HARMONICS,).

    The reference, models/chatterbox/hift/source.py, sums cycles in float64, which Metal does not have. Here the cycles
    at the start of each frame are summed modulo one, so float32 rounds less than the reference does after ten seconds:
    1e-4 of a cycle against 1e-3.

    phase: the initial phase (HARMONICS,) in radians; noise: standard normal (samples, HARMONICS); mix: the layer
    that adds the harmonics up; start: the cycles reached before. Each harmonic is integrated by itself, as upstream
    does.
    """
    rate = f0_hz[:, None] * mx.arange(1, HARMONICS + 1).astype(mx.float32)  # (frames, HARMONICS)
    per_frame = _fraction(rate * (CLOCKS.samples_per_frame / CLOCKS.sample_rate_hz))
    start = mx.zeros((HARMONICS,)) if start is None else start
    begins = _fraction(start + mx.cumsum(per_frame, axis=0, inclusive=False))
    ahead = mx.arange(1, CLOCKS.samples_per_frame + 1).astype(mx.float32)[:, None]
    # (frames, samples of a frame, HARMONICS)
    cycles = _fraction(begins[:, None] + ahead * (rate / CLOCKS.sample_rate_hz)[:, None])
    reached = _fraction(begins[-1] + per_frame[-1])
    voiced = (f0_hz > VOICED_ABOVE_HZ).astype(mx.float32)[:, None, None]
    level = voiced * VOICED_NOISE + (1 - voiced) * UNVOICED_NOISE
    sines = SINE_AMPLITUDE * mx.sin(2 * math.pi * cycles + phase)
    merged = mix(sines * voiced + level * noise.reshape(cycles.shape))
    return mx.tanh(merged).reshape(1, -1), reached


def _fraction(x: mx.array) -> mx.array:
    return x - mx.floor(x)
