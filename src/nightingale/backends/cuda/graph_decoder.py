"""The decoder of the CUDA backend: several decode steps are launched at a time and read while the next ones
run.

Tokens arrive late by as many steps as were launched, and a few more may be sampled for an utterance that has
ended. Rows are matched by their `Decoding`: a token that was sampled for an attempt that was given up, or for
a request that was cancelled, is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from nightingale.backends.base import Decoder, ModelSource, Setup
from nightingale.backends.cuda.t3.batched_sampling import needs_sorting
from nightingale.backends.cuda.t3.decode_loop import DecodeLoop, DecodePlan, PendingTokens
from nightingale.backends.torch.query_recorder import TracePass
from nightingale.backends.torch.runner import Conditionings, embed_prompt
from nightingale.backends.torch.weights import t3_weights
from nightingale.decoding.decoding import Decoding
from nightingale.decoding.host_decoder import DecodeRow, Tokens
from nightingale.decoding.kv_cache_size import KVCacheSize
from nightingale.decoding.lru import BytesLRU

STEPS_AHEAD = 4
"""Decode steps per launch."""
CONDITIONING_BYTES = 64 << 20
"""Limit of the embeddings of voices, which take 70 KB each."""


class GraphDecoder:
    """Decode on the GPU. In float32 a seed gives the tokens of `HostDecoder`, in any batch."""

    max_prefills = 16  # utterances that start together are rendered together
    traces_attention = True

    def __init__(self, loop: DecodeLoop, kv_cache_size: KVCacheSize, *, max_new_tokens: int) -> None:
        self._loop, self._max_new_tokens = loop, max_new_tokens
        self.kv_cache_size, self.kv_bytes = kv_cache_size, loop.kv_bytes
        self._conditionings: Conditionings = BytesLRU(CONDITIONING_BYTES)
        self._captures = loop.captures()
        self._running: dict[int, Decoding] = {}
        """The utterance of each slot in use."""
        self._places: dict[int, int] = {}
        """The loop's slot of each slot in use: `move` only renames it, and `_close_gaps` copies what must be."""
        self._pending: tuple[PendingTokens, Mapping[Decoding, int]] | None = None
        """Tokens to come, and the loop's slot of each utterance when they were launched."""
        self._unread: dict[Decoding, list[int]] = {}
        """Tokens of utterances that took no part in the call that read them."""

    def start(self) -> None: ...

    def prefill(self, slot: int, decoding: Decoding) -> list[int]:
        limit, cache = self._max_new_tokens, self._conditionings
        prompt = embed_prompt(self._loop.t3, decoding.prompt, max_new_tokens=limit, cache=cache)
        place = self._places[slot] if slot in self._places else self._free_place()
        self._loop.prefill(
            place, prompt, sampling=decoding.sampling, seed=decoding.seed, budget=decoding.budget
        )
        if (trace := decoding.prompt.trace) is not None:
            trace.update = TracePass(self._loop.t3, trace, prompt[:1]).update
        self._places[slot] = place
        self._forget(slot)
        self._running[slot] = decoding
        return []

    def decode(self, rows: Sequence[DecodeRow]) -> list[Tokens]:
        """Launch some steps, and return the tokens of those before.

        All utterances advance, also those that are not among `rows`, whose tokens are returned later.
        """
        earlier = self._pending
        self._close_gaps()
        launched = self._loop.launch(STEPS_AHEAD)
        self._pending = launched, {decoding: self._places[slot] for slot, decoding in self._running.items()}
        if earlier is not None:
            pending, places = earlier
            tokens, current = pending.take(), set(self._running.values())
            for decoding, place in places.items():
                if decoding in current:
                    self._unread.setdefault(decoding, []).extend(tokens[place])
        return [_checked(self._unread.pop(row.decoding, [])) for row in rows]

    def release(self, slot: int) -> None:
        if (place := self._places.pop(slot, None)) is not None:
            self._loop.release(place)
        self._forget(slot)

    def reset(self, slot: int) -> None:
        if slot in self._places:
            self._loop.reset(self._places[slot])

    def move(self, source: int, target: int) -> None:
        self._places[target] = self._places.pop(source)
        self._running[target] = self._running.pop(source)

    def _free_place(self) -> int:
        """Return the loop's first slot that is not in use."""
        used = set(self._places.values())
        return next(place for place in range(len(used) + 1) if place not in used)

    def _close_gaps(self) -> None:
        """Move utterances of the loop so that its slots in use have no gaps: none, if all have ended together."""
        for slot, place in self._places.items():
            if place >= len(self._places):
                free = self._free_place()
                self._loop.move(place, free)
                self._places[slot] = free

    def prepare(self) -> bool:
        """Capture one more graph: a capture takes a tenth of a second, too long for a listener."""
        with suppress(StopIteration):
            next(self._captures)()
            return True
        return False

    def _forget(self, slot: int) -> None:
        """Drop the utterance of a slot, and those of its tokens that were not read."""
        if (decoding := self._running.pop(slot, None)) is not None:
            self._unread.pop(decoding, None)


def _checked(tokens: list[int]) -> Tokens:
    if any(token < 0 for token in tokens):
        return ArithmeticError("T3's logits are not finite numbers")
    return tokens


def open_decoder(source: ModelSource, setup: Setup) -> Decoder:
    """Open T3 on the GPU; the graphs of one utterance are captured now."""
    info, slots = source.info, setup.slots
    t3 = t3_weights(source, setup.machine.device, setup.precision, owned=True)
    buckets = tuple(2**n for n in range(slots.bit_length()) if 2**n < slots)
    loop = DecodeLoop(
        t3,
        order=info.defaults.sampler,
        guided=info.guidable,
        capacity=info.max_positions,
        plan=DecodePlan(slots=(*buckets, slots), steps=STEPS_AHEAD),
    )
    loop.capture(sorting=needs_sorting(info.defaults.sampling))
    itemsize = t3.speech_head.weight.element_size()
    kv_cache_size = KVCacheSize(info.preset.t3, itemsize=itemsize)
    return GraphDecoder(loop, kv_cache_size, max_new_tokens=info.defaults.max_new_tokens)
