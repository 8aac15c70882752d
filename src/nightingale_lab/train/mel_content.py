"""The phonemes of a mel, with which the flow is trained to keep the words, in any voice.

A part of each batch is rendered with the speaker of another clip (mel_speaker.py). If only the speaker and the pitch of
these rows were judged, the flow could give up their words for them: one more word in twelve was lost when a recording
was converted to another voice than when it was rendered in its own (dev/LOG.md). So phonemes must be found in the
rendered mel as they are in the recorded one. A small network finds them; it learns from the teacher's alignment,
beside the flow, and is used in training only.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.layers.mel_config import FLOW_MEL
from nightingale_lab.train.teachers.kokoro_net import PHONEMES

UNKNOWN = 0
"""The phoneme of silence at a clip's ends, and of recordings without an alignment."""
WIDTH, DILATIONS = 256, (1, 2, 4)


class MelContent(nn.Module):
    """Normalized mel (batch, bands, frames) -> logits of its phonemes (batch, frames, phonemes)."""

    bands: Tensor

    def __init__(self, bands: Tensor, width: int = WIDTH) -> None:
        """bands: (1, bands, 1), 1 for those that every recording has."""
        super().__init__()
        self.register_buffer("bands", bands, persistent=False)
        self.first = nn.Conv1d(FLOW_MEL.bands, width, 5, padding=2)
        self.blocks = nn.ModuleList(
            nn.Conv1d(width, width, 5, padding=2 * step, dilation=step) for step in DILATIONS
        )
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in DILATIONS)
        self.last = nn.Conv1d(width, PHONEMES, 1)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.first(mel * self.bands)
        for conv, norm in zip(self.blocks, self.norms, strict=True):
            x = x + F.gelu(conv(norm(x)))
        return self.last(F.gelu(x)).float().transpose(1, 2)

    def loss(self, mel: Tensor, phones: Tensor) -> Tensor:
        """Return the mean cross-entropy of known phonemes (batch, frames)."""
        each = F.cross_entropy(self(mel).flatten(0, 1), phones.flatten(), reduction="none")
        return _mean(each.view_as(phones), phones != UNKNOWN)

    def distance(self, mel: Tensor, wanted: Tensor, counted: Tensor) -> Tensor:
        """Return how far phonemes of a mel are from wanted logits (Kullback-Leibler), where `counted` is true."""
        each = F.kl_div(
            self(mel).log_softmax(2), wanted.log_softmax(2), reduction="none", log_target=True
        ).sum(2)
        return _mean(each, counted)


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    return (values * counted).sum() / counted.sum().clamp(min=1)
