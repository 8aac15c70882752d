"""The speaker vector of a mel, with which the flow is trained to speak with the voice of any vector.

Tokens of a recording carry traces of its speaker, so a flow that only ever renders tokens with the vector of their
own clip need not read the vector. In the engine the tokens of a clone come from T3 and the vector from a clip of a
stranger. So a part of each batch is rendered with the vector, and partly the prompt, of another clip. There is no
recording to compare that with; instead its speaker vector must be the requested one (a speaker consistency loss).

The vector is the voice encoder's teacher's. It reads mel power of 40 bands at 100 frames per second, which a small
network predicts from the flow's mel; that network learns from recordings, beside the flow. The teacher is fixed. It
knows thousands of speakers, so its gradient holds for people whom the corpus lacks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale.models.layers.mel_config import FLOW_MEL, slaney_triangles
from nightingale_lab.train.corpus import LIMIT_HZ

WIDTH, DILATIONS = 256, (1, 2, 4, 8)
NOISE = 0.1
"""Standard deviation of the noise on its input in training, so that it does not depend on details."""
RATE = 100 * CLOCKS.samples_per_frame // CLOCKS.sample_rate_hz
"""Frames of the teacher's mel per frame of the flow's."""
CROPS = 2
"""Windows of the teacher in each row."""
FLOOR, LARGEST_LOG = 1e-7, 25.0
"""The mel power of silence, and the largest logarithm of a power over it."""


def bands_below(limit_hz: float = LIMIT_HZ) -> Tensor:
    """Return (bands,): 1 for the bands of the flow's mel that end below a frequency."""
    triangles = torch.from_numpy(slaney_triangles(FLOW_MEL))
    bins_hz = torch.arange(triangles.shape[1]) * FLOW_MEL.sample_rate_hz / FLOW_MEL.fft_samples
    above = (triangles * (bins_hz > limit_hz)).sum(1)
    return (above == 0).float()


class MelSpeakerEncoder(nn.Module):
    """Normalized mel (batch, bands, frames) -> unit vectors (batch, embedding)."""

    bands: Tensor

    def __init__(self, teacher: VoiceEncoder, width: int = WIDTH) -> None:
        super().__init__()
        self.register_buffer("bands", bands_below()[None, :, None], persistent=False)
        self.first = nn.Conv1d(FLOW_MEL.bands, width, 5, padding=2)
        self.blocks = nn.ModuleList(
            nn.Conv1d(width, width, 5, padding=2 * step, dilation=step) for step in DILATIONS
        )
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in DILATIONS)
        self.last = nn.Conv1d(width, RATE * teacher.config.mel_bands, 1)
        self.teacher = [teacher.requires_grad_(False).train()]  # no submodule, so that it is not saved
        self.crop_frames = teacher.config.window_frames // RATE
        """Frames of the flow's mel in a window of the teacher."""

    def log_power(self, mel: Tensor, valid: Tensor) -> Tensor:
        """Return the logarithm of the teacher's mel power over FLOOR, (batch, RATE · frames, bands).

        valid: (batch, frames), 1 for the frames that count.
        """
        x = self.first(mel * self.bands * valid[:, None].to(mel.dtype))
        for conv, norm in zip(self.blocks, self.norms, strict=True):
            x = x + F.gelu(conv(norm(x)))
        parts = self.last(F.gelu(x)).float().unflatten(1, (RATE, -1))  # (batch, RATE, bands, frames)
        return parts.permute(0, 3, 1, 2).flatten(1, 2).clamp(max=LARGEST_LOG)

    def crops(self, log_power: Tensor, valid: Tensor) -> Tensor:
        """Return random windows within the frames that count, (batch · CROPS, window frames, bands)."""
        frames = valid.shape[1]
        place = torch.arange(frames, device=valid.device)
        first = torch.where(valid.bool(), place, frames).amin(1)
        last = torch.where(valid.bool(), place, 0).amax(1) + 1
        space = (last - first - self.crop_frames).clamp(min=0)
        share = torch.rand(len(valid), CROPS, device=valid.device)
        start = (first[:, None] + (share * (space[:, None] + 1)).long()).clamp(max=frames - self.crop_frames)
        at = RATE * start[:, :, None] + torch.arange(RATE * self.crop_frames, device=valid.device)
        rows = torch.arange(len(valid), device=valid.device)[:, None, None]
        return log_power[rows, at].flatten(0, 1)

    def embed(self, crops: Tensor) -> Tensor:
        """Return the teacher's unit vector of each row, the mean over its windows."""
        with torch.autocast(crops.device.type, enabled=False):  # cuDNN has no bfloat16 LSTM
            each = self.teacher[0](FLOOR * crops.float().exp())
        return F.normalize(each.unflatten(0, (-1, CROPS)).mean(1), dim=1)

    def forward(self, mel: Tensor, valid: Tensor) -> Tensor:
        return self.embed(self.crops(self.log_power(mel, valid), valid))

    def loss(self, mel: Tensor, valid: Tensor, power: Tensor) -> Tensor:
        """Return the loss of recordings. power: their mel power, (batch, RATE · frames, bands)."""
        found, wanted = self.log_power(mel, valid), (power / FLOOR).clamp(min=1.0).log()
        inside = valid.repeat_interleave(RATE, 1)[..., None].to(found.dtype)
        count = (inside.sum() * found.shape[2]).clamp(min=1)
        error = ((found - wanted).abs() * inside).sum() / count
        both = self.crops(torch.cat([found, wanted], dim=2), valid).chunk(2, dim=2)
        return error + distance(self.embed(both[0].contiguous()), self.embed(both[1].contiguous()))


def distance(found: Tensor, wanted: Tensor) -> Tensor:
    """Return one minus the mean cosine of unit vectors."""
    return 1 - (found.float() * wanted.float()).sum(1).mean()
