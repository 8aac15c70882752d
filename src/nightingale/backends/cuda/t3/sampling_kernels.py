"""Triton kernels that turn logits into the next tokens: what batched_sampling.py does by forty library calls.

    _process_kernel  logits (slots, rows, vocab)   guidance, repetition penalty, temperature, cuts
    _draw_kernel     processed (slots, vocab)      the next token of each slot, and its state after it
    _embed_kernel    tokens (slots,)               the embedding of each row

One program of the first kernel holds all logits of a slot. Top-k and top-p do not sort: the lowest logit that
is kept is found bit by bit, from the number and the mass of the logits above it.

Every product and quotient is rounded as by the library, so in float32 the tokens are the same
(tests/backends/cuda/test_sampling_kernels.py). Random numbers: see random_kernels.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nightingale.backends.cuda.t3.batched_sampling import INVALID_LOGITS, NO_TOKEN, DecodeState, SamplerOrder
from nightingale.backends.cuda.triton_support import launch
from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH
from nightingale.models.chatterbox.t3.model import T3

BLOCK = 2048


@triton.jit
def _penalized(x, seen, penalty):
    return tl.where(seen, tl.where(x < 0, x * penalty, tl.div_rn(x, penalty)), x)


@triton.jit
def _ordered(x):
    """Return unsigned numbers in the order of the float32 values."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 != 0, 0xFFFFFFFF - bits, bits | 0x80000000)


@triton.jit
def _largest(order, mass, limit):
    """Return the largest number such that the mass of what is ordered before it is at most `limit`."""
    found = tl.full([], 0, tl.uint32)
    for step in range(32):
        bit = (tl.full([], 1, tl.uint32) << (31 - step)).to(tl.uint32)
        before = tl.sum(tl.where(order < (found | bit), mass, 0), axis=0)
        found = tl.where(before <= limit, found | bit, found)
    return tl.minimum(found, tl.max(order, axis=0))  # the most likely id is always kept


@triton.jit
def _top_k_top_p(x, real, top_k, top_p, vocab):
    """Return the logits with -inf outside of top-k, then outside of top-p of what is left."""
    order = _ordered(x)
    if top_k < vocab:
        # As many ids as this may come before the lowest that is kept.
        least = _largest(order, real.to(tl.int32), vocab - top_k)
        x = tl.where(order < least, float("-inf"), x)
    if top_p < 1.0:
        share = tl.where(real, tl.exp(x.to(tl.float64) - tl.max(x, axis=0).to(tl.float64)), 0.0)
        share = share / tl.sum(share, axis=0)
        least = _largest(order, share, 1.0 - top_p)
        x = tl.where(order < least, float("-inf"), x)
    return x


@triton.jit
def _process_kernel(
    logits_ptr, seen_ptr, cfg_ptr, penalty_ptr, temperature_ptr, log_min_p_ptr, top_k_ptr, top_p_ptr,
    out_ptr, valid_ptr, vocab,
    ROWS: tl.constexpr, TURBO: tl.constexpr, CUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Apply the steps between the head and the draw in the family's order, to one slot."""
    slot = tl.program_id(0)
    ids = tl.arange(0, BLOCK)
    real = ids < vocab
    row_ptr = logits_ptr + slot * ROWS * vocab + ids
    x = tl.load(row_ptr, mask=real, other=0.0)
    if ROWS == 2:
        x = x + tl.load(cfg_ptr + slot) * (x - tl.load(row_ptr + vocab, mask=real, other=0.0))
    x = tl.where(real, x, float("-inf"))
    seen = tl.load(seen_ptr + slot * vocab + ids, mask=real, other=0).to(tl.int1)
    penalty, temperature = tl.load(penalty_ptr + slot), tl.load(temperature_ptr + slot)
    if not TURBO:
        x = tl.div_rn(_penalized(x, seen, penalty), temperature)
        least = tl.max(x, axis=0) + tl.load(log_min_p_ptr + slot)
        x = tl.where(x < least, float("-inf"), x)
    else:
        x = tl.div_rn(x, temperature)
    if CUTS:
        top_k, top_p = tl.load(top_k_ptr + slot).to(tl.int32), tl.load(top_p_ptr + slot)
        x = _top_k_top_p(x, real, top_k, top_p, vocab)
    if TURBO:
        x = _penalized(x, seen, penalty)
    tl.store(out_ptr + slot * vocab + ids, x, mask=real)
    highest = tl.max(x, axis=0)
    wrong = tl.sum((real & (x != x)).to(tl.int32), axis=0) > 0
    tl.store(valid_ptr + slot, (highest > float("-inf")) & (highest < float("inf")) & (wrong == 0))


@triton.jit
def _draw_kernel(
    logits_ptr, valid_ptr, key_ptr, greedy_ptr, budget_ptr, seen_ptr, sampled_ptr, running_ptr, recent_ptr,
    cursor_ptr, token_ptr, vocab, recent_stride,
    START: tl.constexpr, STOP: tl.constexpr, NONE: tl.constexpr, INVALID: tl.constexpr,
    TURBO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """token[slot] = argmax over ids of logit - log(-log(uniform(key, draw, id))), or of logit if greedy.

    Then do what `DecodeState.append` does, but for the cursor, which all slots read.
    """
    slot = tl.program_id(0)
    key, greedy = tl.load(key_ptr + slot), tl.load(greedy_ptr + slot).to(tl.int1)
    number = tl.load(sampled_ptr + slot)
    draw = tl.zeros([BLOCK], tl.int64) + number
    zero = tl.zeros([BLOCK], tl.uint32)
    best_value = tl.full([BLOCK], float("-inf"), tl.float64)
    best = tl.arange(0, BLOCK)
    for start in range(0, vocab, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        logits = tl.load(logits_ptr + slot * vocab + ids, mask=ids < vocab, other=float("-inf"))
        logits = tl.where(logits == logits, logits, float("-inf"))  # no NaN: the id must be a valid one
        c0, c1, c2, c3 = tl.philox(key, (ids >> 2).to(tl.uint32), draw.to(tl.uint32), zero, zero)
        lane = ids & 3
        bits = tl.where(lane < 2, tl.where(lane == 0, c0, c1), tl.where(lane == 2, c2, c3))
        uniform = (bits.to(tl.float64) + 0.5) * 2.3283064365386963e-10
        value = logits.to(tl.float64) - tl.where(greedy, 0.0, tl.log(-tl.log(uniform)))
        best = tl.where(value > best_value, ids, best)
        best_value = tl.maximum(value, best_value)
    # One reduction for all: the lowest id among equals, as argmax has it.
    best_id = tl.min(tl.where(best_value == tl.max(best_value, axis=0), best, vocab), axis=0)
    tl.store(token_ptr + slot, best_id.to(tl.int64))
    stopped = best_id == STOP
    if TURBO:
        # Its penalty counts the start token for the first draw only, which does not stop.
        stopped = stopped & (number > 0)
        if number == 0:
            tl.store(seen_ptr + slot * vocab + START, False)
    tl.debug_barrier()  # the token may be the start token
    tl.store(seen_ptr + slot * vocab + best_id, True)
    running, valid = tl.load(running_ptr + slot).to(tl.int1), tl.load(valid_ptr + slot).to(tl.int1)
    fresh = tl.where(running, tl.where(valid, best_id, INVALID), NONE)
    tl.store(recent_ptr + tl.load(cursor_ptr) * recent_stride + slot, fresh.to(tl.int64))
    number += running.to(tl.int64)
    tl.store(sampled_ptr + slot, number)
    tl.store(running_ptr + slot, running & valid & ~stopped & (number < tl.load(budget_ptr + slot)))


@triton.jit
def _embed_kernel(
    token_ptr, sampled_ptr, lengths_ptr, cursor_ptr, tokens_ptr, speech_ptr, position_ptr, out_ptr,
    lengths_out_ptr, WIDTH: tl.constexpr, ROWS: tl.constexpr, SPEECH: tl.constexpr, POSITION: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out[row] = the embedding of the token of the row's slot, with that of its position.

    SPEECH: positions after the start token; POSITION: among all cached positions. The length of each row is
    written out too, and the cursor is moved.
    """
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    slot, wide = row // ROWS, at < WIDTH
    token, length = tl.load(token_ptr + slot), tl.load(lengths_ptr + slot)
    x = tl.load(tokens_ptr + token * WIDTH + at, mask=wide, other=0.0)
    kind = x.dtype
    if SPEECH:
        other = tl.load(speech_ptr + tl.load(sampled_ptr + slot) * WIDTH + at, mask=wide, other=0.0)
        x = (x.to(tl.float32) + other.to(tl.float32)).to(kind)
    if POSITION:
        other = tl.load(position_ptr + length * WIDTH + at, mask=wide, other=0.0)
        x = (x.to(tl.float32) + other.to(tl.float32)).to(kind)
    tl.store(out_ptr + row * WIDTH + at, x, mask=wide)
    tl.store(lengths_out_ptr + row, length)
    if row == 0:
        tl.store(cursor_ptr, tl.load(cursor_ptr) + 1)


def sample(state: DecodeState, *, order: SamplerOrder, cuts: bool) -> Tensor:
    """Sample the next token of each slot, (slots,) int64, and append it; the cursor is left for `embed`.

    cuts: apply top-k and top-p.
    """
    slots, rows, vocab = state.logits.shape
    processed = torch.empty(slots, vocab, dtype=torch.float32, device=state.logits.device)
    valid = torch.empty(slots, dtype=torch.bool, device=processed.device)
    launch(
        _process_kernel, (slots,),
        state.logits, state.seen, state.cfg_weight, state.penalty, state.temperature, state.log_min_p,
        state.top_k, state.top_p, processed, valid, vocab,
        ROWS=rows, TURBO=order == "turbo", CUTS=cuts, BLOCK=triton.next_power_of_2(vocab),
        num_warps=32, enable_fp_fusion=False,
    )  # fmt: skip
    tokens = torch.empty(slots, dtype=torch.int64, device=processed.device)
    launch(
        _draw_kernel, (slots,),
        processed, valid, state.key, state.greedy, state.budget, state.seen, state.sampled, state.running,
        state.recent, state.cursor, tokens, vocab, state.recent.stride(0),
        START=START_SPEECH, STOP=STOP_SPEECH, NONE=NO_TOKEN, INVALID=INVALID_LOGITS,
        TURBO=order == "turbo", BLOCK=BLOCK, num_warps=16, enable_fp_fusion=False,
    )  # fmt: skip
    return tokens


def embed(t3: T3, tokens: Tensor, state: DecodeState, positions: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the embeddings (slots · rows, width) after `sample`, and the length of each row.

    positions: GPT-2's position embeddings, if it has any.
    """
    table, rows = t3.speech_emb.weight, state.logits.shape[1]
    width, count = table.shape[1], rows * len(tokens)
    out = torch.empty(count, width, dtype=table.dtype, device=table.device)
    lengths = torch.empty(count, dtype=torch.int64, device=table.device)
    learned = t3.config.learned_positions is not None
    speech = t3.speech_pos_emb.emb.weight if learned else table
    launch(
        _embed_kernel, (count,),
        tokens, state.sampled, state.lengths, state.cursor, table, speech, table if positions is None else positions,
        out, lengths, WIDTH=width, ROWS=rows, SPEECH=learned, POSITION=positions is not None,
        BLOCK=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out, lengths
