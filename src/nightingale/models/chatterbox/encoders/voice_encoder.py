"""The voice encoder: a speaker vector for T3, from an LSTM over windows of mel power."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.audio.reference_check import sound_span
from nightingale.models.chatterbox.encoders.config import VoiceEncoderConfig
from nightingale.models.layers.mel import VoiceMel
from nightingale.models.layers.mel_config import VOICE_MEL


class VoiceEncoder(nn.Module):
    def __init__(self, config: VoiceEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.mel = VoiceMel(replace(VOICE_MEL, bands=config.mel_bands))
        self.lstm = nn.LSTM(config.mel_bands, config.width, config.layers, batch_first=True)
        self.proj = nn.Linear(config.width, config.embedding)
        # Two parameters of the training loss that the official file contains; nothing reads them.
        self.similarity_weight = nn.Parameter(torch.tensor([10.0]))
        self.similarity_bias = nn.Parameter(torch.tensor([-5.0]))

    def forward(self, windows: Tensor) -> Tensor:
        """Embed (windows, frames, bands) as (windows, embedding), each of length one."""
        _, (hidden, _) = self.lstm(windows)
        return F.normalize(F.relu(self.proj(hidden[-1])), dim=-1)

    @torch.no_grad()
    def embed(self, wav16k: Tensor) -> Tensor:
        """Embed (samples,) at 16 kHz as (embedding,) of length one."""
        start, end = sound_span(wav16k.cpu().numpy())
        mel = self.mel(wav16k[None, start:end]).squeeze(0)  # (frames, bands)
        return F.normalize(self(self.windows(mel)).mean(0), dim=-1)

    def windows(self, mel: Tensor) -> Tensor:
        """Cut (frames, bands) into overlapping (windows, window_frames, bands), zero-padded at the end."""
        size, step = self.config.window_frames, self.config.step_frames
        count, rest = divmod(max(mel.shape[0] - size + step, 0), step)
        if count == 0 or (rest + size - step) / size >= self.config.min_coverage:
            count += 1
        frames = size + step * (count - 1)
        mel = F.pad(mel[:frames], (0, 0, 0, max(0, frames - mel.shape[0])))
        return mel.unfold(0, size, step).transpose(1, 2)
