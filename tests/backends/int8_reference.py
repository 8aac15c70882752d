"""Int8 products in plain torch, slow and obvious: what the kernels and the ONNX graphs are compared with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nightingale.backends.shared.int8_blocks import ZERO_POINT
from nightingale.backends.shared.quantize import quantize_blocks, quantize_weights
from nightingale.models.chatterbox.t3.backbone import Gpt2Linear
from nightingale.models.chatterbox.t3.model import T3


class ReferenceInt8Linear(nn.Module):
    """A linear layer with the same quantization of weights and inputs as the kernels."""

    def __init__(self, weight: Tensor, bias: Tensor | None, bits: int = 8) -> None:
        super().__init__()
        self.quantized, self.bias = quantize_weights([weight], bits), bias

    def forward(self, x: Tensor) -> Tensor:
        codes, scales = self.quantized
        x_codes, x_scales = quantize_blocks(x, codes.shape[-1])
        sums = torch.einsum("...bi,obi->...ob", x_codes.double(), codes.double() - ZERO_POINT)
        y = (sums * x_scales[..., None, :].double() * scales.double()).sum(-1).to(x.dtype)
        return y if self.bias is None else y + self.bias


def quantize_t3(t3: T3, bits: int = 8) -> tuple[str, ...]:
    """Replace each linear layer that runs in int8 or int4 by its reference; return their names."""
    replaced = []
    for path, layer in list(t3.named_modules()):
        if path != "speech_head" and not path.startswith("tfmr."):
            continue
        if isinstance(layer, nn.Linear):
            reference = ReferenceInt8Linear(layer.weight, layer.bias, bits)
        elif isinstance(layer, Gpt2Linear):
            reference = ReferenceInt8Linear(layer.weight.t(), layer.bias, bits)
        else:
            continue
        # T3 asks its head for a dtype and a device.
        reference.weight = layer.weight
        parent, _, name = path.rpartition(".")
        setattr(t3.get_submodule(parent), name, reference)
        replaced.append(path)
    assert replaced
    return tuple(replaced)
