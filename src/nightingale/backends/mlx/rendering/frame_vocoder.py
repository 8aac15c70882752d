"""Wren's vocoder on MLX: mel frames to samples, whole or in blocks of any length.

The counterpart of models/frame_vocoder/network.py, which explains it. Sequences are (rows, time, channels). The blocks
of the trunk compute in the renderer's precision, all others in float32.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import mlx.core as mx

from nightingale.backends.mlx.arrays import (
    CompiledFunctions,
    LayerNorm,
    Linear,
    elu,
    gelu,
    named_arrays,
    take_linear,
    take_norm,
)
from nightingale.backends.mlx.rendering.block_state import BlockState, SavedArrays
from nightingale.backends.mlx.rendering.convolutions import Conv, OverlapAdd, take_conv
from nightingale.backends.mlx.weight_files import NetworkWeights
from nightingale.clocks import CLOCKS
from nightingale.models.frame_vocoder import config as sizes
from nightingale.models.frame_vocoder.transforms import matrices, noise_gain, tone_gain


class MlxConvNeXtBlock(NamedTuple):
    """A causal ConvNeXt block on (rows, steps, width), in the precision of its input."""

    taps: mx.array
    """(taps, width)."""
    taps_bias: mx.array
    norm: LayerNorm
    up: Linear
    down: Linear
    scale: mx.array

    def __call__(self, x: mx.array, state: BlockState) -> mx.array:
        joined = state.prepend_inputs(x, sizes.BLOCK_TAPS - 1)
        y = self.taps_bias
        for tap in range(sizes.BLOCK_TAPS):
            y = y + joined[:, tap : tap + x.shape[1]] * self.taps[tap]
        return x + self.down(gelu(self.up(self.norm(y)))) * self.scale


class MlxFrameVocoder:
    """The vocoder's weights. It keeps no state between calls."""

    def __init__(
        self, config: sizes.FrameVocoderConfig, weights: NetworkWeights, *, dtype: mx.Dtype = mx.float32
    ) -> None:
        """dtype: of the blocks."""
        self.config, self.dtype = config, dtype
        bands, width, pitch_width = config.mel_bands, config.width, config.pitch_width
        name, kernel = "pitch_predictor", sizes.PITCH_LAYER_TAPS
        self.pitch_layers = [
            take_conv(weights, f"{name}.convs.{n}", pitch_width if n else bands, pitch_width, kernel)
            for n in range(sizes.PITCH_LAYERS)
        ]
        self.pitch_head: Linear = take_linear(weights, f"{name}.classifier", pitch_width, 1)
        self.mel_in = take_conv(weights, "mel_in", bands, width, sizes.MEL_TAPS)
        voicing = weights.take("pitch_in.weight", width, 2, sizes.PITCH_TAPS)
        self.pitch_in = Conv(mx.contiguous(voicing.swapaxes(1, 2)), mx.zeros(width), 0, 0)
        self.to_steps = take_linear(weights, "to_steps", width, sizes.STEPS_PER_FRAME * width)
        self.tone_in = take_linear(weights, "tone_in", sizes.COLUMNS_PER_STEP * 2 * sizes.BINS, width)
        self.norm_in = take_norm(weights, "norm_in", width)
        self.norm_out = take_norm(weights, "norm_out", width)
        self.head = take_linear(
            weights, "head", width, sizes.COLUMNS_PER_STEP * sizes.HEAD_PARTS * sizes.BINS
        )
        weights.dtype = dtype
        self.blocks = [_take_block(config, weights, f"blocks.{number}") for number in range(config.blocks)]
        constants = {name: mx.array(matrix) for name, matrix in matrices(bands).items()}
        self.analysis, self.to_bins = constants["analysis"], constants["to_bins"]
        self.synthesis = OverlapAdd.of(constants["synthesis"][..., None], sizes.HOP_SAMPLES)
        weights.finish(named_arrays(vars(self)))
        self._render = CompiledFunctions(self._render_block)

    def __call__(
        self, mel: mx.array, noise: mx.array, past: SavedArrays | None
    ) -> tuple[mx.array, SavedArrays]:
        """Return the samples (rows, 480·T) of a mel (rows, T, bands), and the past of the next block.

        noise: standard normal (rows, 480·T); past: None at the start. Samples lie `DELAY_SAMPLES` behind the mel.
        """
        (samples, saved), _ = self._render(past is not None, mel, noise, list(past or ()))
        return samples, tuple(saved)

    def _render_block(
        self, continued: bool, mel: mx.array, noise: mx.array, past: list[mx.array]
    ) -> tuple[tuple[mx.array, list[mx.array]], None]:
        state = BlockState(tuple(past) if continued else None)
        samples = self._synthesize(mel, self._pitch(mel, state), noise, state)
        return (samples, list(state.saved())), None

    def _pitch(self, x: mx.array, state: BlockState) -> mx.array:
        """Return the pitch (rows, T) in Hz, `LOOKAHEAD_FRAMES` behind the mel; near zero where unvoiced."""
        for number, layer in enumerate(self.pitch_layers):
            start = 0.0 if number else sizes.SILENT_LOG_MEL
            x = elu(layer.unpadded(state.prepend_inputs(x, layer.span - 1, start=start)))
        return mx.abs(self.pitch_head(x)[..., 0])

    def _synthesize(self, mel: mx.array, f0_hz: mx.array, noise: mx.array, state: BlockState) -> mx.array:
        rows, frames, _ = mel.shape
        columns = sizes.COLUMNS_PER_FRAME * frames
        known = state.prepend_inputs(mel, sizes.MEL_TAPS - 1, start=sizes.SILENT_LOG_MEL)
        voiced = (f0_hz > sizes.VOICED_ABOVE_HZ).astype(mx.float32)
        voicing = mx.stack([voiced, mx.log1p(f0_hz / sizes.PITCH_UNIT_HZ) * voiced], axis=2)
        voicing = state.prepend_inputs(voicing, sizes.PITCH_TAPS - 1)
        x = self.to_steps(self.mel_in.unpadded(known) + self.pitch_in.unpadded(voicing))
        tone = self._spectra(self._tone(f0_hz, state)).reshape(rows, columns, -1)
        hiss = state.prepend_inputs(noise * noise_gain(), sizes.WINDOW_SAMPLES - sizes.HOP_SAMPLES)
        x = x.reshape(rows, sizes.STEPS_PER_FRAME * frames, -1)
        x = self.norm_in(x + self.tone_in(tone.reshape(*x.shape[:2], -1))).astype(self.dtype)
        for block in self.blocks:
            x = block(x, state)
        y = self.head(self.norm_out(x.astype(mx.float32))).reshape(rows, columns, sizes.HEAD_PARTS, -1)
        spectrum = _filtered(y, self._prior(known, frames), tone, self._spectra(hiss))
        samples, overlap = self.synthesis(spectrum, state.take())
        state.save(overlap)
        return mx.clip(samples[..., 0], -sizes.SAMPLE_LIMIT, sizes.SAMPLE_LIMIT)

    def _spectra(self, samples: mx.array) -> mx.array:
        """Return the spectra (rows, columns, 2·bins) of all windows of (rows, samples), real parts first."""
        (rows, count), window, hop = samples.shape, sizes.WINDOW_SAMPLES, sizes.HOP_SAMPLES
        windows = mx.as_strided(samples, (rows, (count - window) // hop + 1, window), (count, hop, 1))
        return windows @ self.analysis

    def _tone(self, f0_hz: mx.array, state: BlockState) -> mx.array:
        """Return the harmonics around each frame: (rows · T, 840) samples.

        A frame's windows reach beyond it: before it, the previous frame's pitch holds, and after it, its own.
        """
        rows, frames = f0_hz.shape
        past = state.take()
        phase, before_hz = mx.split(mx.zeros((rows, 2)) if past is None else past, 2, axis=1)
        cycles = f0_hz * (sizes.FRAME_SAMPLES / CLOCKS.sample_rate_hz)
        # Sums of integers are exact, and what exceeds 32 bits is a whole number of cycles.
        advances = mx.concatenate([phase, cycles - mx.floor(cycles)], axis=1) * sizes.PHASE_UNITS
        ends = mx.cumsum(mx.round(advances).astype(mx.uint32), axis=1) % sizes.PHASE_UNITS
        turns = ends.astype(mx.float32) / sizes.PHASE_UNITS  # (rows, 1 + T): before each frame, and after
        state.save(mx.stack([turns[:, -1], f0_hz[:, -1]], axis=1))
        margin = sizes.MARGIN_SAMPLES
        place = mx.arange(1 - margin, sizes.FRAME_SAMPLES + margin + 1).astype(mx.float32)
        place = place / CLOCKS.sample_rate_hz
        earlier_hz, starts = mx.concatenate([before_hz, f0_hz[:, :-1]], axis=1), turns[:, :-1, None]
        before = _harmonics(earlier_hz[..., None], starts, place[:margin])
        after = _harmonics(f0_hz[..., None], starts, place[margin:])
        return mx.concatenate([before, after], axis=-1).reshape(rows * frames, -1)

    def _prior(self, known: mx.array, frames: int) -> mx.array:
        """Return the mel as log magnitudes (rows, 4·T, bins), linear in time between the centres of frames.

        known: the mel of this block and of `MEL_TAPS - 1` frames before it.
        """
        logs, first, columns = known @ self.to_bins, sizes.LOOKAHEAD_FRAMES, sizes.COLUMNS_PER_FRAME
        before, now, after = (logs[:, first + n : first + n + frames] for n in (-1, 0, 1))
        offsets = [(column + 0.5) / columns - 0.5 for column in range(columns)]  # from the centre, in frames
        parts = [now + ((after if offset > 0 else before) - now) * abs(offset) for offset in offsets]
        return mx.stack(parts, axis=2).reshape(len(known), columns * frames, -1)


def _take_block(config: sizes.FrameVocoderConfig, weights: NetworkWeights, name: str) -> MlxConvNeXtBlock:
    width, hidden = config.width, config.hidden
    return MlxConvNeXtBlock(
        taps=weights.take(f"{name}.taps", sizes.BLOCK_TAPS, width),
        taps_bias=weights.take(f"{name}.taps_bias", width),
        norm=take_norm(weights, f"{name}.norm", width),
        up=take_linear(weights, f"{name}.up", width, hidden),
        down=take_linear(weights, f"{name}.down", hidden, width),
        scale=weights.take(f"{name}.scale", width),
    )


def _harmonics(hz: mx.array, start: mx.array, place_s: mx.array) -> mx.array:
    """Return the sum of all harmonics up to 11 kHz at places around a frame's start, by the closed form."""
    cycles = start + hz * place_s
    half = (cycles - mx.round(cycles)) * math.pi
    count = mx.floor(sizes.MAX_HARMONIC_HZ / mx.maximum(hz, sizes.LOWEST_PITCH_HZ))
    sine = mx.sin(half)
    is_small = mx.abs(sine) < sizes.SMALL_SINE
    ratio = mx.sin((2 * count + 1) * half) / mx.where(is_small, 1.0, sine)
    return mx.where(is_small, count, 0.5 * ratio - 0.5) * (hz > sizes.VOICED_ABOVE_HZ) * tone_gain()


def _filtered(y: mx.array, prior: mx.array, tone: mx.array, hiss: mx.array) -> mx.array:
    """Return the spectra (rows, columns, 2·bins) from the head's numbers (rows, columns, HEAD_PARTS, bins)."""
    log_tone, phase, log_noise, real_part, imaginary_part = (
        y[:, :, part] for part in range(sizes.HEAD_PARTS)
    )
    tone_level = mx.exp(mx.minimum(log_tone + prior, sizes.MAX_LOG_MAGNITUDE))
    noise_level = mx.exp(mx.minimum(log_noise + prior, sizes.MAX_LOG_MAGNITUDE))
    cos, sin = mx.cos(phase), mx.sin(phase)
    tone_real, tone_imaginary = mx.split(tone, 2, axis=-1)
    noise_real, noise_imaginary = mx.split(hiss, 2, axis=-1)
    real = tone_level * (cos * tone_real - sin * tone_imaginary + real_part) + noise_level * noise_real
    imaginary = tone_level * (sin * tone_real + cos * tone_imaginary + imaginary_part)
    return mx.concatenate([real, imaginary + noise_level * noise_imaginary], axis=-1)
