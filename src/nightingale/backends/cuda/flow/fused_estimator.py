"""The flow's solver with the estimator in Triton kernels, for blocks of a stream.

Activations are (batch, frames, channels) throughout. The products of the time embeddings depend only on the
step and are computed beforehand. Reference: `FlowSteps.solve`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nightingale.backends.cuda.flow.flow_kernels import (
    ADD,
    ADD_NORM_MISH,
    GELU,
    NONE,
    NORM,
    NORM_MISH,
    PLAIN,
    _attend_kernel,
    _conv_kernel,
    _euler_kernel,
    _linear_kernel,
)
from nightingale.backends.cuda.flow.flow_steps import FRAMES, FlowSteps
from nightingale.backends.cuda.triton_support import supports_pdl
from nightingale.models.chatterbox.s3gen.estimator import mish
from nightingale.models.chatterbox.s3gen.flow import GUIDANCE

LOG2_E = 1.4426950408889634
MANY_ROWS = 512
"""From so many rows on, large tiles leave enough programs to fill the GPU."""


class ConvWeights(NamedTuple):
    weight: Tensor
    """(3, outputs, inputs)."""
    bias: Tensor


class BlockWeights(NamedTuple):
    norm_1: tuple[Tensor, Tensor]
    qkv: Tensor
    out: tuple[Tensor, Tensor]
    norm_2: tuple[Tensor, Tensor]
    up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]


class StageWeights(NamedTuple):
    conv_1: ConvWeights
    norm_1: tuple[Tensor, Tensor]
    times: Tensor
    """(steps, channels): the time embedding of each step."""
    conv_2: ConvWeights
    norm_2: tuple[Tensor, Tensor]
    skip: tuple[Tensor, Tensor]
    """The 1×1 convolution around the others."""
    blocks: list[BlockWeights]


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
        net = steps.estimator
        self.steps, self.guided = steps, steps.guided
        stages = [net.down_blocks[0], *net.mid_blocks, net.up_blocks[0]]
        self._stages = [_stage_weights(stage, steps) for stage in stages]
        self._closing = [_conv(stages[0][2]), _conv(stages[-1][2])]
        final = net.final_block.block
        self._final, self._final_norm = _conv(final["0"]), _pair(final["2"])
        self._proj = (net.final_proj.weight[..., 0].contiguous(), net.final_proj.bias)
        self._width = net.final_proj.in_channels

    def solve(
        self,
        noise: Tensor,
        *,
        mu: Tensor,
        speaker: Tensor,
        cond: Tensor,
        lengths: Tensor,
        padding: Tensor,
        conv_state: Tensor,
        next_conv_state: Tensor,
        offsets: Sequence[int],
        next_start: int,
        keys_values: Sequence[Tensor],
    ) -> Tensor:
        """Move noise (utterances, mel, frames) to normalized mel. For the rest see `BlockInputs`."""
        steps, (utterances, bands, frames) = self.steps, noise.shape
        state = (conv_state, next_conv_state, iter(offsets), next_start)
        block = BlockInputs(utterances, lengths, padding, *state, iter(keys_values))
        rows = 2 * utterances if self.guided else utterances
        x_and_given = torch.zeros(rows, frames, 4 * bands, dtype=steps.precision, device=noise.device)
        given = torch.cat([mu, speaker[..., None].expand_as(mu), cond], dim=1).transpose(1, 2)
        x_and_given[:utterances, :, bands:] = given.to(steps.precision)
        x = (noise * steps.flow.config.noise_scale).transpose(1, 2).float().contiguous()
        widths = steps.widths.float()
        _euler(x, None, widths, x_and_given, guided=self.guided)
        for step in range(steps.count):
            velocity = self._velocity(x_and_given, step, block)
            _euler(x, velocity, widths[step : step + 1], x_and_given, guided=self.guided)
        return x.transpose(1, 2).to(noise.dtype)

    def _velocity(self, x: Tensor, step: int, block: BlockInputs) -> Tensor:
        batch, frames, _ = x.shape
        both = torch.empty(batch, frames, 2 * self._width, dtype=x.dtype, device=x.device)
        skip, last = both[..., self._width :], both[..., : self._width]
        self._stage(self._stages[0], x, step, block, skip)
        h = _convolve(skip, self._closing[0], block)
        for number, stage in enumerate(self._stages[1:-1], start=2):
            h = self._stage(stage, h, step, block, last if number == len(self._stages) - 1 else None)
        h = self._stage(self._stages[-1], both, step, block)
        h = _convolve(_convolve(h, self._closing[1], block), self._final, block)
        return _linear(h, self._proj, norm=self._final_norm, before=NORM_MISH, dtype=torch.float32)

    def _stage(
        self, w: StageWeights, x: Tensor, step: int, block: BlockInputs, out: Tensor | None = None
    ) -> Tensor:
        """Apply a resnet and transformers to x (batch, frames, channels); write to `out`, if given."""
        h = _convolve(x, w.conv_1, block)
        h = _convolve(h, w.conv_2, block, norm=w.norm_1, time=w.times[step])
        x = _linear(x, w.skip, after=ADD_NORM_MISH, other=h, norm=w.norm_2)
        for number, layer in enumerate(w.blocks, start=1):
            qkv = _linear(x, (layer.qkv, None), norm=layer.norm_1, before=NORM)
            attended = _attend(qkv, next(block.keys_values), next(block.keys_values), block)
            x = _linear(attended, layer.out, after=ADD, other=x)
            inner = _linear(x, layer.up, norm=layer.norm_2, before=NORM, after=GELU)
            x = _linear(inner, layer.down, after=ADD, other=x, out=out if number == len(w.blocks) else None)
        return x


def _pair(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.weight, layer.bias


def _conv(layer: Any) -> ConvWeights:
    return ConvWeights(layer.weight.permute(2, 0, 1).contiguous(), layer.bias)


def _stage_weights(stage: Any, steps: FlowSteps) -> StageWeights:
    resnet = stage[0]
    return StageWeights(
        conv_1=_conv(resnet.block1.block["0"]),
        norm_1=_pair(resnet.block1.block["2"]),
        times=resnet.mlp["1"](mish(steps.times[:, 0])).contiguous(),
        conv_2=_conv(resnet.block2.block["0"]),
        norm_2=_pair(resnet.block2.block["2"]),
        skip=(resnet.res_conv.weight[..., 0].contiguous(), resnet.res_conv.bias),
        blocks=[
            BlockWeights(
                norm_1=_pair(block.norm1),
                qkv=torch.cat([block.attn1.to_q.weight, block.attn1.to_k.weight, block.attn1.to_v.weight]),
                out=_pair(block.attn1.to_out[0]),
                norm_2=_pair(block.norm3),
                up=_pair(block.ff.net["0"].proj),
                down=_pair(block.ff.net["2"]),
            )
            for block in stage[1]
        ],
    )


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def _warps(rows: int, *, normed: bool) -> int:
    """Return the warps of a kernel with so many rows per tile.

    Whole rows in float32, which a norm needs, exceed the registers of four warps: compiled for 64 rows, a
    convolution spilled 5762 bytes per thread.
    """
    return 8 if normed and rows > 16 else 4


def _pdl(x: Tensor) -> dict[str, Any]:
    return {"PDL": True, "launch_pdl": True} if supports_pdl(x.device) else {"PDL": False}


def _linear(
    x: Tensor,
    layer: tuple[Tensor, Tensor | None],
    *,
    norm: tuple[Tensor, Tensor] | None = None,
    before: int = NONE,
    after: int = PLAIN,
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
    _linear_kernel[(-(-rows // bm), -(-outputs // bn))](
        x, norm_weight, norm_bias, weight, x if bias is None else bias, other, out, rows, outputs,
        x.stride(1), other.stride(1), out.stride(1),
        K=inputs, C=outputs if after == ADD_NORM_MISH else 16, BM=bm, BN=bn, BK=min(128, inputs & -inputs),
        BEFORE=before, AFTER=after, BIAS=bias is not None, PRECISION=_precision(x),
        num_warps=_warps(bm, normed=before != NONE), **_pdl(x),
    )  # fmt: skip
    return out


def _convolve(
    x: Tensor,
    w: ConvWeights,
    block: BlockInputs,
    *,
    norm: tuple[Tensor, Tensor] | None = None,
    time: Tensor | None = None,
) -> Tensor:
    """Return the causal convolution of x (batch, frames, inputs), or of mish(norm(x)) + time (inputs,)."""
    batch, frames, inputs = x.shape
    outputs, at = w.weight.shape[1], next(block.offsets)
    out = torch.empty(batch, frames, outputs, dtype=x.dtype, device=x.device)
    norm_weight, norm_bias = norm or (x, x)
    bm, bn = (16, 32) if batch * frames <= MANY_ROWS else (64 if norm is None else 32, 64)
    _conv_kernel[(batch, -(-frames // bm), -(-outputs // bn))](
        x, norm_weight, norm_bias, x if time is None else time, w.weight, w.bias, block.conv_state[:, at:],
        block.next_conv_state[:, at:], out, frames, outputs, block.utterances, x.stride(1), out.stride(1),
        block.conv_state.stride(0), block.next_start,
        C=inputs, BM=bm, BN=bn, BK=inputs if norm is not None else min(128, inputs & -inputs),
        BEFORE=NONE if norm is None else NORM_MISH, PRECISION=_precision(x),
        num_warps=_warps(bm, normed=norm is not None), **_pdl(x),
    )  # fmt: skip
    return out


def _attend(qkv: Tensor, keys: Tensor, values: Tensor, block: BlockInputs) -> Tensor:
    """Attend to the block and the prompt: (batch, frames, 3 · channels) -> (batch, frames, channels)."""
    batch, frames, _ = qkv.shape
    _, heads, cached, width = keys.shape
    out = torch.empty(batch, frames, heads * width, dtype=qkv.dtype, device=qkv.device)
    bq = 32 if frames <= 96 else 64
    _attend_kernel[(batch, heads, -(-frames // bq))](
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
    _euler_kernel[(-(-x.numel() // block),)](
        x, x if velocity is None else velocity, width, target, x.numel(), target.stride(1), GUIDANCE,
        BANDS=x.shape[2], GUIDED=guided, MOVE=velocity is not None, BLOCK=block, num_warps=4, **_pdl(x),
    )  # fmt: skip
