"""Int8 and int4 quantization of weights; int8 is shared by the generated kernels and ONNX Runtime's graphs.

Symmetric, by blocks: the inputs of each output are cut into blocks that have one scale each, so that one
large weight costs precision only in its own block.

    scale = max |w| / 127 over the block;   code = round(w / scale);   w ≈ code · scale

Kernels quantize the inputs of a product in the same way, by row and block, so the sum within a block is an
exact integer on every machine.

Int4 has blocks of 32 and float16 scales; inputs are quantized to int8 all the same. The weight of largest
magnitude gets the code -8, so the scale may be negative. Of two groups of inputs that share bytes, the first
has the low halves and the second has whole bytes, so that kernels need not separate it:

    scale = -(w of largest |w|) / 8 over the block
    low   = round(w / scale), -8 … 7                      w ≈ low · scale                          first group
    byte  = 16 · high + low, closest to 16 · w / scale    w ≈ byte · scale / 16, in steps of a scale   second

Wherever its steps lie, the second group is rounded by at most half a scale, as the first is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nightingale.backends.shared.int8_blocks import (
    INT4_BLOCK,
    INT4_GROUP,
    INT4_MAX,
    INT4_MIN,
    INT8_MAX,
    ZERO_POINT,
    block_size_for,
)


class QuantizedWeight(NamedTuple):
    """Codes (outputs, blocks, block) uint8, and scales (outputs, blocks) float32."""

    codes: Tensor
    scales: Tensor


def quantize_blocks(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Return the codes (…, blocks, block), as floats, and the scales (…, blocks) of x (…, inputs)."""
    parts = x.float().reshape(*x.shape[:-1], -1, block)
    scales = parts.abs().amax(-1) / INT8_MAX
    # A block of zeros has the scale 0 and the codes 0.
    codes = parts / scales.where(scales > 0, 1.0)[..., None]
    return codes.round().clamp(-INT8_MAX, INT8_MAX), scales


def quantize_blocks_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes (…, blocks, block), in 16ths and as floats, and the scales (…, blocks) of a sixteenth."""
    parts = weight.float().reshape(*weight.shape[:-1], -1, INT4_BLOCK)
    largest = parts.gather(-1, parts.abs().argmax(-1, keepdim=True))
    scales = (largest / INT4_MIN).half().float()
    exact = (parts / scales.where(scales != 0, 1.0)).reshape(*parts.shape[:-1], -1, 2, INT4_GROUP)
    low = exact[..., 0, :].round().clamp(INT4_MIN, INT4_MAX)
    offset = (low % 16) / 16
    high = (exact[..., 1, :] - offset).round().clamp(INT4_MIN, INT4_MAX)
    return torch.stack([low, high + offset], -2).flatten(-3) * 16, scales[..., 0] / 16


def quantize_weights(weights: Sequence[Tensor], bits: int = 8) -> QuantizedWeight:
    """Quantize matrices (outputs, inputs) to 8 or 4 bits and concatenate them along the outputs."""
    if bits == 4:
        parts = [quantize_blocks_int4(weight) for weight in weights]
    else:
        parts = [quantize_blocks(weight, block_size_for(weight.shape[1])) for weight in weights]
    codes = torch.cat([(part + ZERO_POINT).to(torch.uint8) for part, _ in parts])
    return QuantizedWeight(codes, torch.cat([scales for _, scales in parts]))


def dequantize(weight: QuantizedWeight) -> Tensor:
    """Return the matrix (outputs, inputs) that the codes stand for."""
    return ((weight.codes.float() - ZERO_POINT) * weight.scales[..., None]).flatten(1)
