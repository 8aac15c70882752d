"""The tokens of a mel, with which the flow is trained to keep the words when it renders them in another voice.

A part of each batch is rendered with the speaker of another clip (mel_speaker.py). If only the speaker and the pitch of
these rows were judged, the flow could give up their words for them: one more word in twelve was lost when a recording
was converted to another voice than when it was rendered in its own (dev/LOG.md). So the tokens must be found again in
the rendered mel. A small network finds them; it learns from recordings, beside the flow, and is used in training only.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.chatterbox.encoders.config import FSQ_LEVELS
from nightingale.models.layers.mel_config import FLOW_MEL
from nightingale_lab.train.code_init import code_digits

WIDTH, DILATIONS = 256, (1, 2, 4)


class MelContent(nn.Module):
    """Normalized mel (batch, bands, 2 · tokens) -> logits of the tokens' digits (batch, tokens, digits, levels)."""

    bands: Tensor
    digits: Tensor

    def __init__(self, bands: Tensor, width: int = WIDTH) -> None:
        """bands: (1, bands, 1), 1 for those that every recording has."""
        super().__init__()
        self.register_buffer("bands", bands, persistent=False)
        self.register_buffer("digits", code_digits() + 1, persistent=False)
        self.first = nn.Conv1d(FLOW_MEL.bands, width, 6, stride=2, padding=2)
        self.blocks = nn.ModuleList(
            nn.Conv1d(width, width, 5, padding=2 * step, dilation=step) for step in DILATIONS
        )
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in DILATIONS)
        self.last = nn.Conv1d(width, self.digits.shape[1] * FSQ_LEVELS, 1)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.first(mel * self.bands)
        for conv, norm in zip(self.blocks, self.norms, strict=True):
            x = x + F.gelu(conv(norm(x)))
        return self.last(F.gelu(x)).float().transpose(1, 2).unflatten(2, (-1, FSQ_LEVELS))

    def loss(self, mel: Tensor, ids: Tensor, counted: Tensor) -> Tensor:
        """Return the mean cross-entropy of the digits of tokens (batch, tokens) where `counted` is true."""
        logits, digits = self(mel), self.digits[ids]
        each = F.cross_entropy(logits.flatten(0, 2), digits.flatten(), reduction="none").view_as(digits)
        share = counted.float() / counted.float().sum().clamp(min=1)
        return (each.mean(2) * share).sum()
