"""The pitch of recordings, measured near the curve that the teacher gives with them.

A teacher's curve is what its vocoder was asked for, and its audio follows it only roughly: on 36 clips of Kokoro the
curve was 2.1 % off in the median (dev/LOG.md). The harmonics of a pitch that is 2 % off miss those of the mel, and a
vocoder that learns it renders noise between them. So the pitch is searched near the curve: it is the one at whose
multiples the spectrum is strong, and between whose multiples it is weak. A frame without such a pitch is unknown.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.models.frame_vocoder.config import VOICED_ABOVE_HZ
from nightingale.models.layers.mel_config import FLOW_MEL
from nightingale_lab.train.bank import FULL_SCALE, HOP, UNKNOWN_HZ, AudioBank
from nightingale_lab.train.vocoder_losses import fourier_matrix, magnitude

WINDOW_SAMPLES, FFT_SAMPLES = 1440, 8192
LARGEST_LOG_RATIO, CANDIDATES = 0.2, 81
HARMONICS, HARMONIC_DECAY = 8, 0.85
"""Harmonics that are compared, and the weight of each relative to the one below."""
LEAST_STRENGTH = 0.25
"""Mean height of the harmonics over the gaps between them, relative to the highest bin, of a frame with a pitch."""
BATCH_FRAMES = 2048
LEAST_VOICED_FRAMES = 25
"""Voiced frames of a row whose mean pitch is compared: half a second."""


def measure_pitch(bank: AudioBank, device: torch.device) -> AudioBank:
    """Return the bank with the pitch measured in every frame where its curve has one."""
    curve = torch.from_numpy(bank.f0_hz).to(device).float()
    audio = F.pad(torch.from_numpy(bank.audio).to(device), (WINDOW_SAMPLES // 2, WINDOW_SAMPLES // 2))
    transform = fourier_matrix(WINDOW_SAMPLES, FFT_SAMPLES).to(device)
    result = curve.clone()
    for frames in torch.nonzero(curve > 0)[:, 0].split(BATCH_FRAMES):
        first = frames * HOP + HOP // 2  # of the padded audio: the window is around the frame's centre
        windows = audio[first[:, None] + torch.arange(WINDOW_SAMPLES, device=device)].float() / FULL_SCALE
        spectra = (windows @ transform).unflatten(-1, (-1, 2))
        result[frames] = pitch_near(spectra, curve[frames])
    return replace(bank, f0_hz=result.half().cpu().numpy())


def pitch_near(spectra: Tensor, curve_hz: Tensor) -> Tensor:
    """Return the pitch (frames,) of spectra (frames, bins, 2) near a curve, UNKNOWN_HZ where there is none."""
    height = magnitude(spectra)
    height = height / height.amax(1, keepdim=True)
    logs = torch.linspace(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO, CANDIDATES, device=spectra.device)
    number = torch.arange(1, HARMONICS + 1, device=spectra.device)
    bins_per_hz = FFT_SAMPLES / FLOW_MEL.sample_rate_hz
    candidates = (curve_hz[:, None] * logs.exp())[..., None] * bins_per_hz
    weight = HARMONIC_DECAY ** (number - 1.0)
    contrast = _interpolated(height, candidates * number) - _interpolated(height, candidates * (number - 0.5))
    strength = (contrast * weight).sum(2) / weight.sum()
    best = strength.argmax(1)
    inner = best.clamp(1, CANDIDATES - 2)[:, None]
    below, at, above = (strength.gather(1, inner + step)[:, 0] for step in (-1, 0, 1))
    # The vertex of the parabola through the best candidate and its neighbours.
    offset = ((below - above) / (2 * (below - 2 * at + above)).clamp(max=-1e-9)).clamp(-1, 1)
    log = logs[inner[:, 0]] + offset * (logs[1] - logs[0])
    found = (at > LEAST_STRENGTH) & (best > 0) & (best < CANDIDATES - 1)
    return torch.where(found, curve_hz * log.exp(), torch.full_like(curve_hz, UNKNOWN_HZ))


def _interpolated(height: Tensor, place: Tensor) -> Tensor:
    """Return the height of (frames, bins) at fractional bins (frames, candidates, harmonics)."""
    below = place.long().clamp(max=height.shape[1] - 2)
    share = place - below
    values = [height.gather(1, (below + step).flatten(1)).view_as(place) for step in (0, 1)]
    return torch.lerp(values[0], values[1], share)


def mean_log_pitch(f0_hz: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean logarithm of the pitch over some frames of each row, and whether they are enough."""
    count = frames.sum(1)
    logs = torch.log(f0_hz.clamp(min=VOICED_ABOVE_HZ)) * frames
    return logs.sum(1) / count.clamp(min=1), count >= LEAST_VOICED_FRAMES
