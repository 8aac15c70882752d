"""A corpus: the audio bank and what is known of each clip, as flat arrays in a folder.

    audio, offsets, f0_hz, frame_offsets   the AudioBank
    phones                                 one phoneme id per 50 Hz frame (the teacher's own alignment)
    text_ids, text_offsets                 wren's text ids per clip
    voice                                  which of the teacher's voices, per clip
    speaker                                (clips, 256) the speaker vector, float16
    tokens                                 one speech id per 25 Hz step, added by the tokenizer stage

Every clip is a whole number of tokens long, so all clocks agree. Everything lies on the GPU during training,
and batches are cut out by arithmetic: no loader, no host in the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.clocks import CLOCKS
from nightingale.train.bank import FULL_SCALE, AudioBank

LABELS = {
    "phones": np.uint8,
    "text_ids": np.int16,
    "text_offsets": np.int64,
    "voice": np.int16,
    "speaker": np.float16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Arrays on the host; see the module's docstring."""

    bank: AudioBank
    phones: NDArray[np.uint8]
    text_ids: NDArray[np.int16]
    text_offsets: NDArray[np.int64]
    voice: NDArray[np.int16]
    speaker: NDArray[np.float16]

    @property
    def token_offsets(self) -> NDArray[np.int64]:
        return self.bank.frame_offsets // CLOCKS.frames_per_token

    def save(self, folder: Path) -> None:
        self.bank.save(folder)
        for name in LABELS:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: Path) -> Corpus:
        return cls(bank=AudioBank.load(folder), **{name: np.load(folder / f"{name}.npy") for name in LABELS})


class Windows:
    """Random windows of fixed length, one per drawn clip, starting on a token; short clips are padded.

    Shapes are fixed and nothing synchronises with the host, so a CUDA graph can hold the drawing too.
    """

    def __init__(self, corpus: Corpus, device: torch.device, *, tokens: int) -> None:
        offsets = torch.from_numpy(corpus.token_offsets).to(device)
        self.first, self.count = offsets[:-1], offsets.diff()
        self.voice = torch.from_numpy(corpus.voice.astype(np.int64)).to(device)
        self.speaker = torch.from_numpy(corpus.speaker).to(device)
        self.tokens = tokens
        self.device = device
        # A long clip has more windows, so it is drawn more often.
        self.ends = self.count.clamp(min=tokens // 2).cumsum(0)

    def draw(self, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Clips (batch,), the first token of each window (batch,), and how many tokens are real (batch,)."""
        place = (torch.rand(batch, device=self.device, dtype=torch.float64) * self.ends[-1]).long()
        clip = torch.searchsorted(self.ends, place, right=True)
        count = self.count[clip]
        start = (torch.rand(batch, device=self.device) * ((count - self.tokens).clamp(min=0) + 1)).long()
        return clip, self.first[clip] + start, (count - start).clamp(max=self.tokens)

    def gather(self, flat: Tensor, start: Tensor, real: Tensor, *, per_token: int) -> Tensor:
        """A flat array's entries of each window: (batch, tokens·per_token, …), zero after the clip's end."""
        steps = torch.arange(self.tokens * per_token, device=self.device)
        inside = steps[None] < real[:, None] * per_token
        index = (start[:, None] * per_token + steps).clamp(max=len(flat) - 1)
        values = flat[index]
        return values * inside.view(*inside.shape, *[1] * (values.dim() - 2)).to(values.dtype)


def audio_of(windows: Windows, audio: Tensor, start: Tensor, real: Tensor) -> Tensor:
    """(batch, samples) in [-1, 1)."""
    return windows.gather(audio, start, real, per_token=CLOCKS.samples_per_token).float() / FULL_SCALE
