"""The decoder of the MLX backend: a block of steps is launched, and read while the next block runs.

Tokens arrive late by a block, and more may be sampled for an utterance that has ended. Rows are matched by their
`Decoding`: a token that was sampled for an attempt that was given up, or for a request that was cancelled, is
dropped.

A step that fails, such as by an error of Metal, fails for every utterance in it. Their states are lost, but a seed
gives the same tokens again: each utterance is decoded once more from its prompt, and what it had returned before
is skipped. One that fails a second time ends with the error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from nightingale.backends.base import Decoder, ModelSource, Setup
from nightingale.backends.mlx.arrays import OwnThread, runs_on_gpu
from nightingale.backends.mlx.t3.prepared_layers import PreparedLayers
from nightingale.backends.mlx.t3.static_decode import StaticDecodeLoop, TokenBlock
from nightingale.backends.mlx.t3.t3_network import MlxT3
from nightingale.backends.mlx.t3.transformer import Precision
from nightingale.backends.mlx.weight_files import t3_weights
from nightingale.decoding.decoding import Decoding
from nightingale.decoding.host_decoder import DecodeRow, Tokens
from nightingale.decoding.kv_cache_size import KVCacheSize

STEPS_AHEAD: Final = 8
"""Decode steps per launch, and per read by the host."""

log = logging.getLogger(__name__)


class MlxDecoder:
    """Decode on MLX's device. In float32 a seed gives the tokens of `HostDecoder`."""

    max_prefills = 4
    traces_attention = True

    def __init__(
        self, loops: Sequence[StaticDecodeLoop], kv_cache_size: KVCacheSize, *, max_new_tokens: int
    ) -> None:
        """loops: one for all slots, or one for each slot, so that no utterance depends on another."""
        self._loops, self._max_new_tokens = list(loops), max_new_tokens
        self.kv_cache_size = kv_cache_size
        self._alone = len(self._loops) > 1
        self._thread = OwnThread()
        self._running: dict[int, Decoding] = {}
        """The utterance of each slot in use."""
        self._pending: dict[StaticDecodeLoop, tuple[TokenBlock, Mapping[Decoding, int]]] = {}
        """Tokens to come, and the row of each utterance when they were launched."""
        self._unread: dict[Decoding, list[int]] = {}
        """Tokens that were read and not returned yet."""
        self._returned: dict[Decoding, int] = {}
        self._known: dict[Decoding, int] = {}
        """Tokens to skip, of utterances that are decoded once more."""
        self._failed: dict[Decoding, Exception] = {}

    def start(self) -> None:
        self._thread.enter()

    def prefill(self, slot: int, decoding: Decoding) -> list[int]:
        self._thread.check()
        self._forget(slot)
        self._read_prompt(slot, decoding)
        self._running[slot] = decoding
        return []

    def decode(self, rows: Sequence[DecodeRow]) -> list[Tokens]:
        """Launch a block of steps, and return the tokens of the one before.

        All utterances advance, also those that are not among `rows`, whose tokens are returned later.
        """
        self._thread.check()
        earlier, self._pending = self._pending, {}
        loops = dict.fromkeys(self._place(row.slot)[0] for row in rows if row.decoding not in self._failed)
        for loop in {**loops, **earlier}:
            try:
                if loop in loops:
                    self._pending[loop] = loop.launch(STEPS_AHEAD), self._utterances(loop)
                if loop in earlier:
                    self._take(*earlier[loop])
            except Exception as error:
                self._recover(loop, error)
        return [self._tokens_of(row.decoding) for row in rows]

    def release(self, slot: int) -> None:
        loop, row = self._place(slot)
        loop.release(row)
        self._forget(slot)

    def move(self, source: int, target: int) -> None:
        if self._alone:
            self._loops[source], self._loops[target] = self._loops[target], self._loops[source]
        else:
            self._loops[0].move(source, target)
        self._running[target] = self._running.pop(source)

    def reset(self, slot: int) -> None:
        """Do nothing: the next utterance gets a KV cache of its own."""

    def prepare(self) -> bool:
        return False

    def _read_prompt(self, slot: int, decoding: Decoding) -> None:
        loop, row = self._place(slot)
        prompt = loop.t3.embed_prompt(decoding.prompt, max_new_tokens=self._max_new_tokens)
        loop.prefill(row, prompt, decoding)
        if (trace := decoding.prompt.trace) is not None:
            trace.update = partial(loop.t3.trace, prompt[:1], trace)

    def _take(self, block: TokenBlock, utterances: Mapping[Decoding, int]) -> None:
        tokens, current = block.take(), set(self._running.values())
        for decoding, row in utterances.items():
            if decoding in current:
                known = min(self._known.get(decoding, 0), len(tokens[row]))
                if known:
                    self._known[decoding] -= known
                self._unread.setdefault(decoding, []).extend(tokens[row][known:])

    def _recover(self, loop: StaticDecodeLoop, error: Exception) -> None:
        """Read the prompts of a loop's utterances again, after a step that failed."""
        self._pending.pop(loop, None)
        loop.clear()
        slots = sorted(slot for slot in self._running if self._place(slot)[0] is loop)
        again = [self._running[slot] for slot in slots]
        first_line, _, _ = str(error).partition("\n")
        log.warning("a decode step of MLX failed (%s); %d utterances are affected", first_line, len(slots))
        try:
            if any(decoding in self._known for decoding in again):
                raise error
            for slot, decoding in zip(slots, again, strict=True):
                self._read_prompt(slot, decoding)
                unread = len(self._unread.get(decoding, ()))
                self._known[decoding] = self._returned.get(decoding, 0) + unread
        except Exception as fault:
            loop.clear()
            self._failed |= dict.fromkeys(again, fault)

    def _tokens_of(self, decoding: Decoding) -> Tokens:
        if decoding in self._failed:
            return self._failed[decoding]
        tokens = self._unread.pop(decoding, [])
        self._returned[decoding] = self._returned.get(decoding, 0) + len(tokens)
        return _checked(tokens)

    def _forget(self, slot: int) -> None:
        if (decoding := self._running.pop(slot, None)) is not None:
            for kept in (self._unread, self._returned, self._known, self._failed):
                kept.pop(decoding, None)

    def _utterances(self, loop: StaticDecodeLoop) -> dict[Decoding, int]:
        places = {decoding: self._place(slot) for slot, decoding in self._running.items()}
        return {decoding: row for decoding, (own, row) in places.items() if own is loop}

    def _place(self, slot: int) -> tuple[StaticDecodeLoop, int]:
        return (self._loops[slot], 0) if self._alone else (self._loops[0], slot)


def _checked(tokens: list[int]) -> Tokens:
    if any(token < 0 for token in tokens):
        return ArithmeticError("T3's logits are not finite numbers")
    return tokens


def load_t3(source: ModelSource, name: str) -> MlxT3:
    """Read T3 in a precision. Quantized layers are stored, and read the next time."""
    precision = Precision.named(name, gpu=runs_on_gpu())
    prepared = PreparedLayers.of(source, f"{name} {precision.dtype}") if precision.bits else None
    t3 = MlxT3(source.info.preset.t3, t3_weights(source), precision._replace(prepared=prepared))
    if prepared is not None:
        prepared.save()
    return t3


def open_decoder(source: ModelSource, setup: Setup) -> Decoder:
    """Open T3; its weights are read now."""
    info = source.info
    t3 = source.shared(f"t3-mlx/{setup.precision}", lambda: load_t3(source, setup.precision))
    loops = [
        StaticDecodeLoop(t3, order=info.defaults.sampler, capacity=info.max_positions)
        for _ in range(1 if setup.profile.batched else setup.slots)
    ]
    kv_cache_size = KVCacheSize(info.preset.t3, itemsize=t3.dtype.size)
    return MlxDecoder(loops, kv_cache_size, max_new_tokens=info.defaults.max_new_tokens)
