"""HiFT's Triton kernels give the samples of library calls.

With a GPU they are compiled; without one they run in Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from parity.tiny import TINY_HIFT, fill, gaussian
from torch import Tensor

from nightingale.backends.cuda.bucketed_vocoder import BucketedVocoder
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


def render(vocoder: BucketedVocoder, mel: Tensor, frames: list[int]) -> Tensor:
    batch, harmonics = len(mel), vocoder.hift.config.harmonics
    zeros = torch.zeros(batch, dtype=torch.int64, device=DEVICE)
    start = torch.zeros(batch, harmonics, 1, device=DEVICE)
    samples, _ = vocoder(
        mel,
        frames=torch.tensor(frames, device=DEVICE),
        key=zeros + 5,
        first_frame=zeros,
        phase=start,
        cycles=start.double(),
        anchor=zeros,
    )
    return samples.clone()


def both(config: HiftConfig, frames: list[int], bucket: int, **options: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return samples by the kernels and by library calls."""
    hift = fill(Hift(config)).to(DEVICE)
    mel = gaussian((len(frames), 80, max(frames)), 1).to(DEVICE)
    given = {"batches": (len(frames) + 1,), "frames": (bucket,)}
    # Left alone, cuDNN rounds inputs to ten bits, and so would the kernels.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        triton = BucketedVocoder(hift, kernels="triton", **given, **options)
        ours = render(triton, mel, frames)
        theirs = render(BucketedVocoder(hift, kernels="library", **given), mel, frames)
    assert theirs.abs().max() > 0.05
    return ours, theirs


@pytest.mark.parametrize("causal", [False, True])
def test_windows_of_a_batch_are_those_of_library_calls(causal: bool) -> None:
    ours, theirs = both(replace(TINY_HIFT, causal=causal), [2, 1], 3)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
