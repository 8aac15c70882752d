"""T3's decode step on one GPU by every kernel choice and precision: its time, and whether its tokens agree.

    python -m nightingale_lab.bench gpu                      # on the GPU, full-size random weights
    python -m nightingale_lab.bench gpu --tunings            # and the Triton kernels with several tunings
    python -m nightingale_lab.bench gpu --tiny --device cpu  # the same code, eager, in seconds: proves that it runs

Greedy tokens in float32 must be those of the plain PyTorch loop. The latency of the whole engine, and of
upstream, is measured by gpu_engine.py. Needs torch, numpy and safetensors only. The last line is
JSON.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from nightingale.backends.cuda.t3.decode_loop import DecodeLoop, DecodePlan
from nightingale.backends.cuda.triton_support import KernelChoice, Tuning
from nightingale.models.chatterbox.t3.model import T3
from nightingale.types import Sampling
from nightingale_lab import reference
from nightingale_lab.bench.programs.gpu import board
from nightingale_lab.bench.runner import option
from nightingale_lab.random_models import random_model

FAMILIES = ("multilingual", "turbo")
TEXT = "This sentence stands for sixty text ids."
TUNINGS = [
    (8, 256, 4, False), (8, 256, 4, True), (4, 256, 4, True), (16, 256, 8, True), (8, 256, 2, True),
    (4, 256, 2, True), (8, 512, 4, True), (8, 1024, 8, True),
]  # fmt: skip
"""Outputs and inputs of a block, warps, and whether the next kernel starts early."""


class Steps:
    """The decode step of one family with random weights."""

    def __init__(self, family: str, shown: board.ScriptBoard) -> None:
        self.family, self.board, self.device = family, shown, shown.device
        self.tiny = shown.options.tiny
        self.tokens, self.rounds = (12, 1) if self.tiny else (102, 5)
        self.model = random_model(family, device=self.device, tiny=self.tiny, tokens=self.tokens)
        self.greedy = reference.sampling_of(self.model, temperature=0.0)
        # bfloat16 may be very slow on a CPU.
        half = torch.bfloat16 if shown.device.type == "cuda" else torch.float32
        t3 = reference.networks_of(self.model, str(self.device)).t3
        self.t3s = {kind: copy.deepcopy(t3).to(kind) for kind in dict.fromkeys((torch.float32, half))}

    @cached_property
    def expected(self) -> list[int]:
        """Greedy tokens of the plain loop."""
        started, device = time.perf_counter(), str(self.device)
        tokens = list(reference.speech_tokens(self.model, TEXT, seed=0, temperature=0.0, device=device))
        taken = 1000 * (time.perf_counter() - started) / len(tokens)
        self.board.rows[f"{self.family}: T3 step, float32 plain, ms"] = taken
        self.board.checks[f"{self.family}: greedy tokens"] = f"{len(tokens)}, {len(set(tokens))} different"
        return tokens

    def prompt(self, t3: T3) -> Tensor:
        return reference.prompt_embeddings(self.model, t3, reference.decoding_of(self.model, TEXT))

    def open_loop(self, t3: T3, **plan: Any) -> DecodeLoop:
        length = self.prompt(t3).shape[1] + self.tokens
        spans = (32, 64) if self.tiny else (256, 512, 640, 1024)
        return DecodeLoop(
            t3,
            order=self.model.defaults.sampler,
            guided=self.model.info.guidable,
            capacity=-(-(length + 1) // 64) * 64,
            plan=DecodePlan(slots=(1,), spans=spans, steps=6 if self.tiny else 17, **plan),
        )

    def decode(self, loop: DecodeLoop, sampling: Sampling) -> tuple[list[int], float]:
        """Return the tokens of one utterance, and the milliseconds of a step."""
        loop.prefill(0, self.prompt(loop.t3), sampling=sampling, seed=0, budget=self.tokens)
        board.synchronize(self.device)
        started, steps, tokens = time.perf_counter(), loop.plan.steps, []
        for _ in range(self.tokens // steps):
            tokens += loop.launch(steps).take()[0]
        board.synchronize(self.device)
        return tokens, 1000 * (time.perf_counter() - started) / len(tokens)

    def measure(self, kernels: KernelChoice, tuning: Tuning | None = None) -> None:
        expected = self.expected
        for kind, t3 in self.t3s.items():
            loop = self.open_loop(t3, kernels=kernels, tuning=tuning)
            name = f"{str(kind).removeprefix('torch.')} {kernels}{f' {tuple(tuning)}' if tuning else ''}"
            tokens, _ = self.decode(loop, self.greedy)
            checks, rows = self.board.checks, self.board.rows
            checks[f"{self.family}: {name}: greedy tokens as plain's"] = tokens == expected
            checks[f"{self.family}: {name}: same until"] = board.same_until(tokens, expected)
            sampling = self.model.defaults.sampling
            # The first two runs capture graphs.
            times = [self.decode(loop, sampling)[1] for _ in range(self.rounds + 2)][2:]
            taken = rows[f"{self.family}: T3 step, {name}, ms"] = statistics.median(times)
            fastest = f"{self.family}: T3 step, ms"
            rows[fastest] = min(taken, rows.get(fastest, taken))


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> None:
    tunings = option("--tunings", action="store_true", help="also time the kernels with several tunings")
    shown = board.ScriptBoard(board.parser(__doc__, tunings, budget_s=220.0).parse_args(arguments))
    torch.manual_seed(0)
    cuda, built = shown.device.type == "cuda", list[Steps]()
    for family in FAMILIES:
        shown.part(f"{family}: build", lambda family=family: built.append(Steps(family, shown)))  # type: ignore[misc]
    for steps in built:
        choices: tuple[KernelChoice, ...] = ("library", "triton") if cuda else ("library",)
        for kernels in choices:
            shown.part(f"{steps.family}: {kernels}", partial(steps.measure, kernels))
        for tuning in TUNINGS if shown.options.tunings and cuda else ():
            shown.part(f"{steps.family}: {tuning}", partial(steps.measure, "triton", Tuning(*tuning)))
    shown.finish("gpu")
