"""HiFT in CUDA graphs: a bucket of frames, several utterances of different lengths, nothing read by the host.

Two things keep the reference (models/chatterbox/hift) from being captured. Its inverse STFT reads a value on
the host; here both transforms of 16 samples are matrix products. And it pads with zeros at the end of the
utterance, in every layer; here, in a bucket that is longer, everything beyond the end is set to zero before
every layer that would see it. The samples are those of the reference, to rounding.

A streamed block is rendered in a window that includes the frames before it. The reference keeps what every
layer needs of its past, for blocks of any length. A graph has fixed shapes, and a GPU renders some frames
again faster than it manages such a state: so a window begins as far back as the receptive field reaches, and
its harmonics continue from known cycles. The frames after a block, which are not known yet, repeat its last
one, as in backends/torch/sample_stream.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.audio.crossfade import HOLD_FRAMES
from nightingale.backends.cuda.graphs import GraphCache, GraphedFunction, bucket_for, copy_async
from nightingale.backends.cuda.random import normal
from nightingale.backends.cuda.triton_support import KernelChoice, TritonKernels
from nightingale.backends.torch.sample_stream import extrapolated_frames
from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.config import HARMONICS, ISTFT_HOP, ISTFT_SIZE
from nightingale.models.chatterbox.hift.generator import BINS, MAGNITUDE_LIMIT, SAMPLE_LIMIT, Hift
from nightingale.models.chatterbox.hift.receptive_field import mel_span, source_span
from nightingale.models.layers.conv import PaddedConv1d, UpsamplingConv1d

HALF = ISTFT_SIZE // 2
COLUMNS = CLOCKS.samples_per_frame // ISTFT_HOP
"""STFT columns per mel frame; there is one more at the end."""
BATCHES = (1, 4, 16)
FRAMES = tuple(2**n * quarter // 4 for n in range(5, 12) for quarter in range(4, 8))
"""Buckets: four in each octave from 32 frames on."""
LARGEST_ERROR = 1e-4
"""The energy of the kernels' error over the signal's, at most. With TF32 it is 1e-6."""
MAX_FRAMES = 8192
"""Frames of all windows of a batch: beyond that it is not faster, and takes gigabytes."""


class BucketedVocoder:
    """HiFT with one graph for each bucket of (utterances, frames).

    kernels: "auto" is Triton on a GPU, if the weights are in float32; precision: bfloat16 lets these kernels keep
    values in 16 bits. They are float16: with bfloat16 the samples' error would be 20 dB higher, with float32 and
    TF32 products it is the same (dev/log-archive.md).
    """

    @torch.no_grad()
    def __init__(
        self,
        hift: Hift,
        *,
        batches: tuple[int, ...] = BATCHES,
        frames: tuple[int, ...] = FRAMES,
        kernels: KernelChoice = "auto",
        precision: torch.dtype | None = None,
    ) -> None:
        self.hift, self.batches, self.frames = hift, batches, frames
        weight = hift.conv_pre.weight
        self.device, self.dtype = weight.device, weight.dtype
        self._analysis, self._synthesis = (m.to(self.device, self.dtype) for m in _dft(hift.window.cpu()))
        self._graphs: GraphCache[tuple[Tensor, Tensor]] = GraphCache(self.device)

        def load() -> Any:
            from nightingale.backends.cuda.hift.packed_hift import PackedHift

            return PackedHift(hift, torch.float16 if precision == torch.bfloat16 else torch.float32)

        default = self.device.type == "cuda" and self.dtype == torch.float32
        self.kernels = TritonKernels[Any](kernels, load, part="the vocoder", default=default)

    @torch.inference_mode()
    def __call__(self, mel: Tensor, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return samples (batch, 480 · frames) and cycles (batch, harmonics, frames) after each frame.

        Both are valid until the next call. mel: (batch, bands, frames); inputs: the others of `render`.
        """
        count, wanted = len(mel), mel.shape[2]
        batch = bucket_for(count, self.batches, what="utterances")
        bucket = bucket_for(wanted, self.frames, what="mel frames")
        padded = F.pad(mel.to(self.dtype), (0, bucket - wanted))
        inputs["frames"] = F.pad(inputs["frames"], (0, batch - count))  # the kernels skip rows without frames
        samples, after = self._graph(batch, bucket)(mel=padded, **inputs)
        return samples[:count, : wanted * CLOCKS.samples_per_frame], after[:count, :, :wanted]

    def _graph(self, batch: int, frames: int) -> GraphedFunction[tuple[Tensor, Tensor]]:
        if (batch, frames) not in self._graphs:
            config = self.hift.config
            inputs = {
                "mel": torch.zeros(batch, config.mel_bands, frames, dtype=self.dtype),
                "frames": torch.full((batch,), frames),
                "key": torch.zeros(batch, dtype=torch.int64),
                "first_frame": torch.zeros(batch, dtype=torch.int64),
                "phase": torch.zeros(batch, HARMONICS, 1),
                "cycles": torch.zeros(batch, HARMONICS, 1, dtype=torch.float64),
                "anchor": torch.zeros(batch, dtype=torch.int64),
            }
            name = f"HiFT, {batch} of {frames} frames"

            def capture() -> None:
                self._compile(batch, frames)
                self._graphs.capture((batch, frames), name, self.render, inputs)

            self.kernels.retry(capture)
        return self._graphs[batch, frames]

    def _compile(self, batch: int, frames: int) -> None:
        if self.kernels.loaded is not None:
            self.kernels.loaded.compile(batch, frames)

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
        """Render a bucket: the function that is captured.

        Args:
            mel: (batch, bands, frames).
            frames: The number of real frames, (batch,) like the next two.
            key: The key of the noise.
            first_frame: The number of the first frame in its utterance, for the noise.
            phase: (batch, harmonics, 1) radians, at the start of the utterance.
            cycles: (batch, harmonics, 1), before frame `anchor` of this mel.
            anchor: (batch,); the f0 of earlier frames is not used, because its own context is cut off.
        """
        hift, bucket = self.hift, mel.shape[2]
        f0 = self._f0(mel, frames)
        noise = source_noise(key, first_frame, bucket)
        turned = F.pad(_cycles(f0), (1, 0))  # before the first frame, and after each
        start = cycles - turned.gather(2, anchor[:, None, None].expand(-1, turned.shape[1], 1))
        source, _ = hift.m_source(f0, phase, noise, start)
        spectrum = self._stft(source[:, 0], frames)  # (batch, 120 · frames + 1, 18)
        if self.kernels.loaded is not None:
            columns = self.kernels.loaded.columns(mel, spectrum, frames).transpose(1, 2)
        else:
            columns = self._columns(mel, spectrum, frames)
        return self._istft(columns, frames), start + turned[..., 1:]

    @torch.inference_mode()
    def check_kernels(self, frames: int) -> None:
        """Drop the kernels if they differ from library calls with these weights, as they would where 16 bits
        overflow. They are compiled for a window of so many frames."""
        count = bucket_for(frames, self.frames, what="mel frames")
        self.kernels.retry(partial(self._compile, self.batches[0], count))
        if self.kernels.loaded is None:
            return
        bands, lengths = self.hift.config.mel_bands, torch.tensor([count], device=self.device)
        sizes = (1, bands, count), (1, COLUMNS * count + 1, 2 * BINS)
        mel, spectrum = (torch.arange(math.prod(size), device=self.device).sin().view(size) for size in sizes)
        ours = self.kernels.loaded.columns(mel - 4.0, spectrum, lengths).transpose(1, 2).float()
        theirs = self._columns(mel - 4.0, spectrum, lengths)
        error = float((ours - theirs).square().sum() / theirs.square().sum())
        if not error < LARGEST_ERROR:
            self.kernels.drop(ArithmeticError(f"its kernels differ from library calls by {error:.1e}"))

    def _columns(self, mel: Tensor, spectrum: Tensor, frames: Tensor) -> Tensor:
        """Return the last layer's (batch, 18, columns) by library calls."""
        hift, rate = self.hift, 1
        excitation = _mask_end(spectrum.transpose(1, 2), frames * COLUMNS + 1)
        x = hift.conv_pre(_mask_end(mel, frames))
        for stage, up in enumerate(hift.ups):
            x = up(_mask_end(F.leaky_relu(x, 0.1), frames * rate))
            assert isinstance(up, UpsamplingConv1d)
            rate *= up.stride[0]
            ends = frames * rate
            if stage == len(hift.ups) - 1:
                x, ends = F.pad(x, (1, 0), mode="reflect"), ends + 1
            x = x + _resblock(hift.source_resblocks[stage], hift.source_downs[stage](excitation), ends)
            paths = [_resblock(block, x, ends) for block in hift.blocks_of(stage)]
            x = torch.stack(paths).sum(0) / len(paths)
        columns: Tensor = hift.conv_post(_mask_end(F.leaky_relu(x), ends))
        return columns

    def _f0(self, mel: Tensor, frames: Tensor) -> Tensor:
        """Return f0 (batch, frames) in Hz, zero beyond the end."""
        predictor = self.hift.f0_predictor
        for layer in predictor.condnet:
            mel = layer(_mask_end(mel, frames) if isinstance(layer, nn.Conv1d) else mel)
        f0 = predictor.classifier(mel.transpose(1, 2)).squeeze(-1).abs()
        return _mask_end(f0[:, None], frames)[:, 0]

    def _stft(self, source: Tensor, frames: Tensor) -> Tensor:
        """Return the centred STFT, reflected at both ends of the real samples; beyond them it is undefined."""
        total = source.shape[1]
        end = frames[:, None] * CLOCKS.samples_per_frame
        at = torch.arange(-HALF, total + HALF, device=source.device)[None].abs()
        at = torch.where(at >= end, 2 * (end - 1) - at, at).clamp(0, total - 1)
        windows = source.gather(1, at).unfold(1, ISTFT_SIZE, ISTFT_HOP)  # (batch, columns, 16)
        return windows @ self._analysis

    def _istft(self, x: Tensor, frames: Tensor) -> Tensor:
        magnitude = x[:, :BINS].exp().clamp(max=MAGNITUDE_LIMIT)
        phase = torch.sin(x[:, BINS:])
        spectrum = torch.cat([magnitude * torch.cos(phase), magnitude * torch.sin(phase)], dim=1)
        valid = frames * COLUMNS + 1
        columns = _mask_end(spectrum, valid).transpose(1, 2) @ self._synthesis  # (batch, columns, 16)
        energy = self.hift.window.square().expand_as(columns)
        # The windows' energy is overlapped as the signal is, and divided out; beyond the end there is none.
        weight = _overlap_add(_mask_end(energy.transpose(1, 2), valid).transpose(1, 2)).clamp(min=1e-6)
        samples = (_overlap_add(columns) / weight)[:, HALF : HALF + (x.shape[2] - 1) * ISTFT_HOP]
        samples = samples.clamp(-SAMPLE_LIMIT, SAMPLE_LIMIT)
        return _mask_end(samples[:, None], frames * CLOCKS.samples_per_frame)[:, 0]


def source_noise(key: Tensor, first_frame: Tensor, frames: int) -> Tensor:
    """Return the noise of the excitation, (batch, HARMONICS, 480 · frames), by sample number."""
    samples = CLOCKS.samples_per_frame
    return normal(key, first_frame * samples, frames * samples, HARMONICS)


def _cycles(f0_hz: Tensor) -> Tensor:
    """Return each harmonic's cycles after each frame, (batch, harmonics, frames), as in `Source`."""
    harmonic = torch.arange(1, HARMONICS + 1, device=f0_hz.device, dtype=f0_hz.dtype)[None, :, None]
    each = (f0_hz[:, None] * harmonic / CLOCKS.sample_rate_hz).double() * CLOCKS.samples_per_frame
    return each.cumsum(dim=-1)


def _resblock(block: Any, x: Tensor, ends: Tensor) -> Tensor:
    for snake1, conv1, snake2, conv2 in zip(
        block.activations1, block.convs1, block.activations2, block.convs2, strict=True
    ):
        x = x + conv2(_mask_end(snake2(conv1(_mask_end(snake1(x), ends))), ends))
    return x


def _mask_end(x: Tensor, ends: Tensor) -> Tensor:
    """Return x (batch, channels, time) with zeros from each row's end (batch,) on."""
    beyond = torch.arange(x.shape[2], device=x.device) >= ends[:, None, None]
    return x.masked_fill(beyond, 0.0)


def _overlap_add(columns: Tensor) -> Tensor:
    """Add (batch, columns, 16) with a hop of 4: (batch, 4 · (columns + 3))."""
    parts = columns.view(*columns.shape[:2], -1, ISTFT_HOP).unbind(2)
    last = len(parts) - 1
    shifted = [F.pad(part, (0, 0, shift, last - shift)) for shift, part in enumerate(parts)]
    return torch.stack(shifted).sum(0).flatten(1)


def _dft(window: Tensor) -> tuple[Tensor, Tensor]:
    """Return the windowed DFT as a matrix (16, 18), to real and imaginary parts, and its inverse (18, 16)."""
    n = torch.arange(ISTFT_SIZE, dtype=torch.float64)[:, None]
    k = torch.arange(BINS, dtype=torch.float64)[None]
    angle = 2 * math.pi * n * k / ISTFT_SIZE
    wide = window.double()[:, None]
    forward = torch.cat([angle.cos() * wide, -angle.sin() * wide], dim=1)
    # The bins between the first and the last stand for their conjugates too.
    twice = torch.full((BINS,), 2.0, dtype=torch.float64)
    twice[0] = twice[-1] = 1.0
    inverse = torch.cat([angle.cos() * twice, -angle.sin() * twice], dim=1).T / ISTFT_SIZE * wide.T
    return forward, inverse


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

    The last HOLD_FRAMES that arrived are not emitted yet, and `extrapolated` frames stand for those to come.
    """

    def __init__(self, vocoder: BucketedVocoder) -> None:
        self.vocoder, self.extrapolated = vocoder, extrapolated_frames(vocoder.hift)
        self._context, self._f0_context = context_frames(vocoder.hift)

    def batches(self, windows: Sequence[Window], mels: Sequence[Tensor]) -> list[list[int]]:
        """Return which windows to push together: those of about the same length, by their numbers."""
        groups: dict[int, list[int]] = {}
        for number, (window, mel) in enumerate(zip(windows, mels, strict=True)):
            frames = window.known - window.first + mel.shape[1] + self.extrapolated
            groups.setdefault(bucket_for(frames, self.vocoder.frames, what="mel frames"), []).append(number)
        batches = []
        for frames, group in groups.items():
            limit = max(size for size in self.vocoder.batches if size * frames <= MAX_FRAMES or size == 1)
            batches += [group[at : at + limit] for at in range(0, len(group), limit)]
        return batches

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
        known = [  # copies: the mel is a graph's buffer
            torch.cat([mel.to(dtype)] if w.mel is None else [w.mel, mel.to(dtype)], dim=1)
            for w, mel in zip(windows, mels, strict=True)
        ]
        rows = [
            mel if last else F.pad(mel, (0, self.extrapolated), mode="replicate")
            for mel, last in zip(known, final, strict=True)
        ]
        longest = max(row.shape[1] for row in rows)
        zero = torch.zeros(HARMONICS, 1, dtype=torch.float64, device=device)
        numbers = torch.tensor(
            [[row.shape[1], w.first, w.anchor] for row, w in zip(rows, windows, strict=True)]
        )
        frames, first_frame, anchor = copy_async(numbers, device).unbind(1)
        samples, cycles = self.vocoder(
            torch.stack([F.pad(row, (0, longest - row.shape[1])) for row in rows]),
            frames=frames,
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
        first = max(0, known - HOLD_FRAMES - self._context)
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
