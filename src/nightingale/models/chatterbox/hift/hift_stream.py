"""HiFT over a mel that arrives in blocks.

The arithmetic is that of generator.py and source.py. In addition, every layer keeps the few columns that its
next outputs depend on, so that a block costs its own frames only, and the joined blocks equal the whole
(tests/equivalence/test_vocoder_stream.py). This state is separate from the network, which holds weights only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.config import ISTFT_HOP, ISTFT_SIZE
from nightingale.models.chatterbox.hift.generator import (
    BINS,
    SAMPLE_LIMIT,
    Hift,
    ResBlock,
    Snake,
    to_spectrum,
)
from nightingale.models.layers.conv import UpsamplingConv1d, convolve, padding_of, transposed_convolve

HALF_WINDOW = ISTFT_SIZE // 2
Noise = Callable[[int, int], Tensor]
"""(start, count) -> standard normal rows (count, HARMONICS), addressed by absolute sample."""


class HiftStream:
    """The vocoder state of one utterance. Tensors inside are (1, channels, columns).

    In the final block a layer pads its right edge as it does when it renders the whole. A layer may overwrite
    the output of the previous one; what is kept is a copy. `phase` is (1, harmonics, 1), in radians.
    """

    def __init__(self, hift: Hift, *, phase: Tensor, noise: Noise) -> None:
        self._hift, self._phase, self._noise = hift, phase, noise
        self._kept: dict[str, Tensor] = {}
        self._cycles: Tensor | None = None
        self._source_samples = 0

    def fork(self) -> HiftStream:
        """Return an independent stream that continues from here. Kept tensors are shared."""
        other = copy.copy(self)
        other._kept = dict(self._kept)
        return other

    def push(self, mel: Tensor, *, final: bool) -> Tensor:
        """Return the samples (n,) after (1, mel, frames) that no later frame can change."""
        return self._synthesize(mel, self._source_features(mel, final), final)

    def _source_features(self, mel: Tensor, final: bool) -> list[Tensor]:
        """Return the input of each stage from the excitation."""
        hift = self._hift
        excitation = self._stft(self._excitation(self._f0(mel, final)), final)
        features = []
        for stage, (down, block) in enumerate(zip(hift.source_downs, hift.source_resblocks, strict=True)):
            source = self._conv(f"down{stage}", down, excitation, final)
            features.append(self._block(f"source{stage}", block, source, final))
        return features

    def _synthesize(self, mel: Tensor, sources: Sequence[Tensor], final: bool) -> Tensor:
        hift = self._hift
        x = self._conv("pre", hift.conv_pre, mel, final)
        last = len(hift.ups) - 1
        for stage, (up, source) in enumerate(zip(hift.ups, sources, strict=True)):
            x = self._upsample(f"up{stage}", up, F.leaky_relu_(x, 0.1), final)
            if stage == last:
                x = self._reflect_start(x)
            x = self._sum(f"join{stage}", [x, source])
            blocks = enumerate(hift.blocks_of(stage))
            paths = [self._block(f"block{stage}.{i}", block, x, final) for i, block in blocks]
            x = self._sum(f"mean{stage}", paths).div_(len(paths))
        return self._istft(self._conv("post", hift.conv_post, F.leaky_relu_(x), final), final)

    def _f0(self, mel: Tensor, final: bool) -> Tensor:
        """Return f0 of the frames that no later frame can change: (1, frames), in Hz."""
        predictor = self._hift.f0_predictor
        for i, layer in enumerate(predictor.condnet):
            mel = self._conv(f"f0.{i}", layer, mel, final) if isinstance(layer, nn.Conv1d) else layer(mel)
        return predictor.classifier(mel.transpose(1, 2)).squeeze(-1).abs()

    def _excitation(self, f0_hz: Tensor) -> Tensor:
        """Return the excitation of the next frames: (1, samples)."""
        count = f0_hz.shape[1] * CLOCKS.samples_per_frame
        if not count:
            return f0_hz
        noise = self._noise(self._source_samples, count).T[None]
        source, self._cycles = self._hift.m_source(f0_hz, self._phase, noise, self._cycles)
        self._source_samples += count
        return source[0]

    def _stft(self, source: Tensor, final: bool) -> Tensor:
        """Return the excitation's spectrum (1, 18, columns); a column is 4 samples and looks 8 ahead."""
        if not source.shape[1] and "stft" not in self._kept:
            return source.new_empty(1, 2 * BINS, 0)
        kept = self._kept.get("stft")
        # The whole is reflected at its two ends. A block is at least a frame long, so it can be too.
        pad = partial(F.pad, mode="reflect")
        source = pad(source, (HALF_WINDOW, 0)) if kept is None else torch.cat([kept, source], dim=1)
        source = pad(source, (0, HALF_WINDOW)) if final else source
        columns = (source.shape[1] - ISTFT_SIZE) // ISTFT_HOP + 1
        self._kept["stft"] = source[:, columns * ISTFT_HOP :].clone()
        if not columns:
            return source.new_empty(1, 2 * BINS, 0)
        window = self._hift.window
        spectrum = torch.stft(source, ISTFT_SIZE, ISTFT_HOP, window=window, center=False, return_complex=True)
        return torch.cat([spectrum.real, spectrum.imag], dim=1)

    def _istft(self, x: Tensor, final: bool) -> Tensor:
        window = self._hift.window[None, :, None]
        columns = x.new_empty(1, ISTFT_SIZE, 0)
        if x.shape[2]:  # CUDA has no transform of an empty tensor
            columns = torch.fft.irfft(to_spectrum(x), n=ISTFT_SIZE, dim=1) * window
        # The windows' energy is overlap-added like the signal, and divided out.
        both = torch.cat([columns, window.square().expand_as(columns)])
        place = torch.eye(ISTFT_SIZE, device=x.device, dtype=x.dtype).t()[:, None]  # stored tap by tap
        tail = ISTFT_SIZE - ISTFT_HOP - HALF_WINDOW
        both = self._overlap_add("istft", both, place, ISTFT_HOP, head=HALF_WINDOW, tail=tail if final else 0)
        return (both[0, 0] / both[1, 0]).clamp(-SAMPLE_LIMIT, SAMPLE_LIMIT)

    def _conv(
        self, name: str, layer: nn.Module, x: Tensor, final: bool, snake: nn.Module | None = None
    ) -> Tensor:
        """Apply `snake`, if given, and a convolution."""
        assert isinstance(layer, nn.Conv1d)
        left, right = padding_of(layer)
        x = self._with_context(name, x, left, right if final else 0, snake)
        span, stride = (layer.kernel_size[0] - 1) * layer.dilation[0] + 1, layer.stride[0]
        columns = max(0, (x.shape[-1] - span) // stride + 1)
        self._kept[name] = x[..., columns * stride :].clone()
        if not columns:
            return x.new_empty(1, layer.out_channels, 0)
        return convolve(layer, x)

    def _with_context(self, name: str, x: Tensor, left: int, right: int, snake: nn.Module | None) -> Tensor:
        """Return x after its kept columns (`left` zeros at the start) and before `right` zeros."""
        kept = self._kept.get(name)
        past = left if kept is None else kept.shape[-1]
        joined = x.new_empty(*x.shape[:2], past + x.shape[-1] + right)
        joined[..., :past] = 0 if kept is None else kept
        joined[..., past + x.shape[-1] :] = 0
        now = joined[..., past : past + x.shape[-1]]
        if isinstance(snake, Snake):
            snake.write(x, now)
        else:
            now.copy_(x)
        return joined

    def _block(self, name: str, block: nn.Module, x: Tensor, final: bool) -> Tensor:
        assert isinstance(block, ResBlock)
        layers = zip(block.activations1, block.convs1, block.activations2, block.convs2, strict=True)
        for i, (snake1, conv1, snake2, conv2) in enumerate(layers):
            hidden = self._conv(f"{name}.{i}.conv1", conv1, x, final, snake1)
            x = self._sum(f"{name}.{i}", [x, self._conv(f"{name}.{i}.conv2", conv2, hidden, final, snake2)])
        return x

    def _upsample(self, name: str, layer: nn.Module, x: Tensor, final: bool) -> Tensor:
        assert isinstance(layer, UpsamplingConv1d)
        assert layer.bias is not None
        head, stride = int(layer.padding[0]), layer.stride[0]
        y = self._overlap_add(name, x, layer.weight, stride, head=head, tail=head if final else 0)
        return y.add_(layer.bias[:, None])

    def _overlap_add(
        self, name: str, x: Tensor, weight: Tensor, stride: int, *, head: int, tail: int
    ) -> Tensor:
        """Apply a transposed convolution; keep what overlaps later columns.

        Drop the first `head` outputs of the stream, and return `tail` outputs beyond the last column.
        """
        outputs, kernel = weight.shape[1:]
        kept, done = self._kept.get(name), x.shape[-1] * stride
        kept = x.new_zeros(x.shape[0], outputs, kernel - stride) if kept is None else kept
        y = kept
        if done:
            y = transposed_convolve(x, weight, stride)
            y[..., : kernel - stride] += kept
        self._kept[name] = y[..., done:].clone()
        return self._drop_head(name, y[..., : done + tail], head)

    def _drop_head(self, name: str, x: Tensor, head: int) -> Tensor:
        """Return x without the first `head` columns of the stream."""
        before = self._kept.get(f"{name}.dropped")
        dropped = 0 if before is None else before.shape[-1]
        now = min(head - dropped, x.shape[-1])
        self._kept[f"{name}.dropped"] = x.new_empty(dropped + now)
        return x[..., now:]

    def _reflect_start(self, x: Tensor) -> Tensor:
        """Put a copy of the stream's second column before it: a centred STFT has one more frame than hops."""
        if "reflected" in self._kept:
            return x
        held = self._kept.pop("reflect", None)
        x = x if held is None else torch.cat([held, x], dim=-1)
        if x.shape[-1] < 2:
            self._kept["reflect"] = x
            return x[..., :0]
        self._kept["reflected"] = x.new_empty(0)
        return torch.cat([x[..., 1:2], x], dim=-1)

    def _sum(self, name: str, terms: Sequence[Tensor]) -> Tensor:
        """Add terms as far as all go and keep the rest of the longer ones; overwrite all but the first."""
        kept = [self._kept.get(f"{name}+{i}") for i in range(len(terms))]
        terms = [
            term if rest is None else torch.cat([rest, term], dim=-1)
            for rest, term in zip(kept, terms, strict=True)
        ]
        columns = min(term.shape[-1] for term in terms)
        for i, term in enumerate(terms):
            if columns < term.shape[-1]:
                self._kept[f"{name}+{i}"] = term[..., columns:].clone()
            else:
                self._kept.pop(f"{name}+{i}", None)
        total = terms[0][..., :columns]
        for term in terms[1:]:
            total = term[..., :columns].add_(total)
        return total
