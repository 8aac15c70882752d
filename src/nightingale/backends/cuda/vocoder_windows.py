"""A streamed vocoder by graphs: each push renders a window, the last frames before it included.

The plain stream (models/chatterbox/hift/hift_stream.py) keeps what every layer needs of its past, in pieces of any
length. A graph has fixed shapes, and a GPU renders some frames again sooner than it is told what to keep: so
a window begins as far back as the network hears, and its harmonics go on from cycles that are known there.
Frames to come are guessed by holding the last one, as backends/torch/sample_stream.py does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.backends.cuda.graphs import send
from nightingale.backends.cuda.vocoder import Vocoder
from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.hift.receptive_field import mel_span, source_span
from nightingale.models.layers.conv import PaddedConv1d


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Where an utterance stands: what the next window begins with. Never written to."""

    first: int
    """Number of the first frame in `mel`."""
    known: int
    """How many frames have come."""
    mel: Tensor | None = None
    """(bands, known - first)."""
    cycles: Tensor | None = None
    """(harmonics, 1): turned before frame `first` + `anchor`."""
    anchor: int = 0


NEW = Window(first=0, known=0)


def frames_behind(hift: Hift) -> tuple[int, int]:
    """So many frames before a frame change its samples; and so many its pitch."""
    pitch = sum(layer.left for layer in hift.f0_predictor.condnet if isinstance(layer, PaddedConv1d))
    last = max(mel_span(hift)[1], pitch * CLOCKS.samples_per_frame + source_span(hift)[1])
    return last // CLOCKS.samples_per_frame + 1, pitch


class Windows:
    """Windows of several utterances at a time."""

    def __init__(self, vocoder: Vocoder, *, hold_frames: int, guessed_frames: int) -> None:
        """hold_frames: the last ones that came are not given out yet; guessed_frames: so many stand for those
        to come."""
        self.vocoder = vocoder
        self._hold, self.guessed = hold_frames, guessed_frames
        self._behind, self._pitch = frames_behind(vocoder.hift)

    @torch.inference_mode()
    def push(
        self,
        windows: Sequence[Window],
        mels: Sequence[Tensor],
        final: Sequence[bool],
        *,
        key: Tensor,
        phase: Tensor,
    ) -> tuple[Tensor, list[Window]]:
        """Samples (batch, most), each row's from the first of its window's first frame on, and what follows.

        mels: (bands, frames) that are new, one at least; final: nothing follows; key: (batch,), phase:
        (batch, harmonics, 1). The samples live until the next call.
        """
        device, dtype = self.vocoder.device, self.vocoder.dtype
        rows, starts = [], []
        for window, mel, ends in zip(windows, mels, final, strict=True):
            parts = [mel.to(dtype)] if window.mel is None else [window.mel, mel.to(dtype)]
            starts.append(torch.cat(parts, dim=1))
            held = [] if ends else [mel[:, -1:].to(dtype).expand(-1, self.guessed)]
            rows.append(torch.cat([starts[-1], *held], dim=1))
        longest = max(row.shape[1] for row in rows)
        none = torch.zeros(self.vocoder.hift.config.harmonics, 1, dtype=torch.float64, device=device)
        numbers = send(
            torch.tensor([[row.shape[1], w.first, w.anchor] for row, w in zip(rows, windows, strict=True)]),
            device,
        )
        samples, turned = self.vocoder(
            torch.stack([F.pad(row, (0, longest - row.shape[1])) for row in rows]),
            numbers[:, 0],
            key=key,
            phase=phase,
            first_frame=numbers[:, 1],
            cycles=torch.stack([none if w.cycles is None else w.cycles for w in windows]),
            anchor=numbers[:, 2],
        )
        following = [
            self._after(window, mel, cycles)
            for window, mel, cycles in zip(windows, starts, turned, strict=True)
        ]
        return samples, following

    def _after(self, window: Window, mel: Tensor, turned: Tensor) -> Window:
        """mel: (bands, frames) from the window's first on; turned: (harmonics, frames), after each."""
        known = window.first + mel.shape[1]
        first = max(0, known - self._hold - self._behind)
        if first == 0:
            return Window(first=0, known=known, mel=mel)
        before = first + self._pitch - 1 - window.first
        return Window(
            first=first,
            known=known,
            mel=mel[:, first - window.first :].clone(),
            cycles=turned[:, before : before + 1].clone(),
            anchor=self._pitch,
        )
