"""The discriminator of the flow's mels: whether a mel is recorded or rendered.

Tokens and speaker leave some of a mel open. A flow that is trained on the distance to the recorded mel alone renders
the median of what is possible, which is flat between harmonics (dev/LOG.md). A discriminator tells such a mel from a
recorded one, so the flow has to choose one of the possibilities. It reads the mel beside the token encoder's own
prediction, since a sharp mel of another sound is wrong too. It is used in training only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale_lab.train.discriminators import (
    DiscriminatorOutput,
    NormedConv2d,
    discriminator_loss,
    feature_loss,
    generator_loss,
    judge_patches,
)

PATCH_BANDS = 4
"""Neighbouring bands that are the channels of one position, so that differences between them are seen at once."""
CHANNELS = 64
SCALES = (1, 2)
"""Frames whose mean is one frame of each part."""
FEATURE_WEIGHT = 2.0


class MelPatches(nn.Module):
    """Judges patches of 180 ms and 36 bands at one resolution in time."""

    def __init__(self, frames: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.frames, self.dtype = frames, dtype
        self.convs = nn.ModuleList(
            NormedConv2d(inputs, CHANNELS, (3, 3)) for inputs in (2 * PATCH_BANDS, *[CHANNELS] * 3)
        )
        self.head = nn.Linear(CHANNELS, 1)

    def forward(self, pair: Tensor) -> DiscriminatorOutput:
        """pair: (batch, 2, bands, frames)."""
        batch, channels, bands, _ = pair.shape
        if self.frames > 1:
            pair = F.avg_pool2d(pair, (1, self.frames))
        groups = pair.reshape(batch, channels, bands // PATCH_BANDS, PATCH_BANDS, -1)
        x = groups.permute(0, 1, 3, 4, 2).flatten(1, 2).to(self.dtype, memory_format=torch.channels_last)
        return judge_patches(self.convs, self.head, x)


class MelDiscriminator(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.parts = nn.ModuleList(MelPatches(frames, dtype) for frames in SCALES)

    def forward(self, mel: Tensor, prior: Tensor) -> list[DiscriminatorOutput]:
        """mel, prior: (batch, bands, frames), normalized, and zero where nothing is judged."""
        pair = torch.stack([mel, prior], dim=1)
        return [part(pair) for part in self.parts]

    def loss(self, recorded: Tensor, rendered: Tensor, prior: Tensor) -> Tensor:
        """Return the loss of the discriminator."""
        outputs = self(torch.cat([recorded, rendered]), torch.cat([prior, prior]))
        pairs = [logits.chunk(2) for logits, _ in outputs]
        return discriminator_loss([(real, []) for real, _ in pairs], [(fake, []) for _, fake in pairs])

    def flow_loss(self, recorded: Tensor, rendered: Tensor, prior: Tensor) -> Tensor:
        """Return the loss of the flow."""
        with torch.no_grad():
            real = self(recorded, prior)
        fake = self(rendered, prior)
        return generator_loss(fake) + FEATURE_WEIGHT * feature_loss(real, fake)


def balanced(loss: Tensor, other: Tensor, at: Tensor, share: Tensor) -> Tensor:
    """Return `other` scaled so that its gradient at a tensor has `share` of the norm of that of `loss`."""
    norms = [
        torch.linalg.vector_norm(torch.autograd.grad(each, at, retain_graph=True)[0].float())
        for each in (loss, other)
    ]
    return share * (norms[0] / (norms[1] + 1e-8)).clamp(max=100.0).detach() * other
