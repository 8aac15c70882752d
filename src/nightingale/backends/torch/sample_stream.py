"""Mel frames to samples, whole or as they come."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nightingale.audio.crossfade import CROSSFADE_SAMPLES, HOLD_FRAMES, Crossfade, apply_fade_in
from nightingale.clocks import CLOCKS
from nightingale.decoding.philox import normal, stream_key, uniform
from nightingale.models.chatterbox.hift.config import NOISY_HARMONICS, HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.hift.hift_stream import HiftStream, Noise
from nightingale.models.chatterbox.hift.receptive_field import lookahead_samples
from nightingale.types import Samples


@torch.inference_mode()
def render_samples(hift: Hift, mel: Tensor, *, seed: int) -> Samples:
    """(mel, frames) -> 480 samples per frame, with the family's fade over the first 40 ms."""
    weight = hift.conv_pre.weight
    device, dtype = weight.device, weight.dtype
    noise = source_noise(seed)(0, mel.shape[1] * CLOCKS.samples_per_frame).T[None]
    mel = mel[None].to(device, dtype)
    source, _ = hift.m_source(hift.f0_predictor(mel), harmonic_phase(hift.config, seed), noise)
    samples: Samples = hift(mel, source)[0].float().cpu().numpy()
    return apply_fade_in(samples, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Excitation:
    """A piece of mel on its way to sound."""

    mel: Tensor
    final: bool
    known_samples: int
    """Of the utterance, for which there is mel, with this piece."""
    sources: list[Tensor] | None
    """What its excitation gives to each stage of the network, where that is known already."""


class SampleStream:
    """The samples of one utterance, from pieces of mel: 480 for each frame once the last piece is in.

    Streaming, what the network needs of the future is held back, and the pieces equal the whole: a causal
    voice needs 3 frames and 64 samples. The official network needs 19 frames, too many to wait for. All but
    `hold_frames` is given out then, rendered as if the last frame were held; where the next piece brings the
    real future, the two renderings are cross-faded.
    """

    def __init__(self, hift: Hift, *, seed: int, streaming: bool, hold_frames: int = HOLD_FRAMES) -> None:
        self._hift, self._seed, self._streaming = hift, seed, streaming
        self._waiting: list[Tensor] = []
        self._stream = HiftStream(hift, phase=harmonic_phase(hift.config, seed), noise=source_noise(seed))
        self._crossfade = Crossfade(hold_frames)
        self._guessed_frames = guessed_frames(hift, hold_frames)
        self._known, self._settled = 0, 0
        """In samples: what mel is there for, and what no later mel can change."""
        self._last_frame: Tensor | None = None

    def push(self, mel: Tensor, *, final: bool) -> Samples:
        """(mel, frames) -> the samples that are ready now, perhaps none."""
        return self.render(self.excite(mel, final=final))

    @torch.inference_mode()
    def excite(self, mel: Tensor, *, final: bool) -> Excitation:
        """The part of `push` that another thread may do beforehand, of this piece and of those to come."""
        self._known += mel.shape[1] * CLOCKS.samples_per_frame
        sources = None
        # Where frames to come are guessed, what they gave is forgotten again: one piece after the other.
        if self._streaming and self._known and not self._guessed_frames:
            sources = self._stream.source_features(self._placed(mel), final=final)
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
        mel, final, sources = self._placed(excited.mel), excited.final, excited.sources
        if sources is not None:
            samples = _numpy(self._stream.synthesize(mel, sources, final=final))
            start, self._settled = self._settled, self._settled + len(samples)
            return self._crossfade.join(samples, start=start, end=self._settled)
        samples = _numpy(self._stream.push(mel, final=final))
        start, self._settled = self._settled, self._settled + len(samples)
        self._last_frame = mel[..., -1:].clone() if mel.shape[-1] else self._last_frame
        if not final:
            assert self._last_frame is not None
            held = self._last_frame.expand(-1, -1, self._guessed_frames)
            samples = np.concatenate([samples, _numpy(self._stream.fork().push(held, final=False))])
        return self._crossfade.join(
            samples, start=start, end=self._crossfade.end(excited.known_samples, final=final)
        )

    def _placed(self, mel: Tensor) -> Tensor:
        weight = self._hift.conv_pre.weight
        return mel[None].to(weight.device, weight.dtype)


def guessed_frames(hift: Hift, hold_frames: int = HOLD_FRAMES) -> int:
    """So many frames to come are guessed, that all but the last `hold_frames` can be given out."""
    hold = hold_frames * CLOCKS.samples_per_frame
    missing = lookahead_samples(hift) - hold
    blend = min(CROSSFADE_SAMPLES, hold)
    return math.ceil((missing + blend) / CLOCKS.samples_per_frame) if missing > 0 else 0


def source_noise(seed: int) -> Noise:
    """Return the noise of the excitation: (first sample, count) -> (count, NOISY_HARMONICS)."""
    key = stream_key(seed, "source")
    return lambda start, count: torch.from_numpy(normal(key, start, count, NOISY_HARMONICS))


def harmonic_phase(config: HiftConfig, seed: int) -> Tensor:
    """Where each harmonic starts: the fundamental at zero, the others with it, or anywhere.

    (1, harmonics, 1) radians.
    """
    if config.in_phase:
        return torch.zeros(1, config.harmonics, 1)
    turns = uniform(stream_key(seed, "phase"), 0, np.arange(config.harmonics)).astype(np.float32)
    phase = (2 * torch.from_numpy(turns)[None, :, None] - 1) * math.pi
    phase[:, 0] = 0
    return phase


def _numpy(samples: Tensor) -> Samples:
    array: Samples = samples.float().cpu().numpy()
    return array
