"""Weights as machine code reads them: one after another, with nothing between.

Outputs lie in tiles of OUTPUTS; within a tile TOGETHER inputs of each output, then the next inputs. A gate
and what it opens are taken by halves of a group, so that whoever has one has the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from nightingale.backends.cpu.t3_kernels import PER_GROUP
from nightingale.backends.cpu.target import OUTPUTS, TOGETHER
from nightingale.backends.shared.packed_t3 import Written
from nightingale.backends.shared.tensor_file import Place, Source, WeightFile
from nightingale.backends.shared.quantize import ZERO, round_weight
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config


def laid_out(codes: Tensor, scales: Tensor, *, signed: bool) -> tuple[Tensor, Tensor]:
    """Codes (outputs, blocks, block) and scales (outputs, blocks), with outputs of zeros to a full group."""
    missing = -len(codes) % PER_GROUP
    codes = torch.nn.functional.pad(codes.flatten(1), (0, 0, 0, missing), value=ZERO)
    scales = torch.nn.functional.pad(scales, (0, 0, 0, missing))
    if signed:
        codes = (codes.to(torch.int16) - ZERO).to(torch.int8)
    tiles = codes.view(-1, OUTPUTS, codes.shape[1] // TOGETHER, TOGETHER).transpose(1, 2)
    return tiles.contiguous(), scales.view(-1, OUTPUTS, scales.shape[1]).transpose(1, 2).contiguous()


def by_halves(gate: Tensor, up: Tensor) -> Tensor:
    """Of two weights (outputs, …) half a group each, by turns."""
    half = PER_GROUP // 2
    return torch.stack([part.view(-1, half, *part.shape[1:]) for part in (gate, up)], dim=1).flatten(0, 2)


@dataclass(frozen=True, slots=True)
class ForMachineCode:
    """Of packed weights, for `NativeRunner`."""

    signed: bool
    """As `Target` wants them."""

    @property
    def name(self) -> str:
        return "machine code, signed" if self.signed else "machine code"

    def write(self, config: T3Config, source: Source, file: BinaryIO) -> Written:
        return Written(places=_Laying(config, source, file, signed=self.signed).write(), beside={})


class _Laying:
    def __init__(self, config: T3Config, source: Source, file: BinaryIO, *, signed: bool) -> None:
        self.config, self.source, self.signed = config, source, signed
        self.file = WeightFile(file)

    def write(self) -> dict[str, Place]:
        backbone, llama = self.config.backbone, isinstance(self.config.backbone, LlamaConfig)
        for layer in range(backbone.layers):
            (self._llama if llama else self._gpt2)(f"tfmr.{'layers' if llama else 'h'}.{layer}.")
        self._floats("tfmr.norm.weight" if llama else "tfmr.ln_f.weight")
        if not llama:
            self._floats("tfmr.ln_f.bias")
        self._product("scores", [self.source("speech_head.weight")])
        if self.config.head_bias:
            self._floats("speech_head.bias")
        return self.file.places

    def _llama(self, at: str) -> None:
        self._floats(f"{at}input_layernorm.weight")
        self._product(f"{at}qkv", [self.source(f"{at}self_attn.{name}_proj.weight") for name in "qkv"])
        self._product(f"{at}out", [self.source(f"{at}self_attn.o_proj.weight")])
        self._floats(f"{at}post_attention_layernorm.weight")
        gate, up = (round_weight(self.source(f"{at}mlp.{name}_proj.weight")) for name in ("gate", "up"))
        self._rounded(f"{at}both", by_halves(gate.codes, up.codes), by_halves(gate.scales, up.scales))
        self._product(f"{at}down", [self.source(f"{at}mlp.down_proj.weight")])

    def _gpt2(self, at: str) -> None:
        for norm, products in (
            ("ln_1", ("attn.c_attn", "attn.c_proj")),
            ("ln_2", ("mlp.c_fc", "mlp.c_proj")),
        ):
            self._floats(f"{at}{norm}.weight")
            self._floats(f"{at}{norm}.bias")
            for name in products:
                self._product(f"{at}{name}", [self.source(f"{at}{name}.weight").t()])
                self._floats(f"{at}{name}.bias")

    def _product(self, name: str, weights: Sequence[Tensor]) -> None:
        parts = [round_weight(weight) for weight in weights]
        self._rounded(name, torch.cat([p.codes for p in parts]), torch.cat([p.scales for p in parts]))

    def _rounded(self, name: str, codes: Tensor, scales: Tensor) -> None:
        laid = laid_out(codes, scales, signed=self.signed)
        for kind, value in zip(("codes", "scales"), laid, strict=True):
            self.file.write(f"{name}.{kind}", value.numpy())

    def _floats(self, name: str) -> None:
        value = self.source(name).float().numpy()
        # To a full group, like the outputs that a bias is added to.
        self.file.write(name, np.pad(value, (0, -len(value) % PER_GROUP)))
