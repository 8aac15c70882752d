"""Speculative decoding that gives exactly the tokens of plain decoding.

Why it is exact. A token depends on the logits and on random numbers that belong to its position in the
utterance (philox.py). One pass of T3 over the last token and k drafted ones gives the logits of k + 1 tokens.
They are sampled in order, each with its own random numbers and the penalties of those before it, as if each
were a step of its own; the first token that differs from the draft ends the pass, since the logits after it
followed another token. Nothing is accepted or rejected at random. The tokens are those of plain decoding,
greedy or sampled, as far as a pass over several tokens gives the logits of as many steps (sums may round
differently, as in a batch).

When it pays. A pass over k + 1 tokens costs more than one over one token, drafting costs something too, and
both depend on the machine: `Costs`. `DraftLength` weighs them against the recent acceptance rate and asks for
fewer tokens, or none. It counts tokens and reads no clock, so a seed always gives the same passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakKeyDictionary

from nightingale.decoding.decoding import Decoding
from nightingale.decoding.drafts import Draft, DraftRequest
from nightingale.decoding.host_decoder import DecodeRow, HostDecoder, Tokens
from nightingale.decoding.kv_budget import KVBudget
from nightingale.decoding.runner import MAX_DRAFT_TOKENS, DraftVerifier, VerifyInput
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.config import STOP_SPEECH

INITIAL_ACCEPTANCE: Final = 0.6
"""The acceptance rate that is assumed until it has been measured."""
BEST_ACCEPTANCE: Final = 0.95
"""The highest lasting acceptance rate: a draft that would not pay with it is not used at all."""
ACCEPTANCE_DECAY: Final = 0.05
"""Weight of the latest drafted token in the running acceptance rate."""
RETRY_AFTER: Final = 40
"""Tokens after which a draft that did not pay is tried once more: the next sounds may be easier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs relative to a plain step of one utterance; benchmarks/speculative.py measures them."""

    several: float
    """A pass over more than one token, before its tokens are counted."""
    token: float
    """Each token after the first in a pass."""
    draft: float = 0.0
    """One drafted token."""
    sequential: bool = False
    """True if utterances with drafted tokens are verified one after the other."""
    by_twos: bool = False
    """True if an odd number of tokens costs as much as one more."""

    def row_by_row(self, rows: int) -> Costs:
        """Return the costs where a pass over several tokens takes an utterance's rows one after the other."""
        return replace(self, several=rows * self.several, token=rows * self.token)

    def of_pass(self, tokens: int) -> float:
        if tokens == 1:
            return 1.0
        paid = tokens + tokens % 2 if self.by_twos else tokens
        return self.several + self.token * (paid - 1)

    def gain(self, acceptance: float, count: int, batch: int) -> float:
        """Return the tokens per cost of a plain step when `count` tokens are drafted at this acceptance."""
        tokens = sum(acceptance**n for n in range(count + 1))
        one_by_one = self.sequential and count
        cost = batch * self.of_pass(count + 1) if one_by_one else self.of_pass(batch * (count + 1))
        return tokens / (cost / self.of_pass(batch) + count * self.draft)


TORCH_COSTS: Final = Costs(several=2.6, token=0.15)
"""PyTorch on a CPU, where a product with a few rows costs far more than one with a single row. Measured with
wren on a Neoverse-N1, as the other (docs/speculative.md)."""
ONNX_COSTS: Final = Costs(several=1.22, token=0.1, sequential=True, by_twos=True)
"""ONNX Runtime, which lays out weights for a few rows; sampling is included."""

CPU_COSTS: Final = {1: Costs(several=0.94, token=0.16, by_twos=True), 2: Costs(several=0.74, token=0.5)}
"""The CPU backend's int8 kernels by the rows of an utterance: Turbo's, and the multilingual model's."""
CUDA_COSTS: Final = {
    1: Costs(several=0.88, token=0.22, draft=0.22),
    2: Costs(several=1.35, token=0.02, draft=0.1),
}
"""CUDA graphs on an H200, by the rows of an utterance: benchmarks/gpu_drafts.py."""


class DraftLength:
    """Decide how many tokens to draft for one utterance."""

    def __init__(self, costs: Costs, *, longest: int = MAX_DRAFT_TOKENS) -> None:
        self._costs, self.longest = costs, longest
        self.acceptance = INITIAL_ACCEPTANCE
        self._plain = 0

    def next(self, batch: int) -> int:
        """Return how many tokens to draft now, with so many utterances in the batch."""
        best = self._best(self.acceptance, batch)
        self._plain = 0 if best else self._plain + 1
        if self._plain < RETRY_AFTER or not self._best(BEST_ACCEPTANCE, batch):
            return best
        self._plain = 0
        return 1

    def _best(self, acceptance: float, batch: int) -> int:
        gains = [self._costs.gain(acceptance, count, batch) for count in range(self.longest + 1)]
        return gains.index(max(gains))

    def update(self, drafted: int, accepted: int) -> None:
        """Learn from a pass. Tokens after the first rejected one say nothing about the draft."""
        for n in range(min(accepted + 1, drafted)):
            self.acceptance += ACCEPTANCE_DECAY * ((n < accepted) - self.acceptance)


class SpeculativeDecoder(HostDecoder):
    """A host decoder that verifies drafted tokens where that pays."""

    def __init__(
        self,
        runner: DraftVerifier,
        draft: Draft,
        kv_budget: KVBudget,
        *,
        costs: Costs,
        after: int,
        longest: int = MAX_DRAFT_TOKENS,
        on_start: Callable[[], None] | None = None,
    ) -> None:
        """after: tokens that are decoded one by one first, since the first audio must not wait for a draft.
        The runner needs `longest` spare positions."""
        super().__init__(runner, kv_budget, on_start=on_start)
        self._verifier, self._draft, self._after = runner, draft, after
        self._costs, self._longest = costs, longest
        self._lengths: WeakKeyDictionary[Decoding, DraftLength] = WeakKeyDictionary()

    def decode(self, rows: Sequence[DecodeRow]) -> list[Tokens]:
        asked = [DraftRequest(r.slot, r.decoding, self._count(r.decoding, len(rows))) for r in rows]
        drafts = self._propose([request for request in asked if request.count])
        if not any(drafts.values()):
            return super().decode(rows)
        inputs = [
            VerifyInput(row.slot, [row.last_token, *drafts.get(row.slot, [])], row.decoding.appended)
            for row in rows
        ]
        try:
            verified = self._verifier.verify(inputs)
        except Exception:
            return super().decode(rows)  # one by one, to find the utterance that is at fault
        return [
            self._sample_drafted(row, drafts.get(row.slot, []), logits)
            for row, logits in zip(rows, verified, strict=True)
        ]

    def _count(self, decoding: Decoding, batch: int) -> int:
        if decoding.appended < self._after:
            return 0
        # One token is sampled even if every drafted one is wrong.
        return min(self._length(decoding).next(batch), decoding.budget - decoding.appended - 1)

    def _length(self, decoding: Decoding) -> DraftLength:
        return self._lengths.setdefault(decoding, DraftLength(self._costs, longest=self._longest))

    def _propose(self, requests: list[DraftRequest]) -> dict[int, list[int]]:
        """Return drafted tokens by slot. If the draft fails, the utterance at fault continues without it."""
        if not requests:
            return {}
        slots = [request.slot for request in requests]
        try:
            return dict(zip(slots, self._draft.propose(requests), strict=True))
        except Exception:
            for slot in slots:
                self._draft.release(slot)
            if len(requests) > 1:
                return {slot: t for r in requests for slot, t in self._propose([r]).items()}
            self._length(requests[0].decoding).longest = 0
            return {}

    def _sample_drafted(self, row: DecodeRow, drafted: list[int], logits: Logits) -> Tokens:
        """logits: (rows, 1 + drafted, vocab)."""
        decoding, sampled = row.decoding, list[int]()
        try:
            for at, proposed in enumerate([*drafted, None]):
                sampled.append(decoding.sample(logits[:, at]))
                if sampled[-1] != proposed or proposed == STOP_SPEECH:
                    break
        except Exception as error:
            return error
        # The KV cache keeps all tokens but the last, which the next pass begins with.
        self._verifier.rewind(row.slot, 1 + len(drafted) - len(sampled))
        if drafted:
            accepted = sum(mine == theirs for mine, theirs in zip(sampled, drafted, strict=False))
            decoding.stats.drafted += len(drafted)
            decoding.stats.accepted += accepted
            decoding.stats.passes += 1
            self._length(decoding).update(len(drafted), accepted)
        return list(sampled)

    def release(self, slot: int) -> None:
        super().release(slot)
        self._draft.release(slot)

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self._draft.move(source, target)
