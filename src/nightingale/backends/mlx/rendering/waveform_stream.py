"""Mel frames to samples on MLX, whole or as they arrive: the counterpart of backends/torch/sample_stream.py."""

from __future__ import annotations

import math
from functools import lru_cache

import mlx.core as mx
import numpy as np

from nightingale.audio.crossfade import CROSSFADE_SAMPLES, HOLD_FRAMES, Crossfade
from nightingale.backends.mlx.arrays import compiles, read
from nightingale.backends.mlx.philox_arrays import key_words, normal
from nightingale.backends.mlx.rendering.hift_blocks import HiftBlocks, Noise
from nightingale.backends.mlx.rendering.hift_network import MlxHift
from nightingale.clocks import CLOCKS
from nightingale.decoding.philox import stream_key, uniform
from nightingale.models.chatterbox.hift.config import NOISY_HARMONICS, HiftConfig
from nightingale.types import Samples

TIME_BLOCK_FRAMES = 128
"""Frames that are vocoded at once where functions are compiled for each size."""
PROBE_FRAMES = 64
"""Mel frames after which a vocoder has emitted its first samples: more than it looks ahead."""


class WaveformStream:
    """Vocode one utterance from blocks of mel.

    A causal vocoder holds back its lookahead, so that the blocks equal the whole. The official one looks too far
    ahead: its stream pads each block with copies of the last frame, returns all but the last frames, and
    crossfades with the rendering that follows from the next block. Without `streaming`, frames are collected and
    rendered whole at the end.
    """

    def __init__(self, hift: MlxHift, *, seed: int, streaming: bool) -> None:
        self._hift, self._streaming = hift, streaming
        self._waiting: list[mx.array] = []
        self._blocks = HiftBlocks(hift, phase=harmonic_phase(hift.config, seed), noise=source_noise(seed))
        self._crossfade = Crossfade(HOLD_FRAMES)
        self._extrapolated_frames = extrapolated_frames(hift) if streaming else 0
        self._known, self._settled = 0, 0
        """Samples for which mel is known, and samples that no later mel can change."""
        self._last_frame: mx.array | None = None

    def push(self, mel: mx.array, *, final: bool) -> Samples:
        """Return the samples that mel (1, frames, bands) completes, perhaps none."""
        self._known += mel.shape[1] * CLOCKS.samples_per_frame
        if not self._streaming:
            self._waiting.append(mel)
            mel = mx.concatenate(self._waiting, axis=1)
        if not self._known or not (self._streaming or final):
            return np.zeros(0, np.float32)
        if mel.shape[1]:
            self._last_frame = mx.contiguous(mel[:, -1:])
        size = TIME_BLOCK_FRAMES if compiles() else max(1, mel.shape[1])
        ends = [*range(size, mel.shape[1], size), mel.shape[1]]
        parts = [
            self._blocks.push(mel[:, max(0, end - 1) // size * size : end], final=final and end == ends[-1])
            for end in ends
        ]
        start, self._settled = self._settled, self._settled + sum(len(part) for part in parts)
        end = self._settled
        if self._extrapolated_frames:
            if not final:
                assert self._last_frame is not None
                held = mx.broadcast_to(self._last_frame, (1, self._extrapolated_frames, mel.shape[2]))
                parts.append(self._blocks.fork().push(held, final=False))
            end = self._crossfade.end(self._known, final=final)
        samples = mx.concatenate(parts)
        mx.eval(samples, self._blocks.state())
        return self._crossfade.join(read(samples), start=start, end=end)


def extrapolated_frames(hift: MlxHift) -> int:
    """Return the frames of padding after which all but the last HOLD_FRAMES can be returned."""
    hold = HOLD_FRAMES * CLOCKS.samples_per_frame
    missing = lookahead_samples(hift) - hold
    blend = min(CROSSFADE_SAMPLES, hold)
    return math.ceil((missing + blend) / CLOCKS.samples_per_frame) if missing > 0 else 0


@lru_cache(maxsize=4)
def lookahead_samples(hift: MlxHift) -> int:
    """Return the samples before a mel frame's own first one that it affects: those that a stream holds back.

    It is counted on a block whose graph is built and never evaluated.
    """
    blocks = HiftBlocks(hift, phase=harmonic_phase(hift.config, 0), noise=source_noise(0))
    emitted = blocks.push(mx.zeros((1, PROBE_FRAMES, hift.config.mel_bands)), final=False)
    return PROBE_FRAMES * CLOCKS.samples_per_frame - int(emitted.shape[0])


def source_noise(seed: int) -> Noise:
    """Return the noise of the excitation: (first sample, count) -> (count, NOISY_HARMONICS)."""
    key = key_words(stream_key(seed, "source"))[0]
    return lambda start, count: normal(key, start, count, NOISY_HARMONICS)


def harmonic_phase(config: HiftConfig, seed: int) -> mx.array:
    """Return the initial phase (harmonics,): zero for the fundamental, and for all if they are in phase."""
    if config.in_phase:
        return mx.zeros((config.harmonics,))
    turns = uniform(stream_key(seed, "phase"), 0, np.arange(config.harmonics)).astype(np.float32)
    turns = (2 * turns - 1) * np.float32(math.pi)
    turns[0] = 0
    return mx.array(turns)
