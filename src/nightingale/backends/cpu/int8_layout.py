"""The memory layout of quantized weights that kernels/int8_gemm.py reads, and T3's weights in it on disk.

    codes    (outputs, inputs)  ->  (tiles, inputs / 4, 16, 4)   4 inputs of each of 16 outputs side by side
    scales   (outputs, blocks)  ->  (tiles, blocks, 16)

so that a product reads its weights from front to back. Outputs are padded to whole groups of 4 tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from nightingale.backends.cpu.kernels.int8_gemm import GROUP_OUTPUTS
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, TILE_OUTPUTS
from nightingale.backends.shared.quantize import ZERO_POINT, QuantizedWeight, quantize_weights
from nightingale.backends.shared.tensor_file import TensorFileWriter, TensorLocation, TensorSource
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config


def tile_weight(weight: QuantizedWeight, *, signed: bool) -> tuple[Tensor, Tensor]:
    """Return codes and scales in tiles, padded with outputs of zeros; signed: codes as int8, not uint8."""
    missing = -len(weight.codes) % GROUP_OUTPUTS
    codes = torch.nn.functional.pad(weight.codes.flatten(1), (0, 0, 0, missing), value=ZERO_POINT)
    scales = torch.nn.functional.pad(weight.scales, (0, 0, 0, missing))
    if signed:
        codes = (codes.to(torch.int16) - ZERO_POINT).to(torch.int8)
    tiles = codes.view(-1, TILE_OUTPUTS, codes.shape[1] // DOT_INPUTS, DOT_INPUTS).transpose(1, 2)
    return tiles.contiguous(), scales.view(-1, TILE_OUTPUTS, scales.shape[1]).transpose(1, 2).contiguous()


def interleave_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Alternate half a group of gate outputs (outputs, …) and half a group of up outputs.

    The epilogue SWIGLU then finds both in the group that its thread has computed.
    """
    half = GROUP_OUTPUTS // 2
    return torch.stack([part.view(-1, half, *part.shape[1:]) for part in (gate, up)], dim=1).flatten(0, 2)


@dataclass(frozen=True, slots=True)
class TiledFormat:
    """Packed weights for the kernels of this package."""

    signed: bool
    """The same as `Target.signed_weights`."""

    @property
    def name(self) -> str:
        return f"tiled, signed={self.signed}"

    def write(
        self, config: T3Config, source: TensorSource, file: BinaryIO
    ) -> tuple[Mapping[str, TensorLocation], Mapping[str, bytes]]:
        return _T3Writer(source, TensorFileWriter(file), self.signed).write(config), {}


@dataclass(frozen=True, slots=True)
class _T3Writer:
    source: TensorSource
    file: TensorFileWriter
    signed: bool

    def write(self, config: T3Config) -> Mapping[str, TensorLocation]:
        is_llama = isinstance(config.backbone, LlamaConfig)
        for layer in range(config.backbone.layers):
            if is_llama:
                self._llama_layer(f"tfmr.layers.{layer}.")
            else:
                self._gpt2_layer(f"tfmr.h.{layer}.")
        self._floats(*(["tfmr.norm.weight"] if is_llama else ["tfmr.ln_f.weight", "tfmr.ln_f.bias"]))
        self._linear("logits", [self.source("speech_head.weight")])
        if config.head_bias:
            self._floats("speech_head.bias")
        return self.file.index

    def _llama_layer(self, at: str) -> None:
        self._floats(f"{at}input_layernorm.weight")
        self._linear(f"{at}qkv", [self.source(f"{at}self_attn.{name}_proj.weight") for name in "qkv"])
        self._linear(f"{at}out", [self.source(f"{at}self_attn.o_proj.weight")])
        self._floats(f"{at}post_attention_layernorm.weight")
        gate, up = (quantize_weights([self.source(f"{at}mlp.{name}_proj.weight")]) for name in ("gate", "up"))
        both = QuantizedWeight(*(interleave_gate(*pair) for pair in zip(gate, up, strict=True)))
        self._weight(f"{at}gate_up", both)
        self._linear(f"{at}down", [self.source(f"{at}mlp.down_proj.weight")])

    def _gpt2_layer(self, at: str) -> None:
        for norm, layers in (("ln_1", ("attn.c_attn", "attn.c_proj")), ("ln_2", ("mlp.c_fc", "mlp.c_proj"))):
            self._floats(f"{at}{norm}.weight", f"{at}{norm}.bias")
            for name in layers:
                self._linear(f"{at}{name}", [self.source(f"{at}{name}.weight").t()])
                self._floats(f"{at}{name}.bias")

    def _linear(self, name: str, weights: Sequence[Tensor]) -> None:
        self._weight(name, quantize_weights(weights))

    def _weight(self, name: str, weight: QuantizedWeight) -> None:
        for part, value in zip(("codes", "scales"), tile_weight(weight, signed=self.signed), strict=True):
            self.file.write(f"{name}.{part}", value.numpy())

    def _floats(self, *names: str) -> None:
        for name in names:
            value = self.source(name).float().numpy()
            # Padded like the outputs that a bias is added to.
            self.file.write(name, np.pad(value, (0, -len(value) % GROUP_OUTPUTS)))
