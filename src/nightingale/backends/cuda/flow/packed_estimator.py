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

from nightingale.backends.cuda.flow import flow_launches
from nightingale.backends.cuda.flow.flow_launches import (
    TILE,
    NormedLinear,
    Tables,
    Weights,
    add,
    attend,
    convolve,
    euler,
    linear,
    normed_linear,
    pair,
)
from nightingale.backends.cuda.flow.flow_steps import FlowSteps
from nightingale.backends.cuda.graphs import GraphCache, GraphMode, copy_async
from nightingale.backends.cuda.triton_support import compiling_ahead
from nightingale.models.chatterbox.s3gen.estimator import ResnetBlock, TransformerBlock, mish


def row_bucket(rows: int) -> int:
    """Return the size of the graph for so many rows: there are eight in each octave."""
    step = max(TILE, 1 << max(0, (rows - 1).bit_length() - 4))
    return -(-rows // step) * step


class PackedRows(NamedTuple):
    """The places of the windows of a batch in the packed matrix."""

    starts: list[int]
    """The first row of each window."""
    used: int
    """Rows up to the end of the last window's last tile."""

    @classmethod
    def of(cls, frames: Sequence[int]) -> PackedRows:
        starts, used = [], 0
        for count in frames:
            starts.append(used)
            used += -(-count // TILE) * TILE
        return cls(starts, used)


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
        self._compiled_many = False
        """Kernels of many rows are compiled when a batch is first prepared: one listener needs none of them."""

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
    def compile(self, rows: int = TILE) -> None:
        """Compile all kernels of so many rows at the same time; others have the same, few or many of them."""
        bands, steps, bucket = self.steps.flow.config.mel_bands, self.steps, -(-rows // TILE) * TILE
        with compiling_ahead() as possible:
            if possible:
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
        if rows >= flow_launches.MANY_ROWS and not self._compiled_many:
            self._compiled_many = True
            self.compile(flow_launches.MANY_ROWS)
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
        """Return `Tables` as one tensor (rows / TILE, 2), the unconditional rows' included."""
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
        velocity = self._velocity(inputs, time, Tables(starts, ends))
        euler(x, velocity, F.embedding(step, self._widths[:, None]), inputs, guided=self.steps.guided)
        step.add_(1).remainder_(self.steps.count)
        return x

    def _velocity(self, x: Tensor, time: Tensor, tables: Tables) -> Tensor:
        """x: (rows, 4 · bands); time: (resnets, channels)."""
        net: Any = self._net
        width, packed = net.final_proj.in_channels, self._packed
        down, up, final = net.down_blocks[0], net.up_blocks[0], net.final_block.block
        both = torch.empty(len(x), 2 * width, dtype=x.dtype, device=x.device)
        skip, last = both[:, width:], both[:, :width]
        self._stage(down, x, time, tables, skip)
        h = convolve(skip, packed[down[2]], tables)
        for number, stage in enumerate(net.mid_blocks, start=1):
            h = self._stage(stage, h, time, tables, last if number == len(net.mid_blocks) else None)
        h = convolve(self._stage(up, both, time, tables), packed[up[2]], tables)
        h = convolve(h, packed[final["0"]], tables, norm=pair(final["2"]))
        return linear(h, packed[net.final_proj], dtype=torch.float32)

    def _stage(
        self, stage: Any, x: Tensor, time: Tensor, tables: Tables, out: Tensor | None = None
    ) -> Tensor:
        """Apply a resnet and transformers to x (rows, channels); write to `out`, if given."""
        resnet, layers, packed = stage[0], list(stage[1]), self._packed
        first, second = resnet.block1.block, resnet.block2.block
        own_time = time[self._resnets[resnet]]
        h = convolve(x, packed[first["0"]], tables, norm=pair(first["2"]), time=own_time)
        h = convolve(h, packed[second["0"]], tables, norm=pair(second["2"]))
        rows = add(x, packed[resnet.res_conv], h)
        for layer in layers:
            attended = attend(normed_linear(rows, self._normed[layer.norm1]), layer.attn1.heads, tables)
            rows = add(attended, pair(layer.attn1.to_out[0]), rows.values)
            inner = normed_linear(rows, self._normed[layer.norm3], gelu=True)
            rows = add(inner, pair(layer.ff.net["2"]), rows.values, out if layer is layers[-1] else None)
        return rows.values
