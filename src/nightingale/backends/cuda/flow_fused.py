"""The flow estimator's passes by Triton's kernels, for pieces of a stream: what one step after another is.

Rows are (batch, frames, channels) from the first product to the last. The time embeddings' products depend on
nothing but the step, and are made beforehand. The twin is `FlowSteps.solve`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nightingale.backends.cuda.flow import FRAMES, FlowSteps
from nightingale.backends.cuda.flow_kernels import (
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
    _rows_kernel,
)
from nightingale.backends.cuda.t3_kernels import can_start_early
from nightingale.models.chatterbox.s3gen.flow import GUIDANCE
from nightingale.models.layers.activations import mish

LOG2_E = 1.4426950408889634
MANY_ROWS = 512
"""From here on there are enough programs even if each takes more."""


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
    """(steps, channels): what each step adds."""
    conv_2: ConvWeights
    norm_2: tuple[Tensor, Tensor]
    past: tuple[Tensor, Tensor]
    """Of the way past the convolutions."""
    blocks: list[BlockWeights]


class Piece(NamedTuple):
    """What all layers of one piece are told."""

    utterances: int
    lengths: Tensor
    """(utterances,), in tokens."""
    unheard: Tensor
    """(1,): so many of the remembered tokens, the first, are not to be seen."""
    carried: Tensor
    left: Tensor
    """(utterances, values): the convolutions' last inputs, before this piece and after it."""
    places: Iterator[int]
    """Where each convolution's lie, in the order of the pass."""
    start: int
    """The frame where the next piece begins."""
    keys: Iterator[Tensor]
    """Keys and values of the prompt, in the order of the pass."""


class FusedEstimator:
    @torch.no_grad()
    def __init__(self, steps: FlowSteps) -> None:
        net = steps.estimator
        self.steps, self.guided = steps, steps.guided
        stages = [net.down_blocks[0], *net.mid_blocks, net.up_blocks[0]]
        self._stages = [_stage(stage, steps) for stage in stages]
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
        unheard: Tensor,
        carried: Tensor,
        left: Tensor,
        places: Sequence[int],
        start: int,
        keys: Sequence[Tensor],
    ) -> Tensor:
        """As `FlowSteps.solve`: noise (utterances, mel, frames) to scaled mel. `Piece` tells of the rest."""
        steps, (many, bands, frames) = self.steps, noise.shape
        halves = 2 if self.guided else 1
        piece = Piece(many, lengths, unheard, carried, left, iter(places), start, iter(keys))
        shown = torch.zeros(halves * many, frames, 4 * bands, dtype=steps.precision, device=noise.device)
        told = torch.cat([mu, speaker[..., None].expand_as(mu), cond], dim=1).transpose(1, 2)
        shown[:many, :, bands:] = told.to(steps.precision)
        x = (noise * steps.flow.config.noise_scale).transpose(1, 2).float().contiguous()
        widths = steps.widths.float()
        _euler(x, None, widths, shown, guided=self.guided)
        for step in range(steps.count):
            velocity = self._velocity(shown, step, piece)
            _euler(x, velocity, widths[step : step + 1], shown, guided=self.guided)
        return x.transpose(1, 2).to(noise.dtype)

    def _velocity(self, shown: Tensor, step: int, piece: Piece) -> Tensor:
        batch, frames, _ = shown.shape
        both = torch.empty(batch, frames, 2 * self._width, dtype=shown.dtype, device=shown.device)
        skip, last = both[..., self._width :], both[..., : self._width]
        self._stage(self._stages[0], shown, step, piece, skip)
        h = _convolved(skip, self._closing[0], piece)
        for number, stage in enumerate(self._stages[1:-1], start=2):
            h = self._stage(stage, h, step, piece, last if number == len(self._stages) - 1 else None)
        h = self._stage(self._stages[-1], both, step, piece)
        h = _convolved(_convolved(h, self._closing[1], piece), self._final, piece)
        return _rows(h, self._proj, norm=self._final_norm, before=NORM_MISH, dtype=torch.float32)

    def _stage(
        self, w: StageWeights, x: Tensor, step: int, piece: Piece, out: Tensor | None = None
    ) -> Tensor:
        """(batch, frames, channels) through a resnet block and transformer blocks; into `out`, if given."""
        h = _convolved(x, w.conv_1, piece)
        h = _convolved(h, w.conv_2, piece, norm=w.norm_1, time=w.times[step])
        x = _rows(x, w.past, after=ADD_NORM_MISH, other=h, norm=w.norm_2)
        for number, block in enumerate(w.blocks, start=1):
            qkv = _rows(x, (block.qkv, None), norm=block.norm_1, before=NORM)
            heard = _attended(qkv, next(piece.keys), next(piece.keys), piece)
            x = _rows(heard, block.out, after=ADD, other=x)
            inner = _rows(x, block.up, norm=block.norm_2, before=NORM, after=GELU)
            x = _rows(inner, block.down, after=ADD, other=x, out=out if number == len(w.blocks) else None)
        return x


def _pair(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.weight, layer.bias


def _conv(layer: Any) -> ConvWeights:
    return ConvWeights(layer.weight.permute(2, 0, 1).contiguous(), layer.bias)


def _stage(stage: Any, steps: FlowSteps) -> StageWeights:
    resnet = stage[0]
    return StageWeights(
        conv_1=_conv(resnet.block1.block["0"]),
        norm_1=_pair(resnet.block1.block["2"]),
        times=resnet.mlp["1"](mish(steps.times[:, 0])).contiguous(),
        conv_2=_conv(resnet.block2.block["0"]),
        norm_2=_pair(resnet.block2.block["2"]),
        past=(resnet.res_conv.weight[..., 0].contiguous(), resnet.res_conv.bias),
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
    """Whole rows in float32, as a norm wants them, are soon more than the registers of four warps: compiled
    for 64 rows, a convolution by four spilled 5762 bytes of each thread's."""
    return 8 if normed and rows > 16 else 4


def _early(x: Tensor) -> dict[str, Any]:
    """Whether a kernel may be launched while the one before it ends, as the launch is told."""
    return {"EARLY": True, "launch_pdl": True} if can_start_early(x.device) else {"EARLY": False}


def _rows(
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
    """(batch, frames, inputs) by a layer's (outputs, inputs). norm: of what is normed, before or after;
    other, out: (batch, frames, outputs), whose rows may lie apart."""
    weight, bias = layer
    batch, frames, inputs = x.shape
    rows, outputs = batch * frames, weight.shape[0]
    if out is None:
        out = torch.empty(batch, frames, outputs, dtype=dtype or x.dtype, device=x.device)
    norm_weight, norm_bias = norm or (x, x)
    other = x if other is None else other
    bm, bn = (16, 32) if rows <= MANY_ROWS else (64, 64)
    _rows_kernel[(-(-rows // bm), -(-outputs // bn))](
        x,
        norm_weight,
        norm_bias,
        weight,
        x if bias is None else bias,
        other,
        out,
        rows,
        outputs,
        x.stride(1),
        other.stride(1),
        out.stride(1),
        K=inputs,
        C=outputs if after == ADD_NORM_MISH else 16,
        BM=bm,
        BN=bn,
        BK=min(128, inputs & -inputs),
        BEFORE=before,
        AFTER=after,
        BIAS=bias is not None,
        PRECISION=_precision(x),
        num_warps=_warps(bm, normed=before != NONE),
        **_early(x),
    )
    return out


def _convolved(
    x: Tensor,
    w: ConvWeights,
    piece: Piece,
    *,
    norm: tuple[Tensor, Tensor] | None = None,
    time: Tensor | None = None,
) -> Tensor:
    """(batch, frames, inputs) by three taps. norm, time: x is normed, goes through a mish, and is moved by
    `time` (inputs,) first."""
    batch, frames, inputs = x.shape
    outputs, at = w.weight.shape[1], next(piece.places)
    out = torch.empty(batch, frames, outputs, dtype=x.dtype, device=x.device)
    norm_weight, norm_bias = norm or (x, x)
    bm, bn = (16, 32) if batch * frames <= MANY_ROWS else (64 if norm is None else 32, 64)
    _conv_kernel[(batch, -(-frames // bm), -(-outputs // bn))](
        x,
        norm_weight,
        norm_bias,
        x if time is None else time,
        w.weight,
        w.bias,
        piece.carried[:, at:],
        piece.left[:, at:],
        out,
        frames,
        outputs,
        piece.utterances,
        x.stride(1),
        out.stride(1),
        piece.carried.stride(0),
        piece.start,
        C=inputs,
        BM=bm,
        BN=bn,
        BK=inputs if norm is not None else min(128, inputs & -inputs),
        BEFORE=NONE if norm is None else NORM_MISH,
        PRECISION=_precision(x),
        num_warps=_warps(bm, normed=norm is not None),
        **_early(x),
    )
    return out


def _attended(qkv: Tensor, keys: Tensor, values: Tensor, piece: Piece) -> Tensor:
    """(batch, frames, 3 · channels) -> (batch, frames, channels)."""
    batch, frames, _ = qkv.shape
    _, heads, known, width = keys.shape
    out = torch.empty(batch, frames, heads * width, dtype=qkv.dtype, device=qkv.device)
    bq = 32 if frames <= 96 else 64
    _attend_kernel[(batch, heads, -(-frames // bq))](
        qkv,
        keys,
        values,
        piece.lengths,
        piece.unheard,
        out,
        frames,
        known,
        piece.utterances,
        width**-0.5 * LOG2_E,
        HEADS=heads,
        WIDTH=width,
        BQ=bq,
        # There are few programs, and each waits at every block: so blocks are large where they fit.
        BK=128 if qkv.dtype == torch.bfloat16 else 64,
        FRAMES=FRAMES,
        PRECISION=_precision(qkv),
        num_warps=4,
        **_early(qkv),
    )
    return out


def _euler(x: Tensor, velocity: Tensor | None, width: Tensor, shown: Tensor, *, guided: bool) -> None:
    """x (utterances, frames, bands), float32, moved by `width` (1,) times the velocity, in place; and written
    to the first channels of `shown` (twice the utterances if guided, frames, channels)."""
    block = 1024
    _euler_kernel[(-(-x.numel() // block),)](
        x,
        x if velocity is None else velocity,
        width,
        shown,
        x.numel(),
        shown.stride(1),
        GUIDANCE,
        BANDS=x.shape[2],
        GUIDED=guided,
        MOVE=velocity is not None,
        BLOCK=block,
        num_warps=4,
        **_early(x),
    )
