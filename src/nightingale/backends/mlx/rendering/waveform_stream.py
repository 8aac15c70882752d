"""Mel frames to samples on MLX as they arrive: the counterpart of backends/torch/sample_stream.py.

The whole is one block. Each stream's `push` returns the samples that mel (1, frames, bands) completes, perhaps none.
"""

from __future__ import annotations

import math
from functools import lru_cache

import mlx.core as mx
import numpy as np

from nightingale.audio.crossfade import CROSSFADE_SAMPLES, HOLD_FRAMES, Crossfade
from nightingale.backends.mlx.arrays import compiles, read
from nightingale.backends.mlx.philox_arrays import key_words, normal
from nightingale.backends.mlx.rendering.block_state import SavedArrays
from nightingale.backends.mlx.rendering.frame_vocoder import MlxFrameVocoder
from nightingale.backends.mlx.rendering.hift_blocks import HiftBlocks, Noise
from nightingale.backends.mlx.rendering.hift_network import MlxHift
from nightingale.backends.shared.vocoder_blocks import VocoderBlocks
from nightingale.clocks import CLOCKS
from nightingale.decoding.philox import first_uniforms, stream_key
from nightingale.models.chatterbox.hift.config import HARMONICS
from nightingale.models.frame_vocoder.config import SILENT_LOG_MEL
from nightingale.types import Samples

TIME_BLOCK_FRAMES = 128
"""Frames that HiFT vocodes at once where functions are compiled for each size."""
BUCKET_FRAMES = 64
"""The frame vocoder's last block is padded to a multiple of this where functions are compiled for each size."""
PROBE_FRAMES = 64
"""Mel frames after which HiFT has emitted its first samples: more than it looks ahead."""


class FrameVocoderWaveform:
    """Samples of the frame vocoder, whose blocks equal the whole."""

    def __init__(self, vocoder: MlxFrameVocoder, *, seed: int) -> None:
        self._vocoder, self._blocks = vocoder, VocoderBlocks(seed=seed)
        self._past: SavedArrays | None = None

    def push(self, mel: mx.array, *, final: bool) -> Samples:
        frames = self._blocks.frames(mel.shape[1], final=final)
        if not frames:
            return np.zeros(0, np.float32)
        if final and compiles():
            frames = -(-frames // BUCKET_FRAMES) * BUCKET_FRAMES
        mel = mx.pad(mel, [(0, 0), (0, frames - mel.shape[1]), (0, 0)], constant_values=SILENT_LOG_MEL)
        samples, self._past = self._vocoder(mel, mx.array(self._blocks.noise(frames))[None], self._past)
        mx.eval(samples, self._past)
        return self._blocks.emit(read(samples)[0])


class CrossfadedWaveform:
    """Samples of HiFT, which looks 19 frames ahead: too many to wait for.

    Each block is padded with copies of its last frame. All but the last frames are returned, which are blended into
    the rendering that follows from the next block.
    """

    def __init__(self, hift: MlxHift, *, seed: int) -> None:
        self._blocks = HiftBlocks(hift, phase=harmonic_phase(seed), noise=source_noise(seed))
        self._crossfade = Crossfade()
        self._extrapolated_frames = extrapolated_frames(hift)
        self._known, self._settled = 0, 0
        """Samples for which mel is known, and samples that no later mel can change."""
        self._last_frame: mx.array | None = None

    def push(self, mel: mx.array, *, final: bool) -> Samples:
        self._known += mel.shape[1] * CLOCKS.samples_per_frame
        if not self._known:
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
        if not final and self._extrapolated_frames:
            assert self._last_frame is not None
            held = mx.broadcast_to(self._last_frame, (1, self._extrapolated_frames, mel.shape[2]))
            parts.append(self._blocks.fork().push(held, final=False))
        samples = mx.concatenate(parts)
        mx.eval(samples, self._blocks.state())
        return self._crossfade.join(
            read(samples), start=start, end=self._crossfade.end(self._known, final=final)
        )


WaveformStream = FrameVocoderWaveform | CrossfadedWaveform


def open_waveform_stream(vocoder: MlxFrameVocoder | MlxHift, *, seed: int) -> WaveformStream:
    """Begin an utterance."""
    if isinstance(vocoder, MlxFrameVocoder):
        return FrameVocoderWaveform(vocoder, seed=seed)
    return CrossfadedWaveform(vocoder, seed=seed)


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
    blocks = HiftBlocks(hift, phase=harmonic_phase(0), noise=source_noise(0))
    emitted = blocks.push(mx.zeros((1, PROBE_FRAMES, hift.config.mel_bands)), final=False)
    return PROBE_FRAMES * CLOCKS.samples_per_frame - int(emitted.shape[0])


def source_noise(seed: int) -> Noise:
    """Return the noise of the excitation: (first sample, count) -> (count, HARMONICS)."""
    key = key_words(stream_key(seed, "source"))[0]
    return lambda start, count: normal(key, start, count, HARMONICS)


def harmonic_phase(seed: int) -> mx.array:
    """Return the initial phase (HARMONICS,): zero for the fundamental."""
    turns = np.array([0.5, *first_uniforms(stream_key(seed, "phase"), HARMONICS)[1:]], np.float32)
    return mx.array((2 * turns - 1) * np.float32(math.pi))
