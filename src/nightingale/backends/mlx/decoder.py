"""The decoder of the MLX backend: a block of steps is launched, and read while the next block runs.

Tokens arrive late by a block, and more may be sampled for an utterance that has ended. Rows are matched by their
`Decoding`: a token that was sampled for an attempt that was given up, or for a request that was cancelled, is
dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from nightingale.backends.base import Decoder, ModelSource, Setup
from nightingale.backends.mlx.arrays import enter_thread, runs_on_gpu
from nightingale.backends.mlx.t3.static_decode import StaticDecodeLoop, TokenBlock
from nightingale.backends.mlx.t3.t3_network import MlxT3
from nightingale.backends.mlx.t3.transformer import Precision
from nightingale.backends.mlx.weight_files import t3_weights
from nightingale.decoding.decoding import Decoding
from nightingale.decoding.host_decoder import DecodeRow, Tokens
from nightingale.decoding.kv_budget import KVBudget

STEPS_AHEAD: Final = 8
"""Decode steps per launch, and per read by the host."""


class MlxDecoder:
    """Decode on MLX's device. In float32 a seed gives the tokens of `HostDecoder`."""

    max_prefills = 4

    def __init__(
        self, loops: Sequence[StaticDecodeLoop], kv_budget: KVBudget, *, max_new_tokens: int
    ) -> None:
        """loops: one for all slots, or one for each slot, so that no utterance depends on another."""
        self._loops, self._max_new_tokens = list(loops), max_new_tokens
        self.kv_budget = kv_budget
        self._alone = len(self._loops) > 1
        self._running: dict[int, Decoding] = {}
        """The utterance of each slot in use."""
        self._pending: list[tuple[TokenBlock, Mapping[Decoding, int]]] = []
        """Tokens to come, and the row of each utterance when they were launched."""
        self._unread: dict[Decoding, list[int]] = {}
        """Tokens of utterances that took no part in the call that read them."""

    def start(self) -> None:
        enter_thread()

    def prefill(self, slot: int, decoding: Decoding) -> list[int]:
        loop, row = self._place(slot)
        prompt = loop.t3.embed_prompt(decoding.prompt, max_new_tokens=self._max_new_tokens)
        loop.prefill(row, prompt, decoding)
        self._running[slot] = decoding
        return []

    def decode(self, rows: Sequence[DecodeRow]) -> list[Tokens]:
        """Launch a block of steps, and return the tokens of the one before.

        All utterances advance, also those that are not among `rows`, whose tokens are returned later.
        """
        earlier, self._pending = self._pending, self._launch(rows)
        current = set(self._running.values())
        for block, utterances in earlier:
            tokens = block.take()
            for decoding, row in utterances.items():
                if decoding in current:
                    self._unread.setdefault(decoding, []).extend(tokens[row])
        return [_checked(self._unread.pop(row.decoding, [])) for row in rows]

    def release(self, slot: int) -> None:
        loop, row = self._place(slot)
        loop.release(row)
        if (decoding := self._running.pop(slot, None)) is not None:
            self._unread.pop(decoding, None)

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

    def _launch(self, rows: Sequence[DecodeRow]) -> list[tuple[TokenBlock, Mapping[Decoding, int]]]:
        if self._alone:
            return [(self._loops[row.slot].launch(STEPS_AHEAD), {row.decoding: 0}) for row in rows]
        return [(self._loops[0].launch(STEPS_AHEAD), {own: slot for slot, own in self._running.items()})]

    def _place(self, slot: int) -> tuple[StaticDecodeLoop, int]:
        return (self._loops[slot], 0) if self._alone else (self._loops[0], slot)


def _checked(tokens: list[int]) -> Tokens:
    if any(token < 0 for token in tokens):
        return ArithmeticError("T3's logits are not finite numbers")
    return tokens


def open_decoder(source: ModelSource, setup: Setup) -> Decoder:
    """Open T3; its weights are read now."""
    info = source.info
    precision = Precision.named(setup.precision, gpu=runs_on_gpu())
    t3 = source.shared(
        f"t3-mlx/{setup.precision}", lambda: MlxT3(info.preset.t3, t3_weights(source), precision)
    )
    loops = [
        StaticDecodeLoop(t3, order=info.defaults.sampler, capacity=info.max_positions)
        for _ in range(1 if setup.profile.batched else setup.slots)
    ]
    budget = KVBudget.dense(info.preset.t3, info.defaults, itemsize=t3.dtype.size)
    return MlxDecoder(loops, budget, max_new_tokens=info.defaults.max_new_tokens)
