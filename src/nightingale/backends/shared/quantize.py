"""Int8 quantization of weights, shared by the generated kernels and by ONNX Runtime's graphs.

Symmetric, by blocks: the inputs of each output are cut into blocks that have one scale each, so that one
large weight costs precision only in its own block.

    scale = max |w| / 127 over the block;   code = round(w / scale);   w ≈ code · scale

Kernels quantize the inputs of a product in the same way, by row and block, so the sum within a block is an
exact integer on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nightingale.backends.shared.int8_blocks import INT8_MAX, ZERO_POINT, block_size_for


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


def quantize_weights(weights: Sequence[Tensor]) -> QuantizedWeight:
    """Quantize matrices (outputs, inputs) and concatenate them along the outputs."""
    parts = [quantize_blocks(weight, block_size_for(weight.shape[1])) for weight in weights]
    codes = torch.cat([(part + ZERO_POINT).to(torch.uint8) for part, _ in parts])
    return QuantizedWeight(codes, torch.cat([scales for _, scales in parts]))
