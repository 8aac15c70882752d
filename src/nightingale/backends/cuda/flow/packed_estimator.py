"""The flow's solver over packed rows, with the estimator in Triton kernels (flow_kernels.py).

One graph is one solver step: what changes from step to step (the time embeddings, which depend on the step
alone and are computed beforehand, and the step's width) is looked up by a counter on the device. So a graph
has a few hundred kernels, is captured in a moment, and is replayed once per step. Reference:
`FlowSteps.solve`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.backends.cuda.flow import flow_kernels as kernels
from nightingale.backends.cuda.flow.flow_steps import FlowSteps
from nightingale.backends.cuda.graphs import GraphCache, GraphMode, copy_async
from nightingale.backends.cuda.triton_support import compiling_ahead, launch, pdl_options
from nightingale.models.chatterbox.s3gen.estimator import ResnetBlock, TransformerBlock, mish
from nightingale.models.chatterbox.s3gen.flow import GUIDANCE

LOG2_E = 1.4426950408889634
TILE = 64
"""Windows begin at multiples of so many rows."""
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


def row_bucket(rows: int) -> int:
    """Return the size of the graph for so many rows: there are eight in each octave."""
    step = max(TILE, 1 << max(0, (rows - 1).bit_length() - 4))
    return -(-rows // step) * step


class PackedRows(NamedTuple):
    """The places of the windows of a batch in the packed matrix."""

    starts: list[int]
    """The first row of each window."""
    used: int
    """RowsWithStatistics up to the end of the last window's last tile."""

    @classmethod
    def of(cls, frames: Sequence[int]) -> PackedRows:
        starts, used = [], 0
        for count in frames:
            starts.append(used)
            used += -(-count // TILE) * TILE
        return cls(starts, used)


class _Tables(NamedTuple):
    """The first row of each tile's window, and the row after its last one: (rows / TILE,) int32."""

    starts: Tensor
    ends: Tensor


class PackedEstimator:
    @torch.no_grad()
    def __init__(self, steps: FlowSteps, mode: GraphMode | None = None) -> None:
        self.steps, self._net, device = steps, steps.estimator, steps.device
        self._packed: dict[nn.Module, Weights] = {}
        self._normed: dict[nn.Module, NormedLinear] = {}
        self._resnets: dict[nn.Module, int] = {}
        times: list[Tensor] = []
        unrounded = steps.flow.decoder["estimator"]
        for name, module in self._net.named_modules():
            if isinstance(module, nn.Conv1d):
                self._packed[module] = module.weight.permute(2, 0, 1).contiguous().squeeze(0), module.bias
            elif isinstance(module, TransformerBlock):
                layer: Any = unrounded.get_submodule(name)
                attn, up = layer.attn1, layer.ff.net["0"].proj
                qkv = [attn.to_q, attn.to_k, attn.to_v]
                self._normed[module.norm1] = NormedLinear.of(layer.norm1, qkv, steps.precision)
                self._normed[module.norm3] = NormedLinear.of(layer.norm3, [up], steps.precision)
            elif isinstance(module, ResnetBlock):
                self._resnets[module] = len(times)
                times.append(module.mlp["1"](mish(steps.times[:, 0])))
        self._times = torch.stack(times, dim=1)
        """(steps, resnets, channels): what a resnet makes of the time embedding of each step."""
        self._widths = steps.widths.float().contiguous()
        self._graphs: GraphCache[Tensor] = GraphCache(device, mode)

    def solve(self, noise: Tensor, given: Tensor, rows: PackedRows, frames: Sequence[int]) -> Tensor:
        """Move noise (used rows, bands) to normalized mel, which lives until the next call.

        given: (used rows, 3 · bands), the estimator's inputs besides x; frames: of each window.
        """
        steps, (used, bands) = self.steps, noise.shape
        bucket = row_bucket(used)
        if bucket not in self._graphs:
            self._capture(bucket, bands)
        x = noise.float() * steps.flow.config.noise_scale
        inputs = torch.zeros(steps.rows * bucket, 4 * bands, dtype=steps.precision, device=noise.device)
        inputs[:used, :bands] = x
        inputs[:used, bands:] = given
        if steps.guided:
            inputs[bucket : bucket + used, :bands] = x
        graph = self._graphs[bucket]
        moved = graph(x=x, inputs=inputs, tables=self._tables(rows, frames, bucket))
        for _ in range(steps.count - 1):
            moved = graph()
        return moved[:used]

    @torch.inference_mode()
    def compile(self) -> None:
        """Compile all kernels, of few and of many rows, at the same time."""
        bands, steps = self.steps.flow.config.mel_bands, self.steps
        with compiling_ahead() as possible:
            for bucket in (TILE, -(-MANY_ROWS // TILE) * TILE) if possible else ():
                x = torch.zeros(bucket, bands, device=steps.device)
                inputs = torch.zeros(
                    steps.rows * bucket, 4 * bands, dtype=steps.precision, device=steps.device
                )
                tables = self._tables(PackedRows([0], bucket), [bucket], bucket)
                self._step(x, inputs, tables, torch.zeros(1, dtype=torch.int64, device=steps.device))

    def captures(self, least: int, most: int) -> Iterator[Callable[[], object]]:
        """Yield functions that capture the graphs of so many rows which do not exist yet."""
        rows, bands = row_bucket(least), self.steps.flow.config.mel_bands
        while rows <= most:
            if rows not in self._graphs:
                yield partial(self._capture, rows, bands)
            rows = row_bucket(rows + 1)

    @torch.inference_mode()
    def _capture(self, bucket: int, bands: int) -> None:
        rows = self.steps.rows * bucket
        inputs = {
            "x": torch.zeros(bucket, bands),
            "inputs": torch.zeros(rows, 4 * bands, dtype=self.steps.precision),
            "tables": self._tables(PackedRows([0], bucket), [bucket], bucket),
            "step": torch.zeros(1, dtype=torch.int64),
        }
        self._graphs.capture(bucket, f"a step of the flow, {bucket} rows", self._step, inputs)
        # Captures run the function: it must start with the first step.
        self._graphs[bucket].buffers["step"].zero_()

    def _tables(self, rows: PackedRows, frames: Sequence[int], bucket: int) -> Tensor:
        """Return `_Tables` as one tensor (rows / TILE, 2), the unconditional rows' included."""
        first = torch.arange(0, bucket, TILE, dtype=torch.int32)
        table = torch.stack([first, first + 1], dim=1)  # unused tiles: softmax needs one key
        for start, count in zip(rows.starts, frames, strict=True):
            tiles = slice(start // TILE, -(-(start + count) // TILE))
            table[tiles] = torch.tensor([start, start + count], dtype=torch.int32)
        copies = [table + copy * bucket for copy in range(self.steps.rows)]
        return copy_async(torch.cat(copies), self.steps.device)

    def _step(self, x: Tensor, inputs: Tensor, tables: Tensor, step: Tensor) -> Tensor:
        """Move x (rows, bands) by one step, in place: the function that is captured."""
        # An embedding, because index_select of one long row takes ten times as long.
        time = F.embedding(step, self._times.flatten(1)).view(self._times.shape[1:])
        starts, ends = tables.T.contiguous()
        velocity = self._velocity(inputs, time, _Tables(starts, ends))
        _euler(x, velocity, F.embedding(step, self._widths[:, None]), inputs, guided=self.steps.guided)
        step.add_(1).remainder_(self.steps.count)
        return x

    def _velocity(self, x: Tensor, time: Tensor, tables: _Tables) -> Tensor:
        """x: (rows, 4 · bands); time: (resnets, channels)."""
        net: Any = self._net
        width, packed = net.final_proj.in_channels, self._packed
        down, up, final = net.down_blocks[0], net.up_blocks[0], net.final_block.block
        both = torch.empty(len(x), 2 * width, dtype=x.dtype, device=x.device)
        skip, last = both[:, width:], both[:, :width]
        self._stage(down, x, time, tables, skip)
        h = _convolve(skip, packed[down[2]], tables)
        for number, stage in enumerate(net.mid_blocks, start=1):
            h = self._stage(stage, h, time, tables, last if number == len(net.mid_blocks) else None)
        h = _convolve(self._stage(up, both, time, tables), packed[up[2]], tables)
        h = _convolve(h, packed[final["0"]], tables, norm=_pair(final["2"]))
        return _linear(h, packed[net.final_proj], dtype=torch.float32)

    def _stage(
        self, stage: Any, x: Tensor, time: Tensor, tables: _Tables, out: Tensor | None = None
    ) -> Tensor:
        """Apply a resnet and transformers to x (rows, channels); write to `out`, if given."""
        resnet, layers, packed = stage[0], list(stage[1]), self._packed
        first, second = resnet.block1.block, resnet.block2.block
        own_time = time[self._resnets[resnet]]
        h = _convolve(x, packed[first["0"]], tables, norm=_pair(first["2"]), time=own_time)
        h = _convolve(h, packed[second["0"]], tables, norm=_pair(second["2"]))
        rows = _add(x, packed[resnet.res_conv], h)
        for layer in layers:
            attended = _attend(_normed_linear(rows, self._normed[layer.norm1]), layer.attn1.heads, tables)
            rows = _add(attended, _pair(layer.attn1.to_out[0]), rows.values)
            inner = _normed_linear(rows, self._normed[layer.norm3], gelu=True)
            rows = _add(inner, _pair(layer.ff.net["2"]), rows.values, out if layer is layers[-1] else None)
        return rows.values


def _pair(layer: Any) -> Weights:
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
    return Tile(64, 128, 64, warps=4) if outputs <= 1024 else Tile(128, 128, 64, warps=8)


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


def _linear(
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
    launch(
        kernels._linear_kernel, (-(-rows // tile.rows), -(-outputs // tile.outputs)),
        x, given, weight, sums, x if bias is None else bias, x if other is None else other,
        out, out if stats is None else stats,
        rows, outputs, x.stride(0), 0 if other is None else other.stride(0), out.stride(0),
        K=inputs, BM=tile.rows, BN=min(tile.outputs, _power_of_two(outputs)), BK=_block(inputs, tile.inputs),
        PARTS=0 if normed is None else len(given), GELU=gelu, ADD=other is not None, BIAS=bias is not None,
        STATS=stats is not None, PRECISION=_precision(x),
        num_warps=tile.warps, num_stages=tile.stages, **pdl_options(x.device),
    )  # fmt: skip
    return out


def _power_of_two(outputs: int) -> int:
    """Return the smallest size of tiles that has so many outputs."""
    return max(16, 1 << (outputs - 1).bit_length())


def _normed_linear(rows: RowsWithStatistics, layer: NormedLinear, *, gelu: bool = False) -> Tensor:
    """Return the product of normalized rows."""
    return _linear(rows.values, (layer.weight, layer.bias), normed=(rows.stats, layer.sums), gelu=gelu)


def _add(x: Tensor, layer: Weights, other: Tensor, out: Tensor | None = None) -> RowsWithStatistics:
    """Return other + layer(x); write it to `out`, if given."""
    rows, outputs = len(x), len(layer[0])
    size = min(linear_tile(rows, outputs, wide=x.dtype == torch.float32).outputs, outputs)
    assert outputs % size == 0, "a tile would have fewer outputs than the others"
    stats = torch.empty(outputs // size, rows, 2, device=x.device)
    return RowsWithStatistics(_linear(x, layer, other=other, out=out, stats=stats), stats)


def _convolve(
    x: Tensor,
    layer: Weights,
    tables: _Tables,
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


def _attend(qkv: Tensor, heads: int, tables: _Tables) -> Tensor:
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


def _euler(x: Tensor, velocity: Tensor, width: Tensor, target: Tensor, *, guided: bool) -> None:
    """Move x (rows, bands) float32 by `width` (1,) times the velocity, in place.

    x is also written to the first channels of `target` (rows, channels), twice if guided.
    """
    block = 1024
    launch(
        kernels._euler_kernel, (-(-x.numel() // block),),
        x, velocity, width, target, x.numel(), target.stride(0), GUIDANCE,
        BANDS=x.shape[1], GUIDED=guided, BLOCK=block, num_warps=4, **pdl_options(x.device),
    )  # fmt: skip
