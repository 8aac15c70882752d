"""A speaker encoder for mels, with which the flow is trained to speak with the voice of any speaker vector.

Tokens of a recording carry traces of its speaker, so a flow that only ever renders tokens with the vector of their
own clip need not read the vector. In the engine the tokens of a clone come from T3 and the vector from a clip of a
stranger. So a part of each batch is rendered with the vector, and partly the prompt, of another clip. There is no
recording to compare that with; instead its speaker vector, as this network estimates it, must be the requested one
(a speaker consistency loss). The network learns the vectors from recorded mels, beside the flow.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.layers.mel_config import FLOW_MEL, slaney_triangles
from nightingale_lab.train.corpus import LIMIT_HZ

WIDTH, DILATIONS = 256, (1, 2, 4, 8)
NOISE = 0.2
"""Standard deviation of the noise on its input in training, so that it does not depend on details."""


def bands_below(limit_hz: float = LIMIT_HZ) -> Tensor:
    """Return (bands,): 1 for the bands of the flow's mel that end below a frequency."""
    triangles = torch.from_numpy(slaney_triangles(FLOW_MEL))
    bins_hz = torch.arange(triangles.shape[1]) * FLOW_MEL.sample_rate_hz / FLOW_MEL.fft_samples
    above = (triangles * (bins_hz > limit_hz)).sum(1)
    return (above == 0).float()


class MelSpeakerEncoder(nn.Module):
    """Normalized mel (batch, bands, frames) -> unit vectors (batch, embedding)."""

    bands: Tensor

    def __init__(self, embedding: int = 256, width: int = WIDTH) -> None:
        super().__init__()
        self.register_buffer("bands", bands_below()[None, :, None], persistent=False)
        self.first = nn.Conv1d(FLOW_MEL.bands, width, 5, padding=2)
        self.blocks = nn.ModuleList(
            nn.Conv1d(width, width, 5, padding=2 * step, dilation=step) for step in DILATIONS
        )
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in DILATIONS)
        self.last = nn.Linear(2 * width, embedding)

    def forward(self, mel: Tensor, valid: Tensor) -> Tensor:
        """valid: (batch, frames), 1 for the frames that count."""
        inside = valid[:, None].to(mel.dtype)
        x = self.first(mel * self.bands * inside)
        for conv, norm in zip(self.blocks, self.norms, strict=True):
            x = x + F.gelu(conv(norm(x)))
        x, count = x.float() * inside, inside.sum(2).clamp(min=1)
        mean = x.sum(2) / count
        spread = ((x.square().sum(2) / count - mean.square()).clamp(min=0) + 1e-4).sqrt()
        return F.normalize(self.last(torch.cat([mean, spread], dim=1)), dim=1)


def distance(found: Tensor, wanted: Tensor) -> Tensor:
    """Return one minus the mean cosine of unit vectors."""
    return 1 - (found.float() * wanted.float()).sum(1).mean()
