"""Render mel frames to samples, whole or as they arrive."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.audio.crossfade import CROSSFADE_SAMPLES, HOLD_FRAMES, Crossfade, apply_fade_in
from nightingale.backends.shared.vocoder_blocks import VocoderBlocks
from nightingale.clocks import CLOCKS
from nightingale.decoding.philox import first_uniforms, normal, stream_key
from nightingale.models.chatterbox.build import Vocoder
from nightingale.models.chatterbox.hift.config import HARMONICS
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.hift.hift_stream import HiftStream, Noise
from nightingale.models.chatterbox.hift.receptive_field import lookahead_samples
from nightingale.models.frame_vocoder.config import SILENT_LOG_MEL
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale.types import Samples

MPS_FRAMES = 400
"""Mel frames that MPS vocodes at a time: older versions fail where a convolution has over 65,536 columns, and
HiFT's last ones have 120 for each frame."""


class SampleStream(Protocol):
    """Vocodes one utterance from blocks of mel."""

    def push(self, mel: Tensor, *, final: bool) -> Samples:
        """Return the samples that mel (bands, frames) completes, perhaps none."""


def open_sample_stream(vocoder: Vocoder, *, seed: int, streaming: bool) -> SampleStream:
    """Begin an utterance. Not `streaming`: all samples are rendered in one piece at the end."""
    if not streaming:
        return WholeSamples(vocoder, seed=seed)
    if isinstance(vocoder, FrameVocoder):
        return FrameVocoderStream(vocoder, seed=seed)
    return CrossfadedStream(vocoder, seed=seed)


def render_samples(vocoder: Vocoder, mel: Tensor, *, seed: int) -> Samples:
    """Return 480 samples per frame of mel (bands, frames), with the family's fade over the first 40 ms."""
    if isinstance(vocoder, FrameVocoder):
        return FrameVocoderStream(vocoder, seed=seed).push(mel, final=True)
    return _render_whole(vocoder, mel, seed)


class WholeSamples:
    """Collects the mel of an utterance, and renders it at the end."""

    def __init__(self, vocoder: Vocoder, *, seed: int) -> None:
        self._vocoder, self._seed = vocoder, seed
        self._waiting: list[Tensor] = []

    def push(self, mel: Tensor, *, final: bool) -> Samples:
        self._waiting.append(mel)
        whole = torch.cat(self._waiting, dim=1) if final else mel
        if not final or not whole.shape[1]:
            return np.zeros(0, np.float32)
        return render_samples(self._vocoder, whole, seed=self._seed)


class FrameVocoderStream:
    """Samples of a frame-rate vocoder, whose blocks equal the whole."""

    def __init__(self, net: FrameVocoder, *, seed: int) -> None:
        self._net, self._blocks = net, VocoderBlocks(seed=seed)
        self._state = net.initial_state(1)

    @torch.inference_mode()
    def push(self, mel: Tensor, *, final: bool) -> Samples:
        frames = self._blocks.frames(mel.shape[1], final=final)
        if not frames:
            return np.zeros(0, np.float32)
        device = self._net.analysis.device
        padded = F.pad(mel[None].to(device, torch.float32), (0, frames - mel.shape[1]), value=SILENT_LOG_MEL)
        noise = torch.from_numpy(self._blocks.noise(frames))[None].to(device)
        samples, self._state = self._net(padded, noise, self._state)
        return self._blocks.emit(_numpy(samples[0]))


class CrossfadedStream:
    """Samples of HiFT, which looks 19 frames ahead: too many to wait for.

    Each block is padded with copies of its last frame. All but the last `hold_frames` are returned, which are
    blended into the rendering that follows from the next block.
    """

    def __init__(self, hift: Hift, *, seed: int, hold_frames: int = HOLD_FRAMES) -> None:
        self._hift = hift
        self._stream = HiftStream(hift, phase=harmonic_phase(seed), noise=source_noise(seed))
        self._crossfade = Crossfade(hold_frames)
        self._extrapolated_frames = extrapolated_frames(hift, hold_frames)
        self._known, self._settled = 0, 0
        """Samples for which mel is known, and samples that no later mel can change."""
        self._last_frame: Tensor | None = None

    @torch.inference_mode()
    def push(self, mel: Tensor, *, final: bool) -> Samples:
        self._known += mel.shape[1] * CLOCKS.samples_per_frame
        if not self._known:
            return np.zeros(0, np.float32)
        weight = self._hift.conv_pre.weight
        mel = mel[None].to(weight.device, weight.dtype)
        samples = _numpy(self._stream.push(mel, final=final))
        start, self._settled = self._settled, self._settled + len(samples)
        self._last_frame = mel[..., -1:].clone() if mel.shape[-1] else self._last_frame
        if not final and self._extrapolated_frames:
            assert self._last_frame is not None
            held = self._last_frame.expand(-1, -1, self._extrapolated_frames)
            samples = np.concatenate([samples, _numpy(self._stream.fork().push(held, final=False))])
        end = self._settled
        if self._extrapolated_frames:
            end = self._crossfade.end(self._known, final=final)
        return self._crossfade.join(samples, start=start, end=end)


@torch.inference_mode()
def _render_whole(hift: Hift, mel: Tensor, seed: int) -> Samples:
    weight = hift.conv_pre.weight
    device, dtype = weight.device, weight.dtype
    if device.type == "mps":
        return apply_fade_in(_render_in_blocks(hift, mel[None].to(device, dtype), seed), 0)
    noise = source_noise(seed)(0, mel.shape[1] * CLOCKS.samples_per_frame).T[None]
    mel = mel[None].to(device, dtype)
    source, _ = hift.m_source(hift.f0_predictor(mel), harmonic_phase(seed), noise)
    return apply_fade_in(_numpy(hift(mel, source)[0]), 0)


def _render_in_blocks(hift: Hift, mel: Tensor, seed: int) -> Samples:
    """Vocode mel (1, bands, frames) in blocks, which together equal the whole."""
    stream = HiftStream(hift, phase=harmonic_phase(seed), noise=source_noise(seed))
    frames = mel.shape[2]
    parts = [
        _numpy(stream.push(mel[..., start : start + MPS_FRAMES], final=start + MPS_FRAMES >= frames))
        for start in range(0, frames, MPS_FRAMES)
    ]
    return np.concatenate(parts)


def extrapolated_frames(hift: Hift, hold_frames: int = HOLD_FRAMES) -> int:
    """Return the frames of padding after which all but the last `hold_frames` can be returned."""
    hold = hold_frames * CLOCKS.samples_per_frame
    missing = lookahead_samples(hift) - hold
    blend = min(CROSSFADE_SAMPLES, hold)
    return math.ceil((missing + blend) / CLOCKS.samples_per_frame) if missing > 0 else 0


def source_noise(seed: int) -> Noise:
    """Return the noise of the excitation: (first sample, count) -> (count, HARMONICS)."""
    key = stream_key(seed, "source")
    return lambda start, count: torch.from_numpy(normal(key, start, count, HARMONICS))


def harmonic_phase(seed: int) -> Tensor:
    """Return the initial phase (1, harmonics, 1): zero for the fundamental."""
    turns = torch.tensor([0.5, *first_uniforms(stream_key(seed, "phase"), HARMONICS)[1:]])
    return (2 * turns[None, :, None] - 1) * math.pi


def _numpy(samples: Tensor) -> Samples:
    array: Samples = samples.float().cpu().numpy()
    return array
