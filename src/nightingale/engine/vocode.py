"""Mel frames to samples."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from nightingale.clocks import CLOCKS
from nightingale.engine.randomness import NoiseTape, generator
from nightingale.models.chatterbox.hift.config import HARMONICS
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.values import Samples


@torch.inference_mode()
def render_samples(hift: Hift, mel: Tensor, *, seed: int) -> Samples:
    """(mel, frames) -> 480 samples per frame, with the family's fade over the first 40 ms."""
    weight = hift.conv_pre.weight
    device, dtype = weight.device, weight.dtype
    tape = NoiseTape(seed, "source", width=HARMONICS, block_rows=CLOCKS.samples_per_frame)
    noise = tape.read(0, mel.shape[1] * CLOCKS.samples_per_frame).T[None]
    mel = mel[None].to(device, dtype)
    source, _ = hift.m_source(
        hift.f0_predictor(mel), harmonic_phase(seed).to(device, dtype), noise.to(device, dtype)
    )
    samples: Samples = hift(mel, source)[0].float().cpu().numpy()
    fade = fade_in()[: len(samples)]
    samples[: len(fade)] *= fade
    return samples


def harmonic_phase(seed: int) -> Tensor:
    """Where each harmonic starts: the fundamental at zero, the others anywhere. (1, HARMONICS, 1) radians."""
    phase = (2 * torch.rand(1, HARMONICS, 1, generator=generator(seed, "phase")) - 1) * math.pi
    phase[:, 0] = 0
    return phase


def fade_in() -> Samples:
    """20 ms of silence, then 20 ms of raised cosine: hides what leaks from the reference clip's end."""
    # PARITY: upstream's `trim_fade`. tests/engine/test_vocode.py::test_the_fade_is_upstreams
    half = CLOCKS.samples_per_frame
    ramp = (np.cos(np.linspace(np.pi, 0, half)) + 1) / 2
    return np.concatenate([np.zeros(half), ramp]).astype(np.float32)
