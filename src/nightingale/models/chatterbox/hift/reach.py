"""How far HiFT's trunk hears, in samples, worked out from its layers.

A stream lives on this number: sound can be given out once all it depends on is there.
"""

from __future__ import annotations

from torch import nn

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.config import ISTFT_HOP, ISTFT_SIZE
from nightingale.models.chatterbox.hift.generator import Hift, ResBlock
from nightingale.models.layers.conv import PaddedConv1d, UpsamplingConv1d

Span = tuple[int, int]
"""First and last column, or sample, that feels a change."""
BEFORE, AFTER = ISTFT_SIZE // 2, ISTFT_SIZE // 2 - 1
"""Column j of a transform stands for samples 4j - 8 to 4j + 7."""


def lookahead_samples(hift: Hift) -> int:
    """So long before its own first sample a mel frame is heard, through the trunk or through the pitch."""
    pitch_frames = sum(layer.right for layer in hift.f0_predictor.condnet if isinstance(layer, PaddedConv1d))
    through_pitch = pitch_frames * CLOCKS.samples_per_frame - source_reach(hift)[0]
    return max(-mel_reach(hift)[0], through_pitch)


def mel_reach(hift: Hift) -> Span:
    """The samples that mel frame 0 changes under a fixed excitation."""
    return _trunk(hift, (0, 0), None)


def source_reach(hift: Hift) -> Span:
    """The samples that the 480 samples of excitation of frame 0 change under a fixed mel."""
    first, last = 0, CLOCKS.samples_per_frame - 1
    return _trunk(hift, None, (-((AFTER - first) // ISTFT_HOP), (last + BEFORE) // ISTFT_HOP))


def _trunk(hift: Hift, mel: Span | None, excitation: Span | None) -> Span:
    """mel: in frames; excitation: in columns of its spectrum."""
    x = mel and _conv(hift.conv_pre, mel)
    last = len(hift.ups) - 1
    for stage, up in enumerate(hift.ups):
        x = x and _up(up, x)
        if x and stage == last:
            x = x[0] + 1, x[1] + 1  # the mirrored column goes before all others
        source = excitation and _block(
            hift.source_resblocks[stage], _conv(hift.source_downs[stage], excitation)
        )
        heard = _union(x, source)
        x = _union(*(_block(b, heard) for b in hift.blocks_of(stage)))
    assert x is not None
    first, final = _conv(hift.conv_post, x)
    return first * ISTFT_HOP - BEFORE, final * ISTFT_HOP + AFTER


def _conv(layer: nn.Module, span: Span) -> Span:
    """Output o hears inputs from o·stride - left to o·stride - left + width."""
    assert isinstance(layer, nn.Conv1d)
    left = layer.left if isinstance(layer, PaddedConv1d) else 0
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
    heard = [span for span in spans if span]
    return min(first for first, _ in heard), max(final for _, final in heard)
