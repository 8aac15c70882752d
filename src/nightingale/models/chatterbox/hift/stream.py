"""HiFT over a mel that arrives in pieces.

The arithmetic is that of generator.py and f0.py. What is added is memory: every layer keeps the
few columns of its past that its next output depends on, so that a piece costs its own frames only, however
much was rendered before, and the pieces joined are the whole (tests/equivalence/test_vocoder_stream.py). The
memory is a value beside the network, which holds weights only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.config import ISTFT_HOP, ISTFT_SIZE
from nightingale.models.chatterbox.hift.generator import (
    BINS,
    MAGNITUDE_LIMIT,
    SAMPLE_LIMIT,
    Hift,
    ResBlock,
    Snake,
)
from nightingale.models.layers.conv import PaddedConv1d, UpsamplingConv1d, convolve, spread

HALF_WINDOW = ISTFT_SIZE // 2
Noise = Callable[[int, int], Tensor]
"""Standard normal rows by absolute sample: (start, count) -> (count, NOISY_HARMONICS)."""


class HiftStream:
    """One utterance on its way through Hift. Tensors inside are (1, channels, columns).

    `close` says that nothing follows: a layer then pads its right edge as it does when it renders the whole.
    What a layer has just made belongs to the next one, which may write over it; what is kept is a copy.
    """

    def __init__(self, hift: Hift, *, phase: Tensor, noise: Noise) -> None:
        """phase: (1, harmonics, 1) radians, where each harmonic starts."""
        self._hift, self._phase, self._noise = hift, phase, noise
        self._kept: dict[str, Tensor] = {}
        self._cycles: Tensor | None = None
        self.excited_samples = 0
        """How far the excitation is known: noise before it will not be read again."""

    def fork(self) -> HiftStream:
        """A stream that goes its own way from here. What is kept is never written to, so it is shared."""
        twin = HiftStream(self._hift, phase=self._phase, noise=self._noise)
        twin._kept, twin._cycles, twin.excited_samples = dict(self._kept), self._cycles, self.excited_samples
        return twin

    @property
    def kept_values(self) -> int:
        """The size of the memory, in numbers."""
        return sum(kept.numel() for kept in self._kept.values())

    def push(self, mel: Tensor, *, close: bool) -> Tensor:
        """(1, mel, frames) -> (samples,): all that no later frame can change."""
        return self.sound(mel, self.sources(mel, close=close), close=close)

    def sources(self, mel: Tensor, *, close: bool) -> list[Tensor]:
        """What the excitation gives to each stage: two fifths of the work, and it needs nothing of the rest.
        So another thread may do it before `sound`, of this piece or already of the next."""
        hift = self._hift
        excitation = self._analyse(self._excite(self._pitch(mel, close)), close)
        given = []
        for stage, (down, block) in enumerate(zip(hift.source_downs, hift.source_resblocks, strict=True)):
            source = self._conv(f"down{stage}", down, excitation, close)
            given.append(self._block(f"source{stage}", block, source, close))
        return given

    def sound(self, mel: Tensor, sources: Sequence[Tensor], *, close: bool) -> Tensor:
        hift = self._hift
        x = self._conv("pre", hift.conv_pre, mel, close)
        last = len(hift.ups) - 1
        for stage, (up, source) in enumerate(zip(hift.ups, sources, strict=True)):
            x = self._upsample(f"up{stage}", up, F.leaky_relu_(x, 0.1), close)
            if stage == last:
                x = self._mirror(x)
            x = self._sum(f"join{stage}", [x, source])
            blocks = enumerate(hift.blocks_of(stage))
            paths = [self._block(f"block{stage}.{i}", block, x, close) for i, block in blocks]
            x = self._sum(f"mean{stage}", paths).div_(len(paths))
        return self._synthesize(self._conv("post", hift.conv_post, F.leaky_relu_(x), close), close)

    def _pitch(self, mel: Tensor, close: bool) -> Tensor:
        """f0 of the frames whose f0 is settled: (1, frames) Hz."""
        predictor = self._hift.f0_predictor
        for i, layer in enumerate(predictor.condnet):
            mel = self._conv(f"f0.{i}", layer, mel, close) if isinstance(layer, nn.Conv1d) else layer(mel)
        return predictor.classifier(mel.transpose(1, 2)).squeeze(-1).abs()

    def _excite(self, f0_hz: Tensor) -> Tensor:
        """The excitation of the frames that follow: (1, samples)."""
        count = f0_hz.shape[1] * CLOCKS.samples_per_frame
        if not count:
            return f0_hz
        noise = self._noise(self.excited_samples, count).T[None]
        source, self._cycles = self._hift.m_source(f0_hz, self._phase, noise, self._cycles)
        self.excited_samples += count
        return source[0]

    def _analyse(self, source: Tensor, close: bool) -> Tensor:
        """The excitation's spectrum: (1, 18, columns), a column every 4 samples, which looks 8 ahead."""
        if not source.shape[1] and "stft" not in self._kept:
            return source.new_empty(1, 2 * BINS, 0)
        kept = self._kept.get("stft")
        # The whole mirrors its two ends. A piece is at least a frame long, so it can do the same.
        source = _mirrored(source, HALF_WINDOW, 0) if kept is None else torch.cat([kept, source], dim=1)
        source = _mirrored(source, 0, HALF_WINDOW) if close else source
        columns = (source.shape[1] - ISTFT_SIZE) // ISTFT_HOP + 1
        self._kept["stft"] = source[:, columns * ISTFT_HOP :].clone()
        if not columns:
            return source.new_empty(1, 2 * BINS, 0)
        window = self._hift.window
        spectrum = torch.stft(source, ISTFT_SIZE, ISTFT_HOP, window=window, center=False, return_complex=True)
        return torch.cat([spectrum.real, spectrum.imag], dim=1)

    def _synthesize(self, x: Tensor, close: bool) -> Tensor:
        magnitude = x[:, :BINS].exp().clamp(max=MAGNITUDE_LIMIT)
        phase = torch.sin(x[:, BINS:])
        spectrum = torch.complex(magnitude * torch.cos(phase), magnitude * torch.sin(phase))
        window = self._hift.window[None, :, None]
        # Of nothing there is no transform: a CPU's gives nothing, CUDA's refuses to be planned.
        columns = (
            torch.fft.irfft(spectrum, n=ISTFT_SIZE, dim=1) if x.shape[2] else x.new_empty(1, ISTFT_SIZE, 0)
        )
        columns = columns * window
        # The windows' energy is overlapped as the signal is, and divided out.
        both = torch.cat([columns, window.square().expand_as(columns)])
        place = torch.eye(ISTFT_SIZE, device=x.device, dtype=x.dtype).t()[:, None]  # lies tap by tap
        tail = ISTFT_SIZE - ISTFT_HOP - HALF_WINDOW
        both = self._overlap("istft", both, place, ISTFT_HOP, head=HALF_WINDOW, tail=tail if close else 0)
        return (both[0, 0] / both[1, 0]).clamp(-SAMPLE_LIMIT, SAMPLE_LIMIT)

    def _conv(
        self, name: str, layer: nn.Module, x: Tensor, close: bool, snake: nn.Module | None = None
    ) -> Tensor:
        """`snake`, if there is one, comes before the layer."""
        assert isinstance(layer, nn.Conv1d)
        left, right = (layer.left, layer.right) if isinstance(layer, PaddedConv1d) else (0, 0)
        x = self._behind(name, x, left, right if close else 0, snake)
        span, stride = (layer.kernel_size[0] - 1) * layer.dilation[0] + 1, layer.stride[0]
        columns = max(0, (x.shape[-1] - span) // stride + 1)
        self._kept[name] = x[..., columns * stride :].clone()
        if not columns:
            return x.new_empty(1, layer.out_channels, 0)
        return convolve(layer, x)

    def _behind(self, name: str, x: Tensor, left: int, right: int, snake: nn.Module | None) -> Tensor:
        """x after what was kept of its past, `left` zeros at the start, and before `right` zeros."""
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

    def _block(self, name: str, block: nn.Module, x: Tensor, close: bool) -> Tensor:
        assert isinstance(block, ResBlock)
        layers = zip(block.activations1, block.convs1, block.activations2, block.convs2, strict=True)
        for i, (snake1, conv1, snake2, conv2) in enumerate(layers):
            hidden = self._conv(f"{name}.{i}.conv1", conv1, x, close, snake1)
            x = self._sum(f"{name}.{i}", [x, self._conv(f"{name}.{i}.conv2", conv2, hidden, close, snake2)])
        return x

    def _upsample(self, name: str, layer: nn.Module, x: Tensor, close: bool) -> Tensor:
        assert isinstance(layer, UpsamplingConv1d)
        assert layer.bias is not None
        padding = int(layer.padding[0])
        y = self._overlap(name, x, layer.weight, layer.stride[0], head=padding, tail=padding if close else 0)
        return y.add_(layer.bias[:, None])

    def _overlap(self, name: str, x: Tensor, weight: Tensor, stride: int, *, head: int, tail: int) -> Tensor:
        """Each column of x spread over `kernel` places, a stride apart; what overlaps the future is kept.

        head: so many results before the first are dropped; tail: so many beyond the last are wanted.
        """
        outputs, kernel = weight.shape[1:]
        kept, done = self._kept.get(name), x.shape[-1] * stride
        # What is still to be dropped stands before the first column, as places of its own.
        kept = x.new_zeros(x.shape[0], outputs, kernel - stride) if kept is None else kept
        y = kept
        if done:
            y = spread(x, weight, stride)
            y[..., : kernel - stride] += kept
        self._kept[name] = y[..., done:].clone()
        return self._dropped(name, y[..., : done + tail], head)

    def _dropped(self, name: str, x: Tensor, head: int) -> Tensor:
        """x without the first `head` columns of the stream."""
        before = self._kept.get(f"{name}.dropped")
        gone = 0 if before is None else before.shape[-1]
        now = min(head - gone, x.shape[-1])
        self._kept[f"{name}.dropped"] = x.new_empty(gone + now)
        return x[..., now:]

    def _mirror(self, x: Tensor) -> Tensor:
        """The stream led by a copy of its second column: a centred STFT has one frame more than hops."""
        if "mirrored" in self._kept:
            return x
        waiting = self._kept.pop("mirror", None)
        x = x if waiting is None else torch.cat([waiting, x], dim=-1)
        if x.shape[-1] < 2:
            self._kept["mirror"] = x
            return x[..., :0]
        self._kept["mirrored"] = x.new_empty(0)
        return torch.cat([x[..., 1:2], x], dim=-1)

    def _sum(self, name: str, terms: Sequence[Tensor]) -> Tensor:
        """As far as all terms go; the rest of the longer ones waits. All terms but the first are used up."""
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


def _mirrored(wav: Tensor, left: int, right: int) -> Tensor:
    return F.pad(wav[None], (left, right), mode="reflect")[0]
