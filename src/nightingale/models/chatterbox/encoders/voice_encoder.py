"""Who is speaking, for T3: an LSTM over windows of mel power, averaged into one unit vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.audio.trim import sound_span
from nightingale.models.chatterbox.encoders.config import VoiceEncoderConfig
from nightingale.models.layers.mel import MelConfig, VoiceMel


class VoiceEncoder(nn.Module):
    def __init__(self, config: VoiceEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.mel = VoiceMel(
            MelConfig(sample_rate_hz=16_000, fft_samples=400, hop_samples=160, bands=config.mel_bands)
        )
        self.lstm = nn.LSTM(config.mel_bands, config.width, config.layers, batch_first=True)
        self.proj = nn.Linear(config.width, config.embedding)
        # Two numbers of the training loss that the official file holds; nothing reads them.
        self.similarity_weight = nn.Parameter(torch.tensor([10.0]))
        self.similarity_bias = nn.Parameter(torch.tensor([-5.0]))

    def forward(self, windows: Tensor) -> Tensor:
        """(windows, frames, bands) -> (windows, embedding), each of length one."""
        _, (hidden, _) = self.lstm(windows)
        return unit(F.relu(self.proj(hidden[-1])))

    @torch.no_grad()
    def embed(self, wav16k: Tensor) -> Tensor:
        """(samples,) at 16 kHz -> (embedding,) of length one."""
        start, end = sound_span(wav16k.cpu().numpy())
        mel = self.mel(wav16k[None, start:end]).squeeze(0)  # (frames, bands)
        return unit(self(self.windows(mel)).mean(0))

    def windows(self, mel: Tensor) -> Tensor:
        """(frames, bands) -> (windows, window_frames, bands), overlapping; zeros after the end."""
        size, step = self.config.window_frames, self.config.step_frames
        count, rest = divmod(max(mel.shape[0] - size + step, 0), step)
        if count == 0 or (rest + size - step) / size >= self.config.min_coverage:
            count += 1
        frames = size + step * (count - 1)
        mel = F.pad(mel[:frames], (0, 0, 0, max(0, frames - mel.shape[0])))
        return mel.unfold(0, size, step).transpose(1, 2)


def unit(vectors: Tensor) -> Tensor:
    """Each row scaled to length one. A row of zeros stays zero instead of becoming NaN."""
    return F.normalize(vectors, dim=-1)
