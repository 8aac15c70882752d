"""A streamed vocoder in CUDA graphs: each block is rendered in a window that includes the frames before it.

The reference (models/chatterbox/hift/hift_stream.py) keeps what every layer needs of its past, for blocks of
any length. A graph has fixed shapes, and a GPU renders some frames again faster than it manages such a state:
so a window begins as far back as the receptive field reaches, and its harmonics continue from known cycles.
The frames after a block, which are not known yet, repeat its last one, as in backends/torch/sample_stream.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.backends.cuda.graphs import copy_async
from nightingale.backends.cuda.vocoder.bucketed_vocoder import BucketedVocoder
from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.hift.receptive_field import mel_span, source_span
from nightingale.models.layers.conv import PaddedConv1d


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The start of an utterance's next window. It is never written to."""

    first: int
    """The number of the first frame in `mel`."""
    known: int
    """The number of frames that have arrived."""
    mel: Tensor | None = None
    """(bands, known - first)."""
    cycles: Tensor | None = None
    """(harmonics, 1), before frame `first` + `anchor`."""
    anchor: int = 0


EMPTY_WINDOW = Window(first=0, known=0)


def context_frames(hift: Hift) -> tuple[int, int]:
    """Return how many frames before a frame affect its samples, and how many affect its f0."""
    f0 = sum(layer.left for layer in hift.f0_predictor.condnet if isinstance(layer, PaddedConv1d))
    last = max(mel_span(hift)[1], f0 * CLOCKS.samples_per_frame + source_span(hift)[1])
    return last // CLOCKS.samples_per_frame + 1, f0


class VocoderWindows:
    """Windows of several utterances at a time.

    Args:
        vocoder: Renders the windows.
        hold_frames: The last frames that arrived are not emitted yet.
        extrapolated_frames: Frames that stand for those to come.
    """

    def __init__(self, vocoder: BucketedVocoder, *, hold_frames: int, extrapolated_frames: int) -> None:
        self.vocoder = vocoder
        self._hold, self.extrapolated = hold_frames, extrapolated_frames
        self._context, self._f0_context = context_frames(vocoder.hift)

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
        """Return samples (batch, longest), from each window's first frame on, and the next windows.

        mels: (bands, frames) that are new, at least one; final: no frames follow; key: (batch,), of the
        noise; phase: (batch, harmonics, 1). The samples live until the next call.
        """
        device, dtype = self.vocoder.device, self.vocoder.dtype
        rows, known = [], []
        for window, mel, last in zip(windows, mels, final, strict=True):
            parts = [mel.to(dtype)] if window.mel is None else [window.mel, mel.to(dtype)]
            known.append(torch.cat(parts, dim=1))
            held = [] if last else [mel[:, -1:].to(dtype).expand(-1, self.extrapolated)]
            rows.append(torch.cat([known[-1], *held], dim=1))
        longest = max(row.shape[1] for row in rows)
        zero = torch.zeros(self.vocoder.hift.config.harmonics, 1, dtype=torch.float64, device=device)
        numbers = torch.tensor(
            [[row.shape[1], w.first, w.anchor] for row, w in zip(rows, windows, strict=True)]
        )
        frames, first_frame, anchor = copy_async(numbers, device).unbind(1)
        samples, cycles = self.vocoder(
            torch.stack([F.pad(row, (0, longest - row.shape[1])) for row in rows]),
            frames,
            key=key,
            phase=phase,
            first_frame=first_frame,
            cycles=torch.stack([zero if w.cycles is None else w.cycles for w in windows]),
            anchor=anchor,
        )
        return samples, [self._next(*each) for each in zip(windows, known, cycles, strict=True)]

    def _next(self, window: Window, mel: Tensor, cycles: Tensor) -> Window:
        """Return the next window. mel: (bands, frames); cycles: (harmonics, frames), after each frame."""
        known = window.first + mel.shape[1]
        first = max(0, known - self._hold - self._context)
        if first == 0:
            return Window(first=0, known=known, mel=mel)
        before = first + self._f0_context - 1 - window.first
        return Window(
            first=first,
            known=known,
            mel=mel[:, first - window.first :].clone(),
            cycles=cycles[:, before : before + 1].clone(),
            anchor=self._f0_context,
        )
