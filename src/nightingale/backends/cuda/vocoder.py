"""HiFT as a graph: mel in a bucket of frames, several utterances of different lengths, no word to the host.

Two things keep the plain network (models/chatterbox/hift) from being recorded. Its inverse STFT looks at a
value on the host; so the two transforms of 16 samples are matrix products here. And it pads with zeros at the
end of the utterance, at every layer; so in a bucket that is longer, whatever lies beyond the end is set to
zero before every layer that would see it. What comes out is the plain network's, to rounding.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.backends.cuda.graphs import GraphReport, How, Replay, bucket_for, how_on
from nightingale.backends.cuda.random import normal
from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.config import ISTFT_HOP, ISTFT_SIZE, NOISY_HARMONICS
from nightingale.models.chatterbox.hift.generator import BINS, MAGNITUDE_LIMIT, SAMPLE_LIMIT, Hift
from nightingale.models.layers.conv import UpsamplingConv1d

HALF = ISTFT_SIZE // 2
COLUMNS = CLOCKS.samples_per_frame // ISTFT_HOP
"""Of the transform, to each mel frame; there is one more at the end."""


class Vocoder:
    """Mel to samples by graphs, one for each bucket of (utterances, frames)."""

    @torch.no_grad()
    def __init__(
        self,
        hift: Hift,
        *,
        batches: tuple[int, ...] = (1, 2, 4, 8, 16),
        frames: tuple[int, ...] = (64, 128, 256, 512, 1024),
        how: How | None = None,
    ) -> None:
        self.hift, self.batches, self.frames = hift, batches, frames
        weight = hift.conv_pre.weight
        self.device, self.dtype = weight.device, weight.dtype
        self.how: How = how or how_on(self.device)
        self._analysis, self._synthesis = (m.to(self.device, self.dtype) for m in _bases(hift.window.cpu()))
        self._graphs: dict[tuple[int, int], Replay[tuple[Tensor, Tensor]]] = {}
        self._pool: Any = torch.cuda.graph_pool_handle() if self.how == "graph" else None

    @property
    def reports(self) -> list[GraphReport]:
        return [graph.report for graph in self._graphs.values()]

    @torch.inference_mode()
    def __call__(
        self,
        mel: Tensor,
        frames: Tensor,
        *,
        key: Tensor,
        phase: Tensor,
        first_frame: Tensor | None = None,
        cycles: Tensor | None = None,
        anchor: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Samples (batch, 480 · frames) and, at the end of each frame, the cycles turned.

        mel: (batch, bands, frames); frames: (batch,), how many of them are real; key: (batch,), of the
        noise; phase: (batch, harmonics, 1) radians; first_frame: (batch,), the number of the mel's first
        frame in its utterance, by which the noise is addressed; cycles: (batch, harmonics, 1), turned before
        frame `anchor` (batch,) of this mel: the pitch of the frames before that one is not trusted, because
        what it depends on is cut off. The cycles given back are (batch, harmonics, frames). Both live until
        the next call.
        """
        batch = bucket_for(len(mel), self.batches, what="utterances")
        bucket = bucket_for(mel.shape[2], self.frames, what="mel frames")
        if first_frame is None:
            first_frame = frames.new_zeros(len(frames))
        if cycles is None:
            cycles = torch.zeros(phase.shape, dtype=torch.float64, device=self.device)
        if anchor is None:
            anchor = torch.zeros_like(first_frame)
        more = batch - len(mel)
        samples, turned = self._graph(batch, bucket)(
            mel=F.pad(mel.to(self.dtype), (0, bucket - mel.shape[2], 0, 0, 0, more)),
            frames=F.pad(frames, (0, more)),
            key=F.pad(key, (0, more)),
            first_frame=F.pad(first_frame, (0, more)),
            phase=F.pad(phase, (0, 0, 0, 0, 0, more)),
            cycles=F.pad(cycles, (0, 0, 0, 0, 0, more)),
            anchor=F.pad(anchor, (0, more)),
        )
        wanted = mel.shape[2]
        return samples[: len(mel), : wanted * CLOCKS.samples_per_frame], turned[: len(mel), :, :wanted]

    def warm(self) -> None:
        """Record every bucket there is."""
        for batch in self.batches:
            for frames in self.frames:
                self._graph(batch, frames)

    def _graph(self, batch: int, frames: int) -> Replay[tuple[Tensor, Tensor]]:
        if (batch, frames) not in self._graphs:
            self._graphs[batch, frames] = Replay(
                f"HiFT, {batch} of {frames} frames",
                self.render,
                {
                    "mel": torch.zeros(batch, self.hift.config.mel_bands, frames, dtype=self.dtype),
                    "frames": torch.full((batch,), frames),
                    "key": torch.zeros(batch, dtype=torch.int64),
                    "first_frame": torch.zeros(batch, dtype=torch.int64),
                    "phase": torch.zeros(batch, self.hift.config.harmonics, 1),
                    "cycles": torch.zeros(batch, self.hift.config.harmonics, 1, dtype=torch.float64),
                    "anchor": torch.zeros(batch, dtype=torch.int64),
                },
                how=self.how,
                device=self.device,
                pool=self._pool,
            )
        return self._graphs[batch, frames]

    def render(
        self,
        mel: Tensor,
        frames: Tensor,
        key: Tensor,
        first_frame: Tensor,
        phase: Tensor,
        cycles: Tensor,
        anchor: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """What is recorded."""
        hift, bucket = self.hift, mel.shape[2]
        f0 = self._pitch(mel, frames)
        noise = source_noise(key, first_frame, bucket)
        turned = F.pad(_cycles(f0, hift.config.harmonics), (1, 0))  # before the first frame, and after each
        start = cycles - turned.gather(2, anchor[:, None, None].expand(-1, turned.shape[1], 1))
        source, _ = hift.m_source(f0, phase, noise, start)
        excitation = self._analyse(source[:, 0], frames)  # (batch, 18, 120 · frames + 1), zero beyond the end
        x = hift.conv_pre(_within(mel, frames))
        rate = 1
        for stage, up in enumerate(hift.ups):
            x = up(_within(F.leaky_relu(x, 0.1), frames * rate))
            assert isinstance(up, UpsamplingConv1d)
            rate *= up.stride[0]
            ends = frames * rate
            if stage == len(hift.ups) - 1:
                x, ends = F.pad(x, (1, 0), mode="reflect"), ends + 1
            source = _block(hift.source_resblocks[stage], hift.source_downs[stage](excitation), ends)
            x = x + source
            paths = [_block(block, x, ends) for block in hift.blocks_of(stage)]
            x = torch.stack(paths).sum(0) / len(paths)
        columns = hift.conv_post(_within(F.leaky_relu(x), ends))
        return self._synthesize(columns, frames), start + turned[..., 1:]

    def _pitch(self, mel: Tensor, frames: Tensor) -> Tensor:
        """f0 (batch, frames) in Hz; zero beyond the end, where nothing turns."""
        predictor = self.hift.f0_predictor
        for layer in predictor.condnet:
            mel = layer(_within(mel, frames) if isinstance(layer, nn.Conv1d) else mel)
        f0 = predictor.classifier(mel.transpose(1, 2)).squeeze(-1).abs()
        return _within(f0[:, None], frames)[:, 0]

    def _analyse(self, source: Tensor, frames: Tensor) -> Tensor:
        """The centred STFT, mirrored at both ends of the real samples."""
        total = source.shape[1]
        end = frames[:, None] * CLOCKS.samples_per_frame
        at = torch.arange(-HALF, total + HALF, device=source.device)[None].abs()
        at = torch.where(at >= end, 2 * (end - 1) - at, at).clamp(0, total - 1)
        windows = source.gather(1, at).unfold(1, ISTFT_SIZE, ISTFT_HOP)  # (batch, columns, 16)
        return _within((windows @ self._analysis).transpose(1, 2), frames * COLUMNS + 1)

    def _synthesize(self, x: Tensor, frames: Tensor) -> Tensor:
        magnitude = x[:, :BINS].exp().clamp(max=MAGNITUDE_LIMIT)
        phase = torch.sin(x[:, BINS:])
        spectrum = torch.cat([magnitude * torch.cos(phase), magnitude * torch.sin(phase)], dim=1)
        valid = frames * COLUMNS + 1
        columns = _within(spectrum, valid).transpose(1, 2) @ self._synthesis  # (batch, columns, 16)
        energy = self.hift.window.square().expand_as(columns)
        heard = _overlapped(columns)
        # The windows' energy is overlapped as the signal is, and divided out; beyond the end there is none.
        weight = _overlapped(_within(energy.transpose(1, 2), valid).transpose(1, 2)).clamp(min=1e-6)
        samples = (heard / weight)[:, HALF : HALF + (x.shape[2] - 1) * ISTFT_HOP]
        samples = samples.clamp(-SAMPLE_LIMIT, SAMPLE_LIMIT)
        return _within(samples[:, None], frames * CLOCKS.samples_per_frame)[:, 0]


def source_noise(key: Tensor, first_frame: Tensor, frames: int) -> Tensor:
    """The excitation's noise (batch, NOISY_HARMONICS, 480 · frames), a row of it to each sample."""
    samples = CLOCKS.samples_per_frame
    return normal(key, first_frame * samples, frames * samples, NOISY_HARMONICS)


def _cycles(f0_hz: Tensor, harmonics: int) -> Tensor:
    """Turned by each harmonic at the end of each frame, (batch, harmonics, frames), as `Source` adds up."""
    harmonic = torch.arange(1, harmonics + 1, device=f0_hz.device, dtype=f0_hz.dtype)[None, :, None]
    each = (f0_hz[:, None] * harmonic / CLOCKS.sample_rate_hz).double() * CLOCKS.samples_per_frame
    return each.cumsum(dim=-1)


def _block(block: Any, x: Tensor, ends: Tensor) -> Tensor:
    for snake1, conv1, snake2, conv2 in zip(
        block.activations1, block.convs1, block.activations2, block.convs2, strict=True
    ):
        x = x + conv2(_within(snake2(conv1(_within(snake1(x), ends))), ends))
    return x


def _within(x: Tensor, ends: Tensor) -> Tensor:
    """(batch, channels, time) with zeros from each row's end (batch,) on."""
    beyond = torch.arange(x.shape[2], device=x.device) >= ends[:, None, None]
    return x.masked_fill(beyond, 0.0)


def _overlapped(columns: Tensor) -> Tensor:
    """(batch, columns, 16), a hop of 4 apart, added up: (batch, 4 · (columns + 3))."""
    parts = columns.view(*columns.shape[:2], -1, ISTFT_HOP).unbind(2)
    last = len(parts) - 1
    shifted = [F.pad(part, (0, 0, shift, last - shift)) for shift, part in enumerate(parts)]
    return torch.stack(shifted).sum(0).flatten(1)


def _bases(window: Tensor) -> tuple[Tensor, Tensor]:
    """The windowed transform (16, 18) to real and imaginary parts, and (18, 16) back."""
    n = torch.arange(ISTFT_SIZE, dtype=torch.float64)[:, None]
    k = torch.arange(BINS, dtype=torch.float64)[None]
    angle = 2 * math.pi * n * k / ISTFT_SIZE
    wide = window.double()[:, None]
    there = torch.cat([angle.cos() * wide, -angle.sin() * wide], dim=1)
    # Bins between the ends stand for their mirrored twins too.
    twice = torch.full((BINS,), 2.0, dtype=torch.float64)
    twice[0] = twice[-1] = 1.0
    back = torch.cat([angle.cos() * twice, -angle.sin() * twice], dim=1).T / ISTFT_SIZE * wide.T
    return there, back
