"""Sampling on the host: the decoder of every backend whose runner returns logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nightingale.decoding.decoding import Decoding
from nightingale.decoding.kv_budget import KVBudget
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
        self, runner: LogitsRunner, kv_budget: KVBudget, *, on_start: Callable[[], None] | None = None
    ) -> None:
        """on_start: called once in the thread that decodes, for example to set its thread count."""
        self.runner, self.kv_budget, self._on_start = runner, kv_budget, on_start

    @property
    def kv_bytes(self) -> int:
        return self.runner.kv_bytes

    def start(self) -> None:
        if self._on_start is not None:
            self._on_start()

    def prefill(self, slot: int, decoding: Decoding) -> list[int]:
        logits = self.runner.prefill(slot, decoding.prompt, max_tokens=decoding.budget)
        return [decoding.sample(logits)]

    def decode(self, rows: Sequence[DecodeRow]) -> list[Tokens]:
        inputs = [StepInput(row.slot, row.last_token, row.decoding.appended) for row in rows]
        return [
            self._sample(row.decoding, logits) for row, logits in zip(rows, self._logits(inputs), strict=True)
        ]

    def _logits(self, inputs: list[StepInput]) -> list[Logits | Exception]:
        """Step all utterances together; if that fails, one by one, to find the one that is at fault."""
        try:
            return list(self.runner.step(inputs))
        except Exception:
            return [self._logits_alone(one) for one in inputs]

    def _logits_alone(self, one: StepInput) -> Logits | Exception:
        try:
            return self.runner.step([one])[0]
        except Exception as error:
            return error

    def _sample(self, decoding: Decoding, logits: Logits | Exception) -> Tokens:
        if isinstance(logits, Exception):
            return logits
        try:
            return [decoding.sample(logits)]
        except Exception as error:
            return error

    def release(self, slot: int) -> None:
        self.runner.release(slot)

    def move(self, source: int, target: int) -> None:
        self.runner.move(source, target)

    def reset(self, slot: int) -> None:
        self.runner.reset(slot)
