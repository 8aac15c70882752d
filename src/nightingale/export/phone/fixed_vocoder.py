"""The vocoder over blocks of a fixed number of frames, with its state as inputs and outputs.

The forward pass is that of models/frame_vocoder/network.py.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from nightingale.models.frame_vocoder.config import FRAME_SAMPLES
from nightingale.models.frame_vocoder.network import FrameVocoder

STATE: Final = "cache."
"""The prefix of the state's names."""


class FixedVocoder(nn.Module):
    """Inputs:

    mel         (1, frames, mel)       log-mel frames, as the flow returns them
    noise       (1, 480 · frames)      standard normal
    cache.NAME                         at first as `example` has them, later the outputs of the previous block

    Outputs: samples (480 · frames,), which lie `DELAY_SAMPLES` behind the mel, then the state.
    """

    def __init__(self, vocoder: FrameVocoder, *, frames: int) -> None:
        super().__init__()
        self.vocoder, self.frames = vocoder, frames

    def example(self) -> tuple[Tensor, ...]:
        """Return the inputs of a first block, without noise."""
        mel = torch.zeros(1, self.frames, self.vocoder.config.mel_bands)
        noise = torch.zeros(1, FRAME_SAMPLES * self.frames)
        return mel, noise, *self.vocoder.initial_state(1)

    def names(self) -> tuple[list[str], list[str]]:
        """Return the names of the inputs and of the outputs."""
        state = [f"{STATE}{name}" for name, _ in self.vocoder.state_shapes()]
        return ["mel", "noise", *state], ["samples", *state]

    def forward(self, mel: Tensor, noise: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        samples, state = self.vocoder(mel.transpose(1, 2), noise, past)
        return samples[0], *state
