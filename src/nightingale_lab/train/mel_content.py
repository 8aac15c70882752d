"""The phonemes of a mel, with which the flow is trained to keep the words, in any voice.

A part of each batch is rendered with the speaker of another clip (mel_speaker.py). If only the speaker and the pitch of
these rows were judged, the flow could give up their words for them: one more word in twelve was lost when a recording
was converted to another voice than when it was rendered in its own (dev/LOG.md). So phonemes must be found in the
rendered mel as they are in the recorded one. A small network finds them; it learns from the teacher's alignment,
beside the flow, and is used in training only.

Two networks find them. The wide one sees 580 ms, as much as it takes to tell reduced sounds. But it may conclude from
its context that a *d* was spoken which the mel does not have: "couldn't" was understood as "can" (dev/LOG.md). So the
narrow one sees 140 ms, and short phonemes count as much as long ones. In a clip's own voice, the inner states of both
networks are compared too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.layers.mel_config import FLOW_MEL
from nightingale_lab.train.teachers.kokoro_net import PHONEMES

UNKNOWN = 0
"""The phoneme of silence at a clip's ends, and of recordings without an alignment."""
WIDTH, WIDE, NARROW = 256, (1, 2, 4), ()
"""Channels, and the dilations of the blocks of both networks."""
FIRST_KERNEL = {WIDE: 5, NARROW: 7}
USUAL_FRAMES = 4
"""A phoneme of so many frames has the weight 1 in each, and others the same weight in total, within LIMITS."""
LIMITS = 0.4, 2.5
FEATURE_WEIGHT = 1.0
"""Weight of the states of a clip in its own voice, relative to the distance of the phonemes."""


@dataclass(frozen=True, slots=True)
class Content:
    """The phonemes and hidden states that both networks find in a mel."""

    logits: Tensor
    """(batch, frames, 2, phonemes)."""
    states: Tensor
    """(batch, frames, channels): their last hidden states."""


class ContentNetwork(nn.Module):
    """Mel (batch, bands, frames) -> hidden states (batch, channels, frames) and logits."""

    def __init__(self, dilations: tuple[int, ...], width: int) -> None:
        super().__init__()
        kernel = FIRST_KERNEL[dilations]
        self.first = nn.Conv1d(FLOW_MEL.bands, width, kernel, padding=kernel // 2)
        self.blocks = nn.ModuleList(
            nn.Conv1d(width, width, 5, padding=2 * step, dilation=step) for step in dilations
        )
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in dilations)
        self.inner = nn.Conv1d(width, width, 1)
        self.last = nn.Conv1d(width, PHONEMES, 1)

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(mel)
        for conv, norm in zip(self.blocks, self.norms, strict=True):
            x = x + F.gelu(conv(norm(x)))
        states = F.gelu(self.inner(F.gelu(x)))
        return states, self.last(states)


class MelContent(nn.Module):
    """Finds the phonemes of normalized mels (batch, bands, frames)."""

    bands: Tensor

    def __init__(self, bands: Tensor, width: int = WIDTH) -> None:
        """bands: (1, bands, 1), 1 for those that every recording has."""
        super().__init__()
        self.register_buffer("bands", bands, persistent=False)
        self.networks = nn.ModuleList(ContentNetwork(dilations, width) for dilations in (WIDE, NARROW))

    def forward(self, mel: Tensor) -> Content:
        found = [network(mel * self.bands) for network in self.networks]
        states = torch.cat([states for states, _ in found], dim=1).float().transpose(1, 2)
        logits = torch.stack([logits for _, logits in found], dim=1).float()
        return Content(logits.permute(0, 3, 1, 2), states)

    def loss(self, mel: Tensor, phones: Tensor) -> Tensor:
        """Return the mean cross-entropy of known phonemes (batch, frames)."""
        logits = self(mel).logits
        each = F.cross_entropy(
            logits.flatten(0, 2), phones[..., None].expand(logits.shape[:3]).flatten(), reduction="none"
        )
        return _mean(each.view(logits.shape[:3]).mean(2), phones != UNKNOWN)

    @staticmethod
    def distance(found: Content, wanted: Tensor, weight: Tensor) -> Tensor:
        """Return how far phonemes are from wanted logits (Kullback-Leibler). weight: (batch, frames)."""
        each = F.kl_div(
            found.logits.log_softmax(3), wanted.log_softmax(3), reduction="none", log_target=True
        ).sum(3)
        return _mean(each.mean(2), weight)

    @staticmethod
    def state_distance(found: Content, wanted: Tensor, weight: Tensor) -> Tensor:
        """Return the distance of hidden states as a share of the size of those that are wanted."""
        size = _mean(wanted.abs().mean(2), weight)
        return _mean((found.states - wanted).abs().mean(2), weight) / (size + 1e-3)


def phoneme_weights(phones: Tensor) -> Tensor:
    """Return the weight of each frame of (batch, frames), by which short phonemes count as much as long ones."""
    changes = F.pad((phones[:, 1:] != phones[:, :-1]).long(), (1, 0))
    number = changes.cumsum(1)
    lengths = torch.zeros_like(number).scatter_add(1, number, torch.ones_like(number)).gather(1, number)
    return torch.where(phones == UNKNOWN, 1.0, (USUAL_FRAMES / lengths).clamp(*LIMITS))


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return (values * weight).sum() / weight.sum().clamp(min=1)
