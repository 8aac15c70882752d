"""The flow's solver with the estimator in Triton kernels, for blocks of a stream.

Activations are (batch, frames, channels) throughout. The products of the time embeddings depend only on the
step and are computed beforehand. Reference: `FlowSteps.solve`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nightingale.backends.cuda.flow import flow_kernels as kernels
from nightingale.backends.cuda.flow.flow_steps import FRAMES, FlowSteps
from nightingale.backends.cuda.triton_support import supports_pdl
from nightingale.models.chatterbox.s3gen.estimator import EstimatorAttention, ResnetBlock, mish
from nightingale.models.chatterbox.s3gen.flow import GUIDANCE

LOG2_E = 1.4426950408889634
MANY_ROWS = 512
"""From so many rows on, large tiles leave enough programs to fill the GPU."""
Weights = tuple[Tensor, Tensor | None]
"""Weight and bias; the weight of a convolution over three frames is (3, outputs, inputs)."""


class BlockInputs(NamedTuple):
    """Inputs of a block that all layers use."""

    utterances: int
    lengths: Tensor
    """(utterances,), in tokens."""
    padding: Tensor
    """(1,): the number of cached prompt tokens, the first ones, that are masked."""
    conv_state: Tensor
    """(utterances, values): the last inputs of the convolutions in the previous block."""
    next_conv_state: Tensor
    offsets: Iterator[int]
    """The first value of each convolution, in the order of the pass."""
    next_start: int
    """The frame at which the next block starts."""
    keys_values: Iterator[Tensor]
    """Keys and values of the prompt, in the order of the pass."""


class FusedEstimator:
    @torch.no_grad()
    def __init__(self, steps: FlowSteps) -> None:
        self.steps, self.guided, net = steps, steps.guided, steps.estimator
        self._net: Any = net
        self._packed: dict[nn.Module, Weights] = {}
        self._times: dict[nn.Module, Tensor] = {}
        """(steps, channels): what a resnet makes of the time embedding of each step."""
        for module in net.modules():
            if isinstance(module, nn.Conv1d):
                self._packed[module] = module.weight.permute(2, 0, 1).contiguous().squeeze(0), module.bias
            elif isinstance(module, EstimatorAttention):
                qkv = [module.to_q.weight, module.to_k.weight, module.to_v.weight]
                self._packed[module] = torch.cat(qkv), None
            elif isinstance(module, ResnetBlock):
                self._times[module] = module.mlp["1"](mish(steps.times[:, 0])).contiguous()

    def solve(self, noise: Tensor, given: Tensor, **inputs: Any) -> Tensor:
        """Do what `FlowSteps.solve` does. inputs: those of `BlockInputs`."""
        steps, (utterances, bands, frames) = self.steps, noise.shape
        block = BlockInputs(utterances, **inputs)
        rows = 2 * utterances if self.guided else utterances
        x_and_given = torch.zeros(rows, frames, 4 * bands, dtype=steps.precision, device=noise.device)
        x_and_given[:utterances, :, bands:] = given.transpose(1, 2).to(steps.precision)
        x = (noise * steps.flow.config.noise_scale).transpose(1, 2).float().contiguous()
        widths = steps.widths.float()
        _euler(x, None, widths, x_and_given, guided=self.guided)
        for step in range(steps.count):
            velocity = self._velocity(x_and_given, step, block)
            _euler(x, velocity, widths[step : step + 1], x_and_given, guided=self.guided)
        return x.transpose(1, 2).to(noise.dtype)

    def _velocity(self, x: Tensor, step: int, block: BlockInputs) -> Tensor:
        net, (batch, frames, _), width = self._net, x.shape, self._net.final_proj.in_channels
        down, up, final = net.down_blocks[0], net.up_blocks[0], net.final_block.block
        both = torch.empty(batch, frames, 2 * width, dtype=x.dtype, device=x.device)
        skip, last = both[..., width:], both[..., :width]
        self._stage(down, x, step, block, skip)
        h = _convolve(skip, self._packed[down[2]], block)
        for number, stage in enumerate(net.mid_blocks, start=1):
            h = self._stage(stage, h, step, block, last if number == len(net.mid_blocks) else None)
        h = self._stage(up, both, step, block)
        h = _convolve(_convolve(h, self._packed[up[2]], block), self._packed[final["0"]], block)
        proj, norm = self._packed[net.final_proj], _pair(final["2"])
        return _linear(h, proj, norm=norm, before=kernels.NORM_MISH, dtype=torch.float32)

    def _stage(
        self, stage: Any, x: Tensor, step: int, block: BlockInputs, out: Tensor | None = None
    ) -> Tensor:
        """Apply a resnet and transformers to x (batch, frames, channels); write to `out`, if given."""
        resnet, packed = stage[0], self._packed
        first, second = resnet.block1.block, resnet.block2.block
        h = _convolve(x, packed[first["0"]], block)
        h = _convolve(h, packed[second["0"]], block, norm=_pair(first["2"]), time=self._times[resnet][step])
        x = _linear(x, packed[resnet.res_conv], after=kernels.ADD_NORM_MISH, other=h, norm=_pair(second["2"]))
        for number, layer in enumerate(stage[1], start=1):
            qkv = _linear(x, packed[layer.attn1], norm=_pair(layer.norm1), before=kernels.NORM)
            attended = _attend(qkv, next(block.keys_values), next(block.keys_values), block)
            x = _linear(attended, _pair(layer.attn1.to_out[0]), after=kernels.ADD, other=x)
            inner = _linear(
                x,
                _pair(layer.ff.net["0"].proj),
                norm=_pair(layer.norm3),
                before=kernels.NORM,
                after=kernels.GELU,
            )
            end = out if number == len(stage[1]) else None
            x = _linear(inner, _pair(layer.ff.net["2"]), after=kernels.ADD, other=x, out=end)
        return x


def _pair(layer: Any) -> Weights:
    return layer.weight, layer.bias


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def _warps(rows: int, *, normed: bool) -> int:
    """Return the warps of a kernel with so many rows per tile: a norm's whole rows need more registers."""
    return 8 if normed and rows > 16 else 4


def _pdl(x: Tensor) -> dict[str, Any]:
    return {"PDL": True, "launch_pdl": True} if supports_pdl(x.device) else {"PDL": False}


def _linear(
    x: Tensor,
    layer: Weights,
    *,
    norm: Weights | None = None,
    before: int = kernels.NONE,
    after: int = kernels.PLAIN,
    other: Tensor | None = None,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return x (batch, frames, inputs) times a layer's weight (outputs, inputs), plus its bias.

    norm: weight and bias of the norm before or after it; other, out: (batch, frames, outputs), of any row
    stride.
    """
    weight, bias = layer
    batch, frames, inputs = x.shape
    rows, outputs = batch * frames, weight.shape[0]
    if out is None:
        out = torch.empty(batch, frames, outputs, dtype=dtype or x.dtype, device=x.device)
    norm_weight, norm_bias = norm or (x, x)
    other = x if other is None else other
    bm, bn = (16, 32) if rows <= MANY_ROWS else (64, 64)
    kernels._linear_kernel[(-(-rows // bm), -(-outputs // bn))](
        x, norm_weight, norm_bias, weight, x if bias is None else bias, other, out, rows, outputs,
        x.stride(1), other.stride(1), out.stride(1),
        K=inputs, C=outputs if after == kernels.ADD_NORM_MISH else 16, BM=bm, BN=bn, BK=min(128, inputs & -inputs),
        BEFORE=before, AFTER=after, BIAS=bias is not None, PRECISION=_precision(x),
        num_warps=_warps(bm, normed=before != kernels.NONE), **_pdl(x),
    )  # fmt: skip
    return out


def _convolve(
    x: Tensor, layer: Weights, block: BlockInputs, *, norm: Weights | None = None, time: Tensor | None = None
) -> Tensor:
    """Return the causal convolution of x (batch, frames, inputs), or of mish(norm(x)) + time (inputs,)."""
    batch, frames, inputs = x.shape
    weight, bias = layer
    outputs, at = weight.shape[1], next(block.offsets)
    out = torch.empty(batch, frames, outputs, dtype=x.dtype, device=x.device)
    norm_weight, norm_bias = norm or (x, x)
    bm, bn = (16, 32) if batch * frames <= MANY_ROWS else (64 if norm is None else 32, 64)
    kernels._conv_kernel[(batch, -(-frames // bm), -(-outputs // bn))](
        x, norm_weight, norm_bias, x if time is None else time, weight, bias, block.conv_state[:, at:],
        block.next_conv_state[:, at:], out, frames, outputs, block.utterances, x.stride(1), out.stride(1),
        block.conv_state.stride(0), block.next_start,
        C=inputs, BM=bm, BN=bn, BK=inputs if norm is not None else min(128, inputs & -inputs),
        BEFORE=kernels.NONE if norm is None else kernels.NORM_MISH, PRECISION=_precision(x),
        num_warps=_warps(bm, normed=norm is not None), **_pdl(x),
    )  # fmt: skip
    return out


def _attend(qkv: Tensor, keys: Tensor, values: Tensor, block: BlockInputs) -> Tensor:
    """Attend to the block and the prompt: (batch, frames, 3 · channels) -> (batch, frames, channels)."""
    batch, frames, _ = qkv.shape
    _, heads, cached, width = keys.shape
    out = torch.empty(batch, frames, heads * width, dtype=qkv.dtype, device=qkv.device)
    bq = 32 if frames <= 96 else 64
    kernels._attend_kernel[(batch, heads, -(-frames // bq))](
        qkv, keys, values, block.lengths, block.padding, out, frames, cached, block.utterances,
        width**-0.5 * LOG2_E,
        HEADS=heads, WIDTH=width, BQ=bq,
        # There are few programs, and each waits at every block of keys: blocks are large where they fit.
        BK=128 if qkv.dtype == torch.bfloat16 else 64, FRAMES=FRAMES, PRECISION=_precision(qkv),
        num_warps=4, **_pdl(qkv),
    )  # fmt: skip
    return out


def _euler(x: Tensor, velocity: Tensor | None, width: Tensor, target: Tensor, *, guided: bool) -> None:
    """Move x (utterances, frames, bands) float32 by `width` (1,) times the velocity, in place.

    x is also written to the first channels of `target` (rows, frames, channels), twice if guided.
    """
    block = 1024
    kernels._euler_kernel[(-(-x.numel() // block),)](
        x, x if velocity is None else velocity, width, target, x.numel(), target.stride(1), GUIDANCE,
        BANDS=x.shape[2], GUIDED=guided, MOVE=velocity is not None, BLOCK=block, num_warps=4, **_pdl(x),
    )  # fmt: skip
