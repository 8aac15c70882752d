"""When a draft head pays on one GPU: T3's decode step in CUDA graphs, plain and with drafted tokens.

    python benchmarks/gpu_drafts.py                      # on the GPU, full-size random weights
    python benchmarks/gpu_drafts.py --tiny --device cpu  # the same code, eager, in seconds: proves that it runs

Draft heads of full size with random weights do all their work, but a drafted token is then taken as right with a
given probability, so the acceptance rate is known. In float32, the tokens must be those of plain steps whatever
is drafted: nothing that is right, or only T3's own tokens. Needs torch, numpy and safetensors only. The last line
is JSON.

- step: milliseconds of a plain step, and of a step that drafts and verifies 1, 2 and 3 tokens.
- pass: T3's part of it alone, over 1 + n tokens of each row.
- per token: milliseconds of a step over the tokens that it gives.
- pays from: the acceptance rate from which a token takes less time than by plain steps.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import checkout  # noqa: F401
import torch
from torch import Tensor

from nightingale.backends.cuda.graphs import GraphedFunction
from nightingale.backends.cuda.t3.batched_sampling import DecodeState
from nightingale.backends.cuda.t3.decode_loop import DecodeLoop, DecodePlan
from nightingale.backends.cuda.t3.speculative_step import SpeculativeStep
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale_lab import reference
from nightingale_lab.bench import board
from nightingale_lab.random_models import random_model

FAMILIES = ("multilingual", "turbo")
TEXT = "This sentence stands for sixty text ids."
LONGEST, STEPS = 3, 4
ACCEPTANCES = (0.0, 0.5, 1.0)


class SyntheticStep(SpeculativeStep):
    """Accept drafted tokens with a given probability, after all the work of verifying them."""

    def accept_with(self, probability: float) -> None:
        generator = torch.Generator().manual_seed(0)
        right = torch.rand(self.right.shape, generator=generator) < probability
        self.right.copy_(right)

    def _draft(self, *given: Any) -> tuple[Tensor, list[Tensor]]:
        self._drafted, embedded = super()._draft(*given)
        return self._drafted, embedded

    def _verify(self, logits: Tensor, drafts: int, sorting: bool) -> Tensor:
        numbers = self._verifying.sampled[:drafts].clone()
        sampled = super()._verify(logits, drafts, sorting)
        return torch.where(self.right[numbers], self._drafted, -2 - sampled)

    right: Tensor
    """(tokens,) bool: whether the draft is right."""


class KnownStep(SpeculativeStep):
    """Draft tokens that are known beforehand."""

    known: Tensor

    def _sample(self, state: DecodeState, sorting: bool) -> tuple[Tensor, Tensor]:
        number = state.sampled.clone()
        x, lengths = super()._sample(state, sorting)
        if state.seen is self._drafting.seen:
            token = self.known[number]
            state.recent.index_copy_(0, state.cursor - 1, token[None])
            state.seen.scatter_(1, token[:, None], True)
            x = self._packed.t3.embed_speech_at(token.expand(len(x)), (number + 1).expand(len(x)))
        return x, lengths


class Drafts:
    """The decode steps of one family with random weights."""

    def __init__(self, family: str, shown: board.ScriptBoard) -> None:
        self.family, self.board, self.device = family, shown, shown.device
        self.tiny = shown.options.tiny
        self.tokens, self.rounds = (16, 1) if self.tiny else (104, 7)
        self.launches = self.tokens // STEPS
        self.model = random_model(family, device=self.device, tiny=self.tiny, tokens=self.tokens)
        t3 = reference.networks_of(self.model, str(self.device)).t3
        self.exact, self.half = t3, copy.deepcopy(t3)
        if self.device.type == "cuda":  # bfloat16 may be very slow on a CPU
            self.half.bfloat16()
        self.head = DraftHead(t3.config.backbone.width)

    def open_loop(self, t3: T3, kind: type[SpeculativeStep]) -> tuple[DecodeLoop, Any]:
        prompt = self.prompt(t3).shape[1]
        loop = DecodeLoop(
            t3,
            order=self.model.defaults.sampler,
            guided=self.model.info.guidable,
            capacity=prompt + (1 + LONGEST) * self.tokens,
            plan=DecodePlan(slots=(1,), spans=(), steps=STEPS, draft_tokens=LONGEST),
            draft=copy.deepcopy(self.head),
        )
        step: Any = kind(
            loop.packed, copy.deepcopy(self.head), order=loop.order, rows=loop.rows, longest=LONGEST
        )
        loop.speculation = step
        return loop, step

    def prompt(self, t3: T3) -> Tensor:
        return reference.prompt_embeddings(self.model, t3, reference.decoding_of(self.model, TEXT))

    def decode(self, loop: DecodeLoop, launches: int, drafts: int) -> tuple[list[int], float]:
        """Return the tokens of some launches, and the milliseconds that each step took."""
        budget = launches * STEPS * (1 + drafts)  # never reached before the last step
        sampling = self.model.defaults.sampling
        loop.prefill(0, self.prompt(loop.t3), sampling=sampling, seed=0, budget=budget)
        loop.compute_prompts()
        board.synchronize(self.device)
        started = time.perf_counter()
        pending = [loop.launch(STEPS, drafts) for _ in range(launches)]
        board.synchronize(self.device)
        taken = 1000 * (time.perf_counter() - started) / (launches * STEPS)
        loop.release(0)
        return [token for one in pending for token in one.take()[0]], taken

    def check(self) -> None:
        """Compare the tokens in float32 with those of plain steps."""
        loop, step = self.open_loop(self.exact, KnownStep)
        launches = self.launches
        expected, _ = self.decode(loop, launches, 0)
        known = torch.tensor(expected + [0] * LONGEST * self.tokens, device=self.device)
        step.known = known.clone()  # graphs read it in place
        for what, drafted in (("all right", known), ("all wrong", known ^ 1)):
            step.known.copy_(drafted)
            for drafts in range(1, LONGEST + 1):
                few = launches // (1 + drafts) if what == "all right" else launches
                tokens, _ = self.decode(loop, few, drafts)
                name = f"{self.family}: float32, {drafts} drafted, {what}: tokens as by plain steps"
                self.board.checks[name] = tokens == expected[: len(tokens)]
                self.board.checks[f"{name}, number"] = len(tokens)

    def measure(self) -> None:
        """Time the steps in bfloat16."""
        loop, step = self.open_loop(self.half, SyntheticStep)
        step.right = torch.zeros((1 + LONGEST) * self.tokens + LONGEST, dtype=torch.bool, device=self.device)
        rows, name = self.board.rows, self.family
        plain = rows[f"{name}: plain step, ms"] = self.median(lambda: self.decode(loop, self.launches, 0)[1])
        for drafts in range(1, LONGEST + 1):
            step.accept_with(0.0)
            whole = self.median(partial(self.step_ms, loop, drafts))
            rows[f"{name}: step with {drafts} drafted, ms"] = whole
            rows[f"{name}: pass over {1 + drafts} tokens, ms"] = self.pass_ms(loop, drafts)
            for acceptance in ACCEPTANCES:
                step.accept_with(acceptance)
                launches = max(1, round(self.launches / sum(acceptance**n for n in range(drafts + 1))))
                runs = [self.decode(loop, launches, drafts) for _ in range(self.rounds)]
                tokens = len(runs[0][0]) / (launches * STEPS)
                taken = statistics.median(taken for _, taken in runs) / tokens
                rows[f"{name}: {drafts} drafted, {acceptance:.0%} right, ms per token"] = taken
                rows[f"{name}: {drafts} drafted, {acceptance:.0%} right, tokens per step"] = tokens
            if (rate := pays_from(whole / plain, drafts)) is not None:
                rows[f"{name}: {drafts} drafted, pays from, %"] = 100 * rate

    def step_ms(self, loop: DecodeLoop, drafts: int) -> float:
        return self.decode(loop, self.launches, drafts)[1]

    def pass_ms(self, loop: DecodeLoop, drafts: int) -> float:
        """Return the milliseconds of T3's pass over 1 + drafts tokens of each row."""
        _, caches = loop._views(1, loop.capacity + LONGEST)
        weight, count = loop.t3.speech_head.weight, 1 if self.tiny else 40
        x = torch.zeros(loop.rows, 1 + drafts, weight.shape[1], dtype=weight.dtype)
        lengths = torch.full((loop.rows,), self.prompt(loop.t3).shape[1] + self.tokens // 2)
        stream = torch.cuda.Stream() if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        graph = GraphedFunction(
            "pass", partial(loop.packed.verify, caches=caches), {"x": x, "lengths": lengths},
            device=self.device, stream=stream,
        )  # fmt: skip

        def timed() -> float:
            board.synchronize(self.device)
            started = time.perf_counter()
            for _ in range(count):
                graph()
            board.synchronize(self.device)
            return 1000 * (time.perf_counter() - started) / count

        return self.median(timed)

    def median(self, measured: Callable[[], float]) -> float:
        measured()  # captures
        return statistics.median(measured() for _ in range(self.rounds))


def pays_from(cost: float, drafts: int) -> float | None:
    """Return the acceptance rate at which a step gives as many tokens as plain steps in its time, if any."""
    rates = [n / 1000 for n in range(1001)]
    return next((p for p in rates if sum(p**n for n in range(drafts + 1)) >= cost), None)


@torch.no_grad()
def main(arguments: list[str] | None = None) -> None:
    shown = board.ScriptBoard(board.parser(__doc__, budget_s=220.0).parse_args(arguments))
    torch.manual_seed(0)
    built = list[Drafts]()
    for family in FAMILIES:
        shown.part(f"{family}: build", lambda family=family: built.append(Drafts(family, shown)))  # type: ignore[misc]
    for drafts in built:
        shown.part(f"{drafts.family}: tokens", drafts.check)
        shown.part(f"{drafts.family}: times", drafts.measure)
    shown.finish("gpu_drafts")


if __name__ == "__main__":
    main()
