"""Sampling on the host: the decoder of every backend whose runner returns logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nightingale.decoding.decoding import Decoding
from nightingale.decoding.kv_cache_size import KVCacheSize
from nightingale.decoding.runner import LogitsRunner, StepInput
from nightingale.decoding.sampling import Logits

Tokens = list[int] | Exception
"""New tokens of one utterance, in order and perhaps none, or the error that ended it."""


class DecodeRow(NamedTuple):
    """One utterance's part in a decode step."""

    slot: int
    decoding: Decoding
    last_token: int


class HostDecoder:
    """Decode one token a step and sample it with numpy: the reference implementation of `Decoder`."""

    max_prefills = 1  # a prefill takes long, and all other utterances wait for it

    def __init__(
        self, runner: LogitsRunner, kv_cache_size: KVCacheSize, *, on_start: Callable[[], None] | None = None
    ) -> None:
        """on_start: called once in the thread that decodes, for example to set its thread count."""
        self.runner, self.kv_cache_size, self.start = runner, kv_cache_size, on_start or (lambda: None)
        self.traces_attention = hasattr(runner, "traces")

    def prefill(self, slot: int, decoding: Decoding) -> list[int]:
        logits = self.runner.prefill(slot, decoding.prompt, max_tokens=decoding.budget)
        return [decoding.sample(logits)]

    def decode(self, rows: Sequence[DecodeRow]) -> list[Tokens]:
        inputs = [StepInput(row.slot, row.last_token, row.decoding.appended) for row in rows]
        try:
            stepped: Sequence[Logits | None] = self.runner.step(inputs)
        except Exception:
            stepped = [None] * len(rows)  # one by one below, to find the utterance that is at fault
        return [self._sample(*one) for one in zip(rows, inputs, stepped, strict=True)]

    def _sample(self, row: DecodeRow, step: StepInput, logits: Logits | None) -> Tokens:
        """Sample from the logits of a step; without them, make the step for this utterance alone."""
        try:
            return [row.decoding.sample(self.runner.step([step])[0] if logits is None else logits)]
        except Exception as error:
            return error

    def release(self, slot: int) -> None:
        self.runner.release(slot)

    def move(self, source: int, target: int) -> None:
        self.runner.move(source, target)

    def reset(self, slot: int) -> None:
        self.runner.reset(slot)

    def prepare(self) -> bool:
        return False
