"""The memory layout of quantized weights that kernels/int8_gemm.py reads, and T3's weights in it on disk.

    codes    (outputs, inputs)  ->  (tiles, inputs / 4, 16, 4)   4 inputs of each of 16 outputs side by side
    scales   (outputs, blocks)  ->  (tiles, blocks, 16)

so that a product reads its weights from front to back. Outputs are padded to whole groups of 4 tiles. Int4 has
float16 scales, and the bytes of every second group of 4 inputs, whose low halves are the codes of the group before:

    codes    (outputs, inputs)  ->  (tiles, inputs / 8, 16, 4)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from nightingale.backends.cpu.kernels.int8_gemm import GROUP_OUTPUTS
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, TILE_OUTPUTS, host_target
from nightingale.backends.shared.int8_blocks import ZERO_POINT
from nightingale.backends.shared.packed_t3 import TensorFileWriter, TensorSource
from nightingale.backends.shared.quantize import QuantizedWeight, dequantize, quantize_weights
from nightingale.models.chatterbox.t3.config import Gpt2Config, LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.model import T3


def tile_weight(weight: QuantizedWeight, *, signed: bool, bits: int = 8) -> tuple[Tensor, Tensor]:
    """Return codes and scales in tiles, padded with outputs of zeros; signed: codes as int8, not uint8."""
    missing = -len(weight.codes) % GROUP_OUTPUTS
    codes = torch.nn.functional.pad(weight.codes.flatten(1), (0, 0, 0, missing), value=ZERO_POINT)
    scales = torch.nn.functional.pad(weight.scales, (0, 0, 0, missing))
    if signed:
        codes = (codes.to(torch.int16) - ZERO_POINT).to(torch.int8)
    tiles = codes.view(-1, TILE_OUTPUTS, codes.shape[1] // DOT_INPUTS, DOT_INPUTS).transpose(1, 2)
    scales = scales.view(-1, TILE_OUTPUTS, scales.shape[1]).transpose(1, 2).contiguous()
    if bits == 4:
        return tiles[:, 1::2].contiguous(), (scales * 16).half()
    return tiles.contiguous(), scales


def interleave_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Alternate half groups of gate and up outputs (outputs, …): SWIGLU needs both in one group."""
    half = GROUP_OUTPUTS // 2
    return torch.stack([part.view(-1, half, *part.shape[1:]) for part in (gate, up)], dim=1).flatten(0, 2)


def round_weights(t3: T3, bits: int) -> None:
    """Replace the weights of T3's linear layers by those that their codes stand for."""
    transposed = isinstance(t3.config.backbone, Gpt2Config)
    for name, layers, _ in _linear_layers(t3.config):
        for layer in layers:
            weight = t3.get_parameter(f"{layer}.weight").data
            matrix = weight.t() if transposed and name != "logits" else weight
            matrix.copy_(dequantize(quantize_weights([matrix], bits)))


class TiledFormat:
    """Packed weights for the kernels on this machine.

    Every linear layer has the tensors `.codes` and `.scales`, and some have `.bias`, `.norm_weight` and
    `.norm_bias`, the norm being the one before it. Their names do not depend on the backbone.
    """

    def __init__(self, bits: int = 8) -> None:
        self._signed, self._bits = host_target().signed_weights, bits
        self.name = f"tiled, signed={self._signed}" + (", int4" if bits == 4 else "")

    def write(self, config: T3Config, source: TensorSource, file: TensorFileWriter) -> Mapping[str, bytes]:
        is_gpt2 = isinstance(config.backbone, Gpt2Config)
        for name, layers, norm in _linear_layers(config):
            weights = [source(f"{layer}.weight") for layer in layers]
            if is_gpt2 and name != "logits":
                weights = [weight.t() for weight in weights]
            if len(weights) == 2:  # gate and up
                weights = [interleave_gate(*weights)]
            quantized = quantize_weights(weights, self._bits)
            tiled = tile_weight(quantized, signed=self._signed, bits=self._bits)
            for part, value in zip(("codes", "scales"), tiled, strict=True):
                file.write(f"{name}.{part}", value.numpy())
            vectors = {}
            if config.head_bias if name == "logits" else is_gpt2:
                vectors["bias"] = f"{layers[0]}.bias"
            if norm is not None:
                vectors["norm_weight"] = f"{norm}.weight"
            if norm is not None and is_gpt2:
                vectors["norm_bias"] = f"{norm}.bias"
            for part, their_name in vectors.items():
                vector = source(their_name).float().numpy()
                # Padded like the outputs that a bias is added to.
                file.write(f"{name}.{part}", np.pad(vector, (0, -len(vector) % GROUP_OUTPUTS)))
        return {}


def _linear_layers(config: T3Config) -> Iterator[tuple[str, list[str], str | None]]:
    """Yield the name in the file, the names in T3, and the norm before it of each linear layer."""
    is_llama = isinstance(config.backbone, LlamaConfig)
    for layer in range(config.backbone.layers):
        if is_llama:
            at = f"tfmr.layers.{layer}."
            yield f"{layer}.qkv", [f"{at}self_attn.{name}_proj" for name in "qkv"], f"{at}input_layernorm"
            yield f"{layer}.out", [f"{at}self_attn.o_proj"], None
            yield f"{layer}.up", [f"{at}mlp.gate_proj", f"{at}mlp.up_proj"], f"{at}post_attention_layernorm"
            yield f"{layer}.down", [f"{at}mlp.down_proj"], None
        else:
            at = f"tfmr.h.{layer}."
            yield f"{layer}.qkv", [f"{at}attn.c_attn"], f"{at}ln_1"
            yield f"{layer}.out", [f"{at}attn.c_proj"], None
            yield f"{layer}.up", [f"{at}mlp.c_fc"], f"{at}ln_2"
            yield f"{layer}.down", [f"{at}mlp.c_proj"], None
    yield "logits", ["speech_head"], "tfmr.norm" if is_llama else "tfmr.ln_f"
