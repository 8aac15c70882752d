"""Who is speaking, for T3: an LSTM over windows of mel power, averaged into one unit vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.layers.mel import MelConfig, VoiceMel
from nightingale.models.layers.stft import trim_silence


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceEncoderConfig:
    """Sizes of the voice encoder; the defaults are the official ones."""

    mel_bands: int = 40
    width: int = 256
    layers: int = 3
    embedding: int = 256
    window_frames: int = 160
    step_frames: int = 77
    """1.3 windows a second: round(16000 / 1.3 / 160)."""
    min_coverage: float = 0.8
    """A last, partly filled window counts if at least this much of it is sound."""


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
        mel = self.mel(trim_silence(wav16k).unsqueeze(0)).squeeze(0)  # (frames, bands)
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
