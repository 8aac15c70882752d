"""The flow with int8 layers, for CPUs with int8 dot products.

Quantized are the linear layers of the token encoder and of the estimator, the convolutions, and the logits of
the estimator's attention. Everything between them stays in float32.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from nightingale.backends.cpu.bf16 import Net, with_parts
from nightingale.backends.cpu.int8_layers import (
    CONTEXT,
    CallTable,
    FusedSnake,
    Int8Conv1d,
    Int8Linear,
    KernelCall,
    contiguous,
)
from nightingale.backends.cpu.int8_resnet import Int8ConvBlock, Int8ResnetBlock, Int8RowsConv1d
from nightingale.backends.cpu.kernels import flow_attention
from nightingale.backends.cpu.kernels.packed_keys import HEAD_DIM, FlowAttentionOp, packed_bytes
from nightingale.backends.cpu.kernels.project_heads import (
    PROJECT_BLOCK,
    SHARES,
    ProjectHeadsOp,
    project_scratch_bytes,
)
from nightingale.backends.cpu.kernels.render_operations import RenderOpcode
from nightingale.backends.cpu.kernels.rows_linear import (
    LOCAL_PADDING,
    ROWS_PER_PASS,
    RowsEpilogue,
    RowsLinearOp,
)
from nightingale.backends.cpu.kernels.thread_pool import operation_table
from nightingale.models.chatterbox.hift.generator import Snake
from nightingale.models.chatterbox.s3gen.estimator import (
    HEAD_WIDTH,
    AttentionProduct,
    TransformerBlock,
)
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers.streaming_state import StreamingState
from nightingale.models.layers.weight_layout import release_pages


class Int8Attend(AttentionProduct):
    """Attention in int8; torch computes it with a mask, or for few queries."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        batch, heads, queries, head_dim = q.shape
        fits = head_dim == HEAD_DIM and queries >= flow_attention.QUERY_TILE
        if mask is not None or not fits or any(x.stride(3) != 1 for x in (q, k, v)):
            return super().forward(q, k, v, mask)
        out = q.new_empty(batch, queries, heads, head_dim)
        for tensors in zip(q, k, v, out, strict=True):
            args, thread_bytes = attention_arguments(*tensors)
            CONTEXT.run(args, RenderOpcode.PACK_KEYS, RenderOpcode.ATTENTION, thread_bytes=thread_bytes)
        return out.transpose(1, 2)


def attention_arguments(
    q: Tensor, k: Tensor | None, v: Tensor | None, out: Tensor
) -> tuple[dict[Any, Any], int]:
    """Return the arguments of both operations of attention, and the scratch that a thread needs.

    q, k, v: (heads, rows, HEAD_DIM); without k and v, as many keys as queries are packed by another operation.
    """
    heads, queries, _ = q.shape
    keys, op = queries if k is None else k.shape[1], FlowAttentionOp
    sizes = packed_bytes(keys, heads)
    codes = CONTEXT.buffer(sum(sizes))
    args: dict[Any, Any] = {
        op.Q: q, op.OUT: out, op.Q_HEAD_STRIDE: q.stride(0), op.Q_ROW_STRIDE: q.stride(1), op.K_CODES: codes,
        op.K_SCALES: codes + sizes[0], op.V_CODES: codes + sum(sizes[:2]), op.V_SCALES: codes + sum(sizes[:3]),
        op.QUERIES: queries, op.KEYS: keys, op.HEADS: heads,
    }  # fmt: skip
    if k is not None and v is not None:
        args |= {
            op.K: k, op.K_HEAD_STRIDE: k.stride(0), op.K_ROW_STRIDE: k.stride(1),
            op.V: v, op.V_HEAD_STRIDE: v.stride(0), op.V_ROW_STRIDE: v.stride(1),
        }  # fmt: skip
    return args, flow_attention.scratch_bytes(keys)


PLACES_OF_ROWS: Final = (
    (0, ProjectHeadsOp.X),
    (2, RowsLinearOp.OUT),
    (3, RowsLinearOp.X),
    (4, RowsLinearOp.OUT),
)
"""Operations of a transformer block in one call whose arguments are its rows: inputs, residuals and results."""


class Int8TransformerBlock(TransformerBlock):
    """A transformer block of the estimator; norms, GELU and residuals are part of its linear layers.

    It writes its result over an x that is contiguous: `EstimatorStage` has no other use for it, and new memory
    costs page faults.
    """

    def __init__(self, plain: TransformerBlock) -> None:
        nn.Module.__init__(self)
        attention, up, down = plain.attn1, plain.ff.net["0"], plain.ff.net["2"]
        self.norm1, self.norm3, self.heads, self.attend = (
            plain.norm1,
            plain.norm3,
            attention.heads,
            Int8Attend(),
        )
        projections = [attention.to_q, attention.to_k, attention.to_v]
        qkv = nn.Linear(
            attention.to_q.in_features, sum(layer.out_features for layer in projections), bias=False
        )
        qkv.weight = nn.Parameter(torch.cat([layer.weight for layer in projections]), requires_grad=False)
        self.qkv, rest = Int8Linear(qkv), [attention.to_out[0], up["proj"], down]  # type: ignore[index]
        block = min(Int8Linear.largest_block(layer) for layer in rest)
        self.out, self.up, self.down = (Int8Linear(layer, block) for layer in rest)
        self.thread_bytes = max(layer.thread_bytes for layer in (self.out, self.up, self.down))
        for layer in projections:
            release_pages(layer.weight)

    @staticmethod
    def fits(block: nn.Module) -> bool:
        if not isinstance(block, TransformerBlock) or isinstance(block, Int8TransformerBlock):
            return False
        return all(Int8Linear.fits(layer) for layer in block.modules() if isinstance(layer, nn.Linear))

    def forward(self, x: Tensor, mask: Tensor | None, state: StreamingState | None = None) -> Tensor:
        batch, frames, width = x.shape
        x = contiguous(x)
        if mask is None and state is None and self._fits_whole(frames):
            for rows in x:
                self._run_whole(rows)
            return x
        rows, qkv = x.view(-1, width), x.new_empty(batch * frames, self.qkv.out_features)
        qkv_call = self.qkv.operation(rows, qkv, norm=self.norm1)
        CONTEXT.run_all([qkv_call], thread_bytes=self.qkv.thread_bytes)
        q, k, v = qkv.view(batch, frames, 3, self.heads, HEAD_WIDTH).permute(2, 0, 3, 1, 4)
        if state is not None:
            k, v = state.prepend_kv(k), state.prepend_kv(v)
        attended = self.attend(q, k, v, mask).transpose(1, 2).reshape(len(rows), -1).contiguous()
        CONTEXT.run_all(self._after_attention(attended, rows), thread_bytes=self.thread_bytes)
        return x

    def _fits_whole(self, frames: int) -> bool:
        return (
            frames >= flow_attention.QUERY_TILE
            and self.qkv.block == PROJECT_BLOCK
            and self.heads % SHARES == 0
        )

    def _run_whole(self, rows: Tensor) -> None:
        """Compute the block for one utterance, (frames, width), in its place."""
        table = CONTEXT.table_for(
            self, partial(self._whole_table, rows), len(rows), self.qkv.codes.data_ptr()
        )
        for operation, argument in PLACES_OF_ROWS:
            table.words[operation, argument] = rows.data_ptr()
        CONTEXT.run_table(table)

    def _whole_table(self, rows: Tensor) -> CallTable:
        op, frames, inner = ProjectHeadsOp, len(rows), self.out.in_features
        q, attended = CONTEXT.floats("q", frames, inner), CONTEXT.floats("attended", frames, inner)
        by_head = q.view(frames, self.heads, HEAD_WIDTH).transpose(0, 1)
        attend, attend_bytes = attention_arguments(by_head, None, None, attended)
        packed = ("K_CODES", "K_SCALES", "V_CODES", "V_SCALES")
        args: dict[Any, Any] = {op[name]: attend[FlowAttentionOp[name]] for name in packed} | {
            op.X: rows, op.Q: q, op.W_CODES: self.qkv.codes, op.W_SCALES: self.qkv.scales, op.BIAS: self.qkv.bias,
            op.NORM_WEIGHT: self.norm1.weight, op.NORM_BIAS: self.norm1.bias, op.ROWS: frames,
            op.K: self.qkv.in_features, op.HEADS: self.heads,
        }  # fmt: skip
        calls = [
            (RenderOpcode.PROJECT_HEADS, args),
            (RenderOpcode.ATTENTION, attend),
            *self._after_attention(attended, rows),
        ]
        sizes = self.thread_bytes, attend_bytes, project_scratch_bytes(self.qkv.in_features)
        return CallTable(operation_table(calls), thread_bytes=max(sizes))

    def _after_attention(self, attended: Tensor, rows: Tensor) -> list[KernelCall]:
        """Return the rest of the block, some rows at a time, so that what is between its layers stays in a cache."""
        rows_of_all = torch.get_num_threads() * ROWS_PER_PASS
        inner = CONTEXT.floats("inner", rows_of_all, self.up.out_features + LOCAL_PADDING)
        op = RowsLinearOp
        (opcode, out), (_, up), (_, down) = (
            self.out.operation(attended, rows, epilogue=RowsEpilogue.ADD),
            self.up.operation(rows, inner, norm=self.norm3, epilogue=RowsEpilogue.GELU),
            self.down.operation(inner, rows, epilogue=RowsEpilogue.ADD),
        )
        linked = RenderOpcode.LINKED
        return [
            (opcode, {**out, op.LINKS: 2}),
            (linked, {**up, op.OUT_IS_LOCAL: 1}),
            (linked, {**down, op.X_IS_LOCAL: 1, op.INPUT_ROWS: len(rows)}),
        ]


WHOLE_BLOCKS: Final = (Int8TransformerBlock, Int8ResnetBlock, Int8ConvBlock)
"""Blocks that are replaced with all of their layers, the largest first."""


def int8_flow(plain: Flow) -> Flow:
    """Return a flow with int8 layers that shares everything else."""
    estimator = plain.decoder["estimator"]
    # Embeddings of time need float32, and their products are small.
    times = [part for name, part in estimator.named_modules() if "time_" in name or name.endswith(".mlp")]
    decoder = nn.ModuleDict({"estimator": with_int8_layers(estimator, times)})
    return with_parts(plain, decoder=decoder, encoder=with_int8_layers(plain.encoder))


def with_int8_layers(net: Net, excluded: Sequence[nn.Module] = ()) -> Net:
    """Return a copy in which the layers that fit are replaced and everything else is shared."""
    copies: dict[int, Any] = {id(weight): weight for weight in (*net.parameters(), *net.buffers())}
    kept = {id(inner) for part in excluded for inner in part.modules()}
    for layer in net.modules():
        if id(layer) in kept:
            continue
        if Int8Linear.fits(layer):
            copies[id(layer)] = Int8Linear(layer)  # type: ignore[arg-type]
        elif Int8RowsConv1d.fits(layer):
            copies[id(layer)] = Int8RowsConv1d(layer)  # type: ignore[arg-type]
        elif Int8Conv1d.fits(layer):
            copies[id(layer)] = Int8Conv1d(layer)  # type: ignore[arg-type]
        elif whole := next((block for block in WHOLE_BLOCKS if block.fits(layer)), None):
            copies[id(layer)] = whole(layer)  # type: ignore[arg-type]
            kept |= {id(inner) for inner in layer.modules()}
        elif isinstance(layer, AttentionProduct):
            copies[id(layer)] = Int8Attend()
        elif isinstance(layer, Snake):
            copies[id(layer)] = FusedSnake(layer)
    return copy.deepcopy(net, copies)
