"""Render mel frames to samples, whole or as they arrive."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nightingale.audio.crossfade import CROSSFADE_SAMPLES, HOLD_FRAMES, Crossfade, apply_fade_in
from nightingale.clocks import CLOCKS
from nightingale.decoding.philox import first_uniforms, normal, stream_key
from nightingale.models.chatterbox.hift.config import NOISY_HARMONICS, HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.hift.hift_stream import HiftStream, Noise
from nightingale.models.chatterbox.hift.receptive_field import lookahead_samples
from nightingale.types import Samples

MPS_FRAMES = 400
"""Mel frames that MPS vocodes at a time: older versions fail where a convolution has over 65,536 columns, and
HiFT's last ones have 120 for each frame."""


@torch.inference_mode()
def render_samples(hift: Hift, mel: Tensor, *, seed: int) -> Samples:
    """Return 480 samples per frame of mel (bands, frames), with the family's fade over the first 40 ms."""
    weight = hift.conv_pre.weight
    device, dtype = weight.device, weight.dtype
    if device.type == "mps":
        return apply_fade_in(_render_in_blocks(hift, mel[None].to(device, dtype), seed), 0)
    noise = source_noise(seed)(0, mel.shape[1] * CLOCKS.samples_per_frame).T[None]
    mel = mel[None].to(device, dtype)
    source, _ = hift.m_source(hift.f0_predictor(mel), harmonic_phase(hift.config, seed), noise)
    samples: Samples = hift(mel, source)[0].float().cpu().numpy()
    return apply_fade_in(samples, 0)


def _render_in_blocks(hift: Hift, mel: Tensor, seed: int) -> Samples:
    """Vocode mel (1, bands, frames) in blocks, which together equal the whole."""
    stream = HiftStream(hift, phase=harmonic_phase(hift.config, seed), noise=source_noise(seed))
    frames = mel.shape[2]
    parts = [
        _numpy(stream.push(mel[..., start : start + MPS_FRAMES], final=start + MPS_FRAMES >= frames))
        for start in range(0, frames, MPS_FRAMES)
    ]
    return np.concatenate(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Excitation:
    """A block of mel with its excitation signal."""

    mel: Tensor
    final: bool
    known_samples: int
    """Samples of the utterance up to the end of this block."""
    sources: list[Tensor] | None
    """The excitation's features for each upsampling stage; None if `render` must compute them."""


class SampleStream:
    """Vocode one utterance from blocks of mel.

    Streaming holds back the vocoder's lookahead, so that the blocks equal the whole: 3 frames and 64 samples
    for a causal vocoder. The official one looks 19 frames ahead, too many to wait for: its stream pads each
    block with copies of the last frame, returns all but `hold_frames`, and crossfades with the rendering that
    follows from the next block.
    """

    def __init__(self, hift: Hift, *, seed: int, streaming: bool, hold_frames: int = HOLD_FRAMES) -> None:
        self._hift, self._seed, self._streaming = hift, seed, streaming
        self._waiting: list[Tensor] = []
        self._stream = HiftStream(hift, phase=harmonic_phase(hift.config, seed), noise=source_noise(seed))
        self._crossfade = Crossfade(hold_frames)
        self._extrapolated_frames = extrapolated_frames(hift, hold_frames)
        self._known, self._settled = 0, 0
        """Samples for which mel is known, and samples that no later mel can change."""
        self._last_frame: Tensor | None = None

    def push(self, mel: Tensor, *, final: bool) -> Samples:
        """Return the samples that mel (bands, frames) completes, perhaps none."""
        return self.render(self.excite(mel, final=final))

    @torch.inference_mode()
    def excite(self, mel: Tensor, *, final: bool) -> Excitation:
        """Do the part of `push` that another thread may run ahead, for this block and later ones."""
        self._known += mel.shape[1] * CLOCKS.samples_per_frame
        sources = None
        # Padding frames are computed on a copy of the stream's state, so those blocks cannot be computed ahead.
        if self._streaming and self._known and not self._extrapolated_frames:
            sources = self._stream.source_features(self._on_device(mel), final=final)
        return Excitation(mel=mel, final=final, known_samples=self._known, sources=sources)

    @torch.inference_mode()
    def render(self, excited: Excitation) -> Samples:
        if self._streaming:
            return self._render(excited) if excited.known_samples else np.zeros(0, np.float32)
        self._waiting.append(excited.mel)
        if not (excited.final and excited.known_samples):
            return np.zeros(0, np.float32)
        return render_samples(self._hift, torch.cat(self._waiting, dim=1), seed=self._seed)

    def _render(self, excited: Excitation) -> Samples:
        mel, final, sources = self._on_device(excited.mel), excited.final, excited.sources
        if sources is not None:
            samples = _numpy(self._stream.synthesize(mel, sources, final=final))
            start, self._settled = self._settled, self._settled + len(samples)
            return self._crossfade.join(samples, start=start, end=self._settled)
        samples = _numpy(self._stream.push(mel, final=final))
        start, self._settled = self._settled, self._settled + len(samples)
        self._last_frame = mel[..., -1:].clone() if mel.shape[-1] else self._last_frame
        if not final:
            assert self._last_frame is not None
            held = self._last_frame.expand(-1, -1, self._extrapolated_frames)
            samples = np.concatenate([samples, _numpy(self._stream.fork().push(held, final=False))])
        return self._crossfade.join(
            samples, start=start, end=self._crossfade.end(excited.known_samples, final=final)
        )

    def _on_device(self, mel: Tensor) -> Tensor:
        weight = self._hift.conv_pre.weight
        return mel[None].to(weight.device, weight.dtype)


def extrapolated_frames(hift: Hift, hold_frames: int = HOLD_FRAMES) -> int:
    """Return the frames of padding after which all but the last `hold_frames` can be returned."""
    hold = hold_frames * CLOCKS.samples_per_frame
    missing = lookahead_samples(hift) - hold
    blend = min(CROSSFADE_SAMPLES, hold)
    return math.ceil((missing + blend) / CLOCKS.samples_per_frame) if missing > 0 else 0


def source_noise(seed: int) -> Noise:
    """Return the noise of the excitation: (first sample, count) -> (count, NOISY_HARMONICS)."""
    key = stream_key(seed, "source")
    return lambda start, count: torch.from_numpy(normal(key, start, count, NOISY_HARMONICS))


def harmonic_phase(config: HiftConfig, seed: int) -> Tensor:
    """Return the initial phase (1, harmonics, 1): zero for the fundamental, and for all if they are in phase."""
    if config.in_phase:
        return torch.zeros(1, config.harmonics, 1)
    turns = torch.tensor([0.5, *first_uniforms(stream_key(seed, "phase"), config.harmonics)[1:]])
    return (2 * turns[None, :, None] - 1) * math.pi


def _numpy(samples: Tensor) -> Samples:
    array: Samples = samples.float().cpu().numpy()
    return array
