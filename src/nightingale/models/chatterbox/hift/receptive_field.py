"""The receptive field of HiFT in samples, computed from its layers.

A stream can emit samples once all the frames they depend on have arrived.
"""

from __future__ import annotations

from torch import nn

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.config import ISTFT_HOP, ISTFT_SIZE
from nightingale.models.chatterbox.hift.generator import Hift, ResBlock
from nightingale.models.layers.conv import UpsamplingConv1d, padding_of

Span = tuple[int, int]
"""The first and the last affected column or sample."""
BEFORE, AFTER = ISTFT_SIZE // 2, ISTFT_SIZE // 2 - 1
"""Column j of the STFT covers samples 4j - 8 to 4j + 7."""


def lookahead_samples(hift: Hift) -> int:
    """Return the samples before its own first one that a mel frame affects, directly or through f0."""
    f0_frames = sum(
        padding_of(layer)[1] for layer in hift.f0_predictor.condnet if isinstance(layer, nn.Conv1d)
    )
    through_f0 = f0_frames * CLOCKS.samples_per_frame - source_span(hift)[0]
    return max(-mel_span(hift)[0], through_f0)


def mel_span(hift: Hift) -> Span:
    """Return the samples that mel frame 0 affects with a fixed excitation."""
    return _generator_span(hift, (0, 0), None)


def source_span(hift: Hift) -> Span:
    """Return the samples that the excitation of frame 0 affects with a fixed mel."""
    first, last = 0, CLOCKS.samples_per_frame - 1
    return _generator_span(hift, None, (-((AFTER - first) // ISTFT_HOP), (last + BEFORE) // ISTFT_HOP))


def _generator_span(hift: Hift, mel: Span | None, excitation: Span | None) -> Span:
    """Propagate a span of mel frames, or of columns of the excitation's spectrum, to samples."""
    x = mel and _conv(hift.conv_pre, mel)
    last = len(hift.ups) - 1
    for stage, up in enumerate(hift.ups):
        x = x and _up(up, x)
        if x and stage == last:
            x = x[0] + 1, x[1] + 1  # the reflected column comes before all others
        source = excitation and _block(
            hift.source_resblocks[stage], _conv(hift.source_downs[stage], excitation)
        )
        joined = _union(x, source)
        x = _union(*(_block(b, joined) for b in hift.blocks_of(stage)))
    assert x is not None
    first, final = _conv(hift.conv_post, x)
    return first * ISTFT_HOP - BEFORE, final * ISTFT_HOP + AFTER


def _conv(layer: nn.Module, span: Span) -> Span:
    """Output o depends on inputs from o·stride - left to o·stride - left + width."""
    assert isinstance(layer, nn.Conv1d)
    left, _ = padding_of(layer)
    width, stride = (layer.kernel_size[0] - 1) * layer.dilation[0], layer.stride[0]
    return -((width - left - span[0]) // stride), (span[1] + left) // stride


def _up(layer: nn.Module, span: Span) -> Span:
    assert isinstance(layer, UpsamplingConv1d)
    stride, padding = layer.stride[0], int(layer.padding[0])
    return span[0] * stride - padding, span[1] * stride - padding + layer.kernel_size[0] - 1


def _block(block: nn.Module, span: Span) -> Span:
    assert isinstance(block, ResBlock)
    for layer in (*block.convs1, *block.convs2):
        span = _conv(layer, span)
    return span


def _union(*spans: Span | None) -> Span:
    present = [span for span in spans if span]
    return min(first for first, _ in present), max(final for _, final in present)
