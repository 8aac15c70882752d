"""Launches of the flow's Triton kernels (flow_kernels.py), with the sizes of tiles that were fastest on an H200."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from nightingale.backends.cuda.flow import flow_kernels as kernels
from nightingale.backends.cuda.triton_support import launch, pdl_options, supports_pdl
from nightingale.models.chatterbox.s3gen.flow import GUIDANCE

LOG2_E = 1.4426950408889634
TILE = 64
"""Windows begin at multiples of so many rows."""
MANY_OUTPUTS = 256
"""Up to so many outputs, the tiles of one row run at the same time, so its inputs are read from memory once."""
MANY_ROWS = 2048
"""From so many rows on, large tiles leave enough programs to fill the GPU."""
Weights = tuple[Tensor, Tensor | None]
"""Weight and bias; the weight of a convolution over three frames is (3, outputs, inputs)."""


class NormedLinear(NamedTuple):
    """A linear layer with the norm before it, as `flow_kernels` computes them."""

    weight: Tensor
    bias: Tensor
    sums: Tensor
    """(outputs,): of the weights of each output."""

    @classmethod
    def of(cls, norm: Any, layers: Sequence[Any], dtype: torch.dtype) -> NormedLinear:
        """Join layers that read the same normalized rows."""
        weight = torch.cat([layer.weight.float() for layer in layers])
        bias = weight @ norm.bias.float()
        if layers[0].bias is not None:
            bias += torch.cat([layer.bias.float() for layer in layers])
        weight = (weight * norm.weight.float()).to(dtype)
        return cls(weight, bias, weight.float().sum(dim=1))


class RowsWithStatistics(NamedTuple):
    """Values (rows, channels), and their statistics (parts, rows, 2): see `flow_kernels`."""

    values: Tensor
    stats: Tensor


class Tables(NamedTuple):
    """The first row of each tile's window, and the row after its last one: (rows / TILE,) int32."""

    starts: Tensor
    ends: Tensor


def pair(layer: Any) -> Weights:
    return layer.weight, layer.bias


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


class Tile(NamedTuple):
    """Sizes of a product's tiles."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int = 3


def linear_tile(rows: int, outputs: int, *, wide: bool) -> Tile:
    """Return the tiles of a product that were fastest on an H200. wide: four bytes per value."""
    if wide:
        return Tile(32, 64, 64, warps=4)
    if rows < MANY_ROWS:
        if outputs <= 256:
            return Tile(64, 64, 128, warps=4)
        return Tile(64, 64, 64, warps=4, stages=4) if outputs <= 1024 else Tile(64, 128, 64, warps=4)
    return Tile(64 if outputs <= 1024 else 128, 128, 64, warps=4)


def conv_tile(rows: int, outputs: int, *, normed: bool, wide: bool) -> Tile:
    """Return the tiles of a convolution; see `linear_tile`."""
    if normed:
        return Tile(16, outputs, 64, warps=8) if wide or rows < MANY_ROWS else Tile(64, outputs, 32, warps=8)
    if wide:
        return Tile(32, 64, 64, warps=4)
    return Tile(64, 64 if rows < MANY_ROWS else 128, 64, warps=4)


def attention_tile(rows: int, *, wide: bool) -> Tile:
    """Return the tiles of attention: `rows` are those of queries, `inputs` the keys of a block."""
    if wide:
        return Tile(TILE, 0, 32, warps=4)
    return Tile(TILE, 0, 128, warps=4, stages=2) if rows < MANY_ROWS else Tile(TILE, 0, 64, warps=4)


def _block(inputs: int, wanted: int) -> int:
    """Return the size of blocks of inputs: a power of two that divides their number."""
    return min(wanted, inputs & -inputs)


def linear(
    x: Tensor,
    layer: Weights,
    *,
    normed: tuple[Tensor, Tensor] | None = None,
    gelu: bool = False,
    other: Tensor | None = None,
    out: Tensor | None = None,
    stats: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return x (rows, inputs) times a layer's weight (outputs, inputs), plus its bias, plus `other`.

    Args:
        x: The inputs.
        layer: Weight and bias.
        normed: Statistics of x and the sums of the weights, if x is normalized.
        gelu: Apply GELU to the result.
        other: (rows, outputs) of any row stride, that is added.
        out: (rows, outputs) of any row stride, where the result is written.
        stats: Where its statistics are written.
        dtype: Of the result.
    """
    weight, bias = layer
    (rows, inputs), outputs = x.shape, len(weight)
    if out is None:
        out = torch.empty(rows, outputs, dtype=dtype or x.dtype, device=x.device)
    given, sums = normed or (x, x)
    tile = linear_tile(rows, outputs, wide=x.dtype == torch.float32)
    bm, bn, bk = tile.rows, min(tile.outputs, _power_of_two(outputs)), _block(inputs, tile.inputs)
    grid, rows_first = (-(-rows // bm), -(-outputs // bn)), outputs > MANY_OUTPUTS
    tma, read, factors = uses_tma(x), x, weight
    if tma:
        read, factors = (
            TensorDescriptor.from_tensor(x, [bm, bk]),
            TensorDescriptor.from_tensor(weight, [bn, bk]),
        )
    launch(
        kernels._linear_kernel, grid if rows_first else grid[::-1],
        read, given, factors, sums, x if bias is None else bias, x if other is None else other,
        out, out if stats is None else stats, rows, outputs, x.stride(0),
        0 if other is None else other.stride(0), out.stride(0),
        K=inputs, BM=bm, BN=bn, BK=bk, PARTS=0 if normed is None else len(given), GELU=gelu,
        ADD=other is not None, BIAS=bias is not None, ROWS_FIRST=rows_first, TMA=tma,
        STATS=stats is not None, PRECISION=_precision(x), num_warps=tile.warps, num_stages=tile.stages,
        **pdl_options(x.device),
    )  # fmt: skip
    return out


def uses_tma(x: Tensor) -> bool:
    """Return whether tiles are loaded by the tensor memory accelerator, which Hopper and later GPUs have."""
    return len(x) >= MANY_ROWS and x.dtype != torch.float32 and supports_pdl(x.device)


def _power_of_two(outputs: int) -> int:
    """Return the smallest size of tiles that has so many outputs."""
    return max(16, 1 << (outputs - 1).bit_length())


def normed_linear(rows: RowsWithStatistics, layer: NormedLinear, *, gelu: bool = False) -> Tensor:
    """Return the product of normalized rows."""
    return linear(rows.values, (layer.weight, layer.bias), normed=(rows.stats, layer.sums), gelu=gelu)


def add(x: Tensor, layer: Weights, other: Tensor, out: Tensor | None = None) -> RowsWithStatistics:
    """Return other + layer(x); write it to `out`, if given."""
    rows, outputs = len(x), len(layer[0])
    size = min(linear_tile(rows, outputs, wide=x.dtype == torch.float32).outputs, outputs)
    assert outputs % size == 0, "a tile would have fewer outputs than the others"
    stats = torch.empty(outputs // size, rows, 2, device=x.device)
    return RowsWithStatistics(linear(x, layer, other=other, out=out, stats=stats), stats)


def convolve(
    x: Tensor,
    layer: Weights,
    tables: Tables,
    *,
    norm: Weights | None = None,
    time: Tensor | None = None,
) -> Tensor:
    """Return the causal convolution of x (rows, inputs); with a norm, mish(norm(it)) + time (channels,)."""
    (rows, inputs), (weight, bias) = x.shape, layer
    outputs = weight.shape[1]
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    norm_weight, norm_bias = norm or (x, x)
    tile = conv_tile(rows, outputs, normed=norm is not None, wide=x.dtype == torch.float32)
    launch(
        kernels._conv_kernel, (-(-rows // tile.rows), -(-outputs // tile.outputs)),
        x, norm_weight, norm_bias, x if time is None else time, weight, bias, tables.starts, out,
        rows, outputs, x.stride(0), out.stride(0),
        C=inputs, BM=tile.rows, BN=tile.outputs, BK=_block(inputs, tile.inputs),
        TILE=TILE, NORM=norm is not None, TIME=time is not None,
        PRECISION=_precision(x), num_warps=tile.warps, num_stages=tile.stages, **pdl_options(x.device),
    )  # fmt: skip
    return out


def attend(qkv: Tensor, heads: int, tables: Tables) -> Tensor:
    """Attend within each window: (rows, 3 · inner) -> (rows, inner)."""
    rows, inner = len(qkv), qkv.shape[1] // 3
    out = torch.empty(rows, inner, dtype=qkv.dtype, device=qkv.device)
    tile = attention_tile(rows, wide=qkv.dtype == torch.float32)
    launch(
        kernels._attend_kernel, (rows // tile.rows, heads),
        qkv, tables.starts, tables.ends, out, (inner // heads) ** -0.5 * LOG2_E,
        HEADS=heads, WIDTH=inner // heads, BQ=tile.rows, BK=tile.inputs, TILE=TILE, PRECISION=_precision(qkv),
        num_warps=tile.warps, num_stages=tile.stages, **pdl_options(qkv.device),
    )  # fmt: skip
    return out


def euler(x: Tensor, velocity: Tensor, width: Tensor, target: Tensor, *, guided: bool) -> None:
    """Move x (rows, bands) float32 by `width` (1,) times the velocity, in place.

    x is also written to the first channels of `target` (rows, channels), twice if guided.
    """
    block = 1024
    launch(
        kernels._euler_kernel, (-(-x.numel() // block),),
        x, velocity, width, target, x.numel(), target.stride(0), GUIDANCE,
        BANDS=x.shape[1], GUIDED=guided, BLOCK=block, num_warps=4, **pdl_options(x.device),
    )  # fmt: skip
