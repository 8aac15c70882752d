"""HiFT: pitch, excitation and samples, each by itself and then all together."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nightingale.models.chatterbox.hift.generator import Hift
from nightingale_lab.parity.hooks import outputs_of
from nightingale_lab.parity.table import Rows

SEED = 13


@torch.inference_mode()
def compare(rows: Rows, theirs: Any, ours: Hift, mel: Tensor) -> None:
    vocoder, frames = theirs.mel2wav, mel.shape[2]
    pitch = vocoder.f0_predictor(mel)
    voiced = int((pitch > 10).sum())
    note = f"{voiced} of {frames} frames voiced, up to {float(pitch.max()):.0f} Hz"
    rows.close("f0", ours.f0_predictor(mel), pitch, relative=1e-5, note=note)

    torch.manual_seed(SEED)
    theirs_source, _, _ = vocoder.m_source(vocoder.f0_upsamp(pitch[:, None]).transpose(1, 2))
    source = theirs_source.transpose(1, 2)
    our_source, _ = ours.m_source(pitch, *draw_excitation(frames))
    rows.close("source for fixed phase and noise", our_source, source, relative=1e-5)

    with outputs_of(vocoder.conv_post) as their_trunk, outputs_of(ours.conv_post) as our_trunk:
        wav, our_wav = vocoder.decode(x=mel, s=source), ours(mel, source)
    rows.close("HiFT trunk", our_trunk[0], their_trunk[0], relative=1e-6)
    clipped = float((wav.abs() >= 0.99).float().mean())
    note = f"rms {float(wav.square().mean().sqrt()):.2f}, {100 * clipped:.1f} % at the limit"
    rows.close("waveform for fixed source", our_wav, wav, absolute=1e-4, note=note)

    torch.manual_seed(SEED)
    wav, _ = vocoder.inference(speech_feat=mel)
    rows.close(
        "waveform from mel alone", run_ours(ours, mel, *draw_excitation(frames))[2], wav, absolute=1e-3
    )


@torch.inference_mode()
def run_ours(hift: Hift, mel: Tensor, phase: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return pitch, source and samples."""
    pitch = hift.f0_predictor(mel)
    source, _ = hift.m_source(pitch, phase, noise)
    return pitch, source, hift(mel, source)


def draw_excitation(frames: int, *, seed: int | None = SEED) -> tuple[Tensor, Tensor]:
    """Repeat upstream's calls in its order: the phases of the harmonics, then the noise.

    seed: None goes on with torch's generator as it is.
    """
    if seed is not None:
        torch.manual_seed(seed)
    half_turn = torch.tensor(math.pi)
    phase = -half_turn + torch.rand(1, 9, 1) * (half_turn + half_turn)
    phase[:, 0] = 0
    return phase, torch.randn(1, 9, 480 * frames)
