"""Triton kernels that turn logits into the next tokens: what batched_sampling.py does by forty library calls.

    _process_kernel  logits (slots, rows, vocab)   guidance, repetition penalty, temperature, top-k and top-p
    _draw_kernel     processed (slots, vocab)      min-p, and the best id of each part of the vocabulary
    _append_kernel   best ids (slots, parts)       the next token of each slot, its state and its embedding

The vocabulary is divided among programs, so that a step of one slot does not wait for one processor. Only top-k and
top-p need all logits of a slot in one program. They do not sort: the lowest logit that is kept is found bit by bit,
from the number and the mass of the logits above it.

Every product and quotient is rounded as by the library, so in float32 the tokens are the same
(tests/backends/cuda/test_sampling_kernels.py). Random numbers: see random_kernels.py. PDL: see t3_kernels.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from nightingale.backends.cuda.t3.batched_sampling import INVALID_LOGITS, NO_TOKEN, DecodeState, SamplerOrder
from nightingale.backends.cuda.triton_support import empty_output, launch, pdl_options
from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH
from nightingale.models.chatterbox.t3.model import T3

PART = 1024
"""Ids of one program."""


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
    out_ptr, highest_ptr, vocab,
    ROWS: tl.constexpr, TURBO: tl.constexpr, CUTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Apply the steps between the head and the draw, but min-p, in the family's order to a part of a slot's logits.

    highest (slots, parts): the highest logit of each part, NaN if there is one. CUTS: the part is the whole, and min-p,
    which comes before top-k and top-p, is applied too.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    slot = tl.program_id(0)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
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
        if CUTS:
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
    wrong = tl.max((real & (x != x)).to(tl.int32), axis=0)
    highest = tl.max(tl.where(x == x, x, float("-inf")), axis=0)
    place = highest_ptr + slot * tl.num_programs(1) + tl.program_id(1)
    tl.store(place, tl.where(wrong > 0, float("nan"), highest))


@triton.jit
def _draw_kernel(
    logits_ptr, highest_ptr, log_min_p_ptr, key_ptr, greedy_ptr, sampled_ptr, cursor_ptr, value_ptr, best_ptr, vocab,
    parts, PARTS: tl.constexpr, MIN_P: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """best[slot, part] = argmax over its ids of logit - log(-log(uniform(key, draw, id))), or of logit if greedy.

    The cursor, which no slot reads here, is moved.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    slot, part = tl.program_id(0), tl.program_id(1)
    if slot + part == 0:
        tl.store(cursor_ptr, tl.load(cursor_ptr) + 1)
    key, greedy = tl.load(key_ptr + slot), tl.load(greedy_ptr + slot).to(tl.int1)
    ids = part * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + slot * vocab + ids, mask=ids < vocab, other=float("-inf"))
    if MIN_P:
        at = tl.arange(0, PARTS)
        highest = tl.load(highest_ptr + slot * parts + at, mask=at < parts, other=float("-inf"))
        least = tl.max(highest, axis=0) + tl.load(log_min_p_ptr + slot)
        logits = tl.where(logits < least, float("-inf"), logits)
    logits = tl.where(logits == logits, logits, float("-inf"))  # no NaN: the id must be a valid one
    draw, zero = tl.zeros([BLOCK], tl.int64) + tl.load(sampled_ptr + slot), tl.zeros([BLOCK], tl.uint32)
    c0, c1, c2, c3 = tl.philox(key, (ids >> 2).to(tl.uint32), draw.to(tl.uint32), zero, zero)
    lane = ids & 3
    bits = tl.where(lane < 2, tl.where(lane == 0, c0, c1), tl.where(lane == 2, c2, c3))
    uniform = (bits.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    value = logits.to(tl.float64) - tl.where(greedy, 0.0, tl.log(-tl.log(uniform)))
    highest_value = tl.max(value, axis=0)
    place = slot * tl.num_programs(1) + part
    tl.store(value_ptr + place, highest_value)
    # The lowest id among equals, as argmax has it.
    tl.store(best_ptr + place, tl.min(tl.where(value == highest_value, ids, vocab), axis=0))


@triton.jit
def _append_kernel(
    value_ptr, best_ptr, highest_ptr, budget_ptr, seen_ptr, sampled_ptr, running_ptr, lengths_ptr, recent_ptr,
    cursor_ptr, tokens_ptr, speech_ptr, position_ptr, out_ptr, lengths_out_ptr, vocab, recent_stride, drawn_parts,
    parts, DRAWN_PARTS: tl.constexpr, PARTS: tl.constexpr, START: tl.constexpr, STOP: tl.constexpr, NONE: tl.constexpr,
    INVALID: tl.constexpr, TURBO: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, SPEECH: tl.constexpr,
    POSITION: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Do what `DecodeState.append` does to one slot, and write the embedding and the length of its rows.

    An embedding is that of the token and of its position: after the start token, if SPEECH, or among all cached
    positions, if POSITION. The cursor is at the next step already.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    slot = tl.program_id(0)
    at = tl.arange(0, DRAWN_PARTS)
    values = tl.load(value_ptr + slot * drawn_parts + at, mask=at < drawn_parts, other=float("-inf"))
    bests = tl.load(best_ptr + slot * drawn_parts + at, mask=at < drawn_parts, other=vocab)
    token = tl.min(tl.where(values == tl.max(values, axis=0), bests, vocab), axis=0)
    at = tl.arange(0, PARTS)
    highest = tl.load(highest_ptr + slot * parts + at, mask=at < parts, other=float("-inf"))
    wrong = tl.max((highest != highest).to(tl.int32), axis=0)
    most = tl.max(tl.where(highest == highest, highest, float("-inf")), axis=0)
    valid = (most > float("-inf")) & (most < float("inf")) & (wrong == 0)
    number, length = tl.load(sampled_ptr + slot), tl.load(lengths_ptr + slot)
    stopped = token == STOP
    if TURBO:
        # Its penalty counts the start token for the first draw only, which does not stop.
        stopped = stopped & (number > 0)
        if number == 0:
            tl.store(seen_ptr + slot * vocab + START, False)
    tl.debug_barrier()  # the token may be the start token
    tl.store(seen_ptr + slot * vocab + token, True)
    running = tl.load(running_ptr + slot).to(tl.int1)
    fresh = tl.where(running, tl.where(valid, token, INVALID), NONE)
    tl.store(recent_ptr + (tl.load(cursor_ptr) - 1) * recent_stride + slot, fresh.to(tl.int64))
    number += running.to(tl.int64)
    running = running & valid & ~stopped & (number < tl.load(budget_ptr + slot))
    tl.store(sampled_ptr + slot, number)
    tl.store(running_ptr + slot, running)
    # A slot that has stopped writes to the same position of its KV cache again, which is never read.
    tl.store(lengths_ptr + slot, length + running.to(tl.int64))
    at = tl.arange(0, BLOCK)
    wide = at < WIDTH
    x = tl.load(tokens_ptr + token * WIDTH + at, mask=wide, other=0.0)
    kind = x.dtype
    if SPEECH:
        other = tl.load(speech_ptr + number * WIDTH + at, mask=wide, other=0.0)
        x = (x.to(tl.float32) + other.to(tl.float32)).to(kind)
    if POSITION:
        other = tl.load(position_ptr + length * WIDTH + at, mask=wide, other=0.0)
        x = (x.to(tl.float32) + other.to(tl.float32)).to(kind)
    for row in tl.static_range(ROWS):
        tl.store(out_ptr + (slot * ROWS + row) * WIDTH + at, x, mask=wide)
        tl.store(lengths_out_ptr + slot * ROWS + row, length)


class Drawn(NamedTuple):
    """The best id of each part of the vocabulary, (slots, parts) like its value; highest: the highest logits."""

    values: Tensor
    ids: Tensor
    highest: Tensor


def draw(state: DecodeState, *, order: SamplerOrder, cuts: bool) -> Drawn:
    """Draw the next token of each slot, which `append` takes. cuts: apply top-k and top-p."""
    (slots, rows, vocab), device, turbo = state.logits.shape, state.logits.device, order == "turbo"
    options, count = pdl_options(device), triton.cdiv(vocab, PART)
    parts = 1 if cuts else count
    processed = torch.empty(slots, vocab, dtype=torch.float32, device=device)
    highest = torch.empty(slots, parts, dtype=torch.float32, device=device)
    launch(
        _process_kernel, (slots, parts),
        state.logits, state.seen, state.cfg_weight, state.penalty, state.temperature, state.log_min_p,
        state.top_k, state.top_p, processed, highest, vocab,
        ROWS=rows, TURBO=turbo, CUTS=cuts, BLOCK=triton.next_power_of_2(vocab) if cuts else PART,
        num_warps=32 if cuts else 4, enable_fp_fusion=False, **options,
    )  # fmt: skip
    values = torch.empty(slots, count, dtype=torch.float64, device=device)
    best = torch.empty(slots, count, dtype=torch.int32, device=device)
    launch(
        _draw_kernel, (slots, count),
        processed, highest, state.log_min_p, state.key, state.greedy, state.sampled, state.cursor, values, best, vocab,
        parts, PARTS=triton.next_power_of_2(parts), MIN_P=not (turbo or cuts), BLOCK=PART,
        num_warps=8, enable_fp_fusion=False, **options,
    )  # fmt: skip
    return Drawn(values, best, highest)


def append(
    t3: T3, drawn: Drawn, state: DecodeState, positions: Tensor | None, *, order: SamplerOrder
) -> tuple[Tensor, Tensor]:
    """Append the drawn tokens; return the embeddings (slots · rows, width), and the length of each row.

    positions: GPT-2's position embeddings, if it has any.
    """
    table, (slots, rows, vocab) = t3.speech_emb.weight, state.logits.shape
    (_, drawn_parts), (_, parts), width = drawn.values.shape, drawn.highest.shape, table.shape[1]
    out = torch.empty(slots * rows, width, dtype=table.dtype, device=table.device)
    lengths = empty_output(slots * rows, dtype=torch.int64, device=table.device)
    learned = t3.config.learned_positions is not None
    speech = t3.speech_pos_emb.emb.weight if learned else table
    launch(
        _append_kernel, (slots,),
        *drawn, state.budget, state.seen, state.sampled, state.running, state.lengths, state.recent, state.cursor,
        table, speech, table if positions is None else positions, out, lengths, vocab, state.recent.stride(0),
        drawn_parts, parts, DRAWN_PARTS=triton.next_power_of_2(drawn_parts), PARTS=triton.next_power_of_2(parts),
        START=START_SPEECH, STOP=STOP_SPEECH, NONE=NO_TOKEN, INVALID=INVALID_LOGITS,
        TURBO=order == "turbo", WIDTH=width, ROWS=rows, SPEECH=learned, POSITION=positions is not None,
        BLOCK=triton.next_power_of_2(width), num_warps=4, **pdl_options(table.device),
    )  # fmt: skip
    return out, lengths
