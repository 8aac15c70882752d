"""The two operations of a T3 step, `linear` and `attention`, and the words of their tables.

A step runs over `TOKENS` rows of activations: one new token of each sequence of a batch, or up to MAX_TOKENS
tokens of one prompt. The `SEQUENCES` table tells which rows belong to which row of the KV cache.

    linear      out = epilogue(norm(x) @ weight.T + bias)      int8_gemm.py
                (tokens, k) -> (tokens, n), by groups of 64 outputs
    attention   out = softmax(q k.T) v, and the cache grows    t3_attention.py
                (tokens, 3, heads, head_dim) -> (tokens, heads, head_dim), by heads

How work is divided
    linear      Every thread quantizes all rows for itself, which is sooner done than waited for. Each has
                a contiguous range of groups that it reads from front to back, as memory is read fastest. A
                thread that has finished steals groups from the end of the others' ranges, so that a thread
                which the operating system has interrupted holds up the barrier less:

                    for owner in (self, self + 1, …):
                        while fetch_add(claims[owner].TAKEN, 1) < size of the owner's range:
                            group = next from the front if owner is self
                                    else last - fetch_add(claims[owner].STOLEN, 1)
                            gemm(group); epilogue(group)

    attention   Threads claim the next (sequence, head) from one counter; their lengths differ.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from llvmlite import ir

from nightingale.backends.cpu.kernels import int8_gemm
from nightingale.backends.cpu.kernels.int8_gemm import GROUP_OUTPUTS, T3_BLOCKS, Epilogue, GemmScratch, Norm
from nightingale.backends.cpu.kernels.llvm_builder import F16, F32, I8, I64, WORDS
from nightingale.backends.cpu.kernels.t3_attention import emit_attention
from nightingale.backends.cpu.kernels.target import Target
from nightingale.backends.cpu.kernels.thread_pool import LINE, Arg, ClaimField, Operation, emit_thread_pool

SPIN_MS: Final = 2.0
"""Longer than it takes to sample a token and to come back with the next."""
MAX_TOKENS: Final = 64
"""Tokens of a prompt in one pass: their activations fit in a core's cache."""


class T3Opcode(IntEnum):
    LINEAR = 0
    ATTENTION = 1


class LinearOp(Arg):
    X = NORM_WEIGHT = NORM_BIAS = W_SCALES = BIAS = OUT = F32
    W_CODES = I8
    GROUPS = NORM = K = EPILOGUE = OUT_STRIDE = I64
    LOGITS_ONLY = I64
    """1: only for the last LOGITS_TOKENS rows."""


class AttentionOp(Arg):
    QKV = F32
    KEYS = VALUES = F16


class T3Job(Arg):
    TOKENS = SEQUENCE_COUNT = HEADS = I64
    LOGITS_TOKENS = I64
    """The last so many tokens get logits."""
    SEQUENCES = WORDS
    """Points to (SEQUENCE_COUNT, len(SequenceField)) words."""
    ATTENTION_OUT = COS = SIN = F32
    HEAD_STRIDE = I64
    """Elements of the keys of one head in one layer; its values have as many."""
    CACHE_ROW_STRIDE = I64
    """Elements of the keys of all heads and layers of a sequence."""


class SequenceField(IntEnum):
    """Words of a row of the `SEQUENCES` table."""

    FIRST_TOKEN = 0
    TOKENS = 1
    CACHE_ROW = 2
    PAST = 3
    """Positions that the cache holds."""


def scratch_bytes(max_k: int, positions: int, bits: int) -> int:
    """Return the bytes that a thread needs for rows of `max_k` inputs, or for logits of so many positions."""
    return max(GemmScratch.size_bytes(max_k, T3_BLOCKS[bits], MAX_TOKENS), 4 * positions)


def emit_t3_step(target: Target, *, head_dim: int, rotary: bool, bits: int = 8) -> ir.Module:
    """Emit the module of a T3 with heads of this size, rotary or learned positions, and weights of 8 or 4 bits."""
    module = ir.Module("t3")
    operations = {
        T3Opcode.LINEAR: _emit_linear(module, target, bits),
        T3Opcode.ATTENTION: _emit_attention(module, head_dim=head_dim, rotary=rotary),
    }
    emit_thread_pool(module, target, operations, spin_ms=SPIN_MS)
    return module


def _emit_linear(module: ir.Module, target: Target, bits: int) -> Operation:
    block = T3_BLOCKS[bits]
    quantize = {norm: int8_gemm.emit_quantize_row(module, target, norm, block) for norm in Norm}
    gemm = int8_gemm.Gemm(module, target, block, bits)
    epilogues = {epilogue: int8_gemm.emit_epilogue(module, epilogue) for epilogue in Epilogue}
    f = Operation(module, "linear")
    op, job = f.args(LinearOp), f.args(T3Job, f.job)
    k, threads, claims = op.k, f.threads, f.claims
    blocks, w_scales = k // block, op.w_scales.cast(F32 if bits == 8 else F16)
    scratch = GemmScratch(f.scratch, k, blocks, MAX_TOKENS)
    rows = (op.logits_only > 0).select(job.logits_tokens, job.tokens)
    x = op.x.offset((job.tokens - rows) * k)
    for norm, function in quantize.items():
        with f.if_then(op.norm.equals(norm)), f.loop(rows) as row:
            f.call(function, x.offset(row * k), op.norm_weight, op.norm_bias, *scratch.row(row), k, k)
    outputs = op.epilogue.equals(Epilogue.SWIGLU).select(f.const(GROUP_OUTPUTS // 2), GROUP_OUTPUTS)
    groups = (rows > 0).select(op.groups, 0)
    front, claimed = f.variable(f.const(0)), f.variable(f.const(0))
    with f.loop(threads) as turn, f.loop_forever():
        owner = (f.thread + turn) % threads
        first, end = groups * owner // threads, groups * (owner + 1) // threads
        claim = claims.offset(owner * LINE)
        f.break_if(claim.fetch_add(ClaimField.TAKEN, 1) >= end - first)
        with f.if_else(turn.equals(0)) as (own, stolen):
            with own:
                claimed.value = first + front.value
                front.value += 1
            with stolen:
                claimed.value = end - 1 - claim.fetch_add(ClaimField.STOLEN, 1)
        group = claimed.value
        at = group * GROUP_OUTPUTS
        w_codes = op.w_codes.offset(at * k * bits // 8)
        gemm.emit_call(f, w_codes, w_scales.offset(at * blocks), scratch, rows)
        bias, out = op.bias.offset(at), op.out.offset(group * outputs)
        for epilogue, function in epilogues.items():
            with f.if_then(op.epilogue.equals(epilogue)):
                f.call(function, scratch.product, bias, out, rows, op.out_stride)
    return f.ret()


def _emit_attention(module: ir.Module, *, head_dim: int, rotary: bool) -> Operation:
    attention = emit_attention(module, head_dim=head_dim, rotary=rotary)
    f = Operation(module, "attention_heads")
    op, job = f.args(AttentionOp), f.args(T3Job, f.job)
    width, claims, logits = job.heads * head_dim, f.claims, f.scratch.cast(F32)
    units = job.sequence_count * job.heads
    with f.loop_forever():
        unit = claims.fetch_add(ClaimField.TAKEN, 1)
        f.break_if(unit >= units)
        sequence, head = job.sequences.offset(unit // job.heads * len(SequenceField)), unit % job.heads
        first, tokens, row, past = (sequence[field] for field in SequenceField)
        cache = row * job.cache_row_stride + head * job.head_stride
        qkv = op.qkv.offset(first * width * 3 + head * head_dim)
        out = job.attention_out.offset(first * width + head * head_dim)
        keys, values = op.keys.offset(cache), op.values.offset(cache)
        f.call(attention, qkv, keys, values, job.cos, job.sin, out, logits, tokens, past, width)
    return f.ret()
