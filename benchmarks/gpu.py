"""Each fast part by itself beside its plain twin on one GPU: whether they agree, and the time of each.

    python benchmarks/gpu.py                      # on the GPU, full-size random weights
    python benchmarks/gpu.py --tiny --device cpu  # the same path, eager, in seconds: proves that it runs

    T3         every implementation of a step, in float32 and bfloat16: its time, and how many greedy tokens
               equal those of the plain loop; in float32 all must
    flow       the mel of a sentence by graphs, in float32 and bfloat16, beside the eager one in float32
    vocoder    its samples by graphs and eagerly, beside the plain network's

With --tunings, T3's step by our kernels is timed with several tunings. The latency of the engine, and of
upstream, is measured by benchmarks/gpu_engine.py. Needs torch, numpy and safetensors only. The last line is
JSON.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import checkout  # noqa: F401
import torch
from nightingale.backends.cuda.decoder import DecodeLoop, DecodePlan
from nightingale.backends.cuda.t3_layers import Way
from torch import Tensor

from nightingale.backends.cuda.flow import FRAMES, FlowSteps, WholeFlow
from nightingale.backends.cuda.graphs import How, how_on
from nightingale.backends.cuda.random import int64_key
from nightingale.backends.cuda.vocoder import Vocoder, source_noise
from nightingale.models.chatterbox.t3.model import T3
from nightingale.types import Sampling
from nightingale_lab import reference
from nightingale_lab.bench import board
from nightingale_lab.random_models import random_model

FAMILIES = ("multilingual", "turbo")
TEXT = "This sentence stands for sixty text ids."
TUNINGS: list[tuple[int, ...]] = [
    (8, 256, 4, False), (8, 256, 4, True), (4, 256, 4, True), (16, 256, 8, True), (8, 256, 2, True),
    (4, 256, 2, True), (8, 512, 4, True), (8, 1024, 8, True),
]  # fmt: skip
"""Outputs and inputs of a block, warps, and whether the next kernel starts early."""
SPARE_TOKENS, SPARE_FRAMES = 10, 20
"""A bucket is longer than its content, as it mostly is in the engine."""


class Parts:
    """The parts of one family with random weights."""

    def __init__(self, family: str, shown: board.ScriptBoard) -> None:
        self.family, self.board, self.device = family, shown, shown.device
        self.tiny, cuda = shown.options.tiny, shown.device.type == "cuda"
        self.tokens = 12 if self.tiny else 102
        self.model = random_model(family, device=self.device, tiny=self.tiny, tokens=self.tokens)
        self.networks = reference.networks_of(self.model, str(self.device))
        voice = reference.voice_of(self.model)
        self.prompt_ids = torch.as_tensor(voice.flow_prompt_ids).to(self.device)
        self.prompt_mel = torch.as_tensor(voice.flow_prompt_mel).to(self.device)
        self.speaker = torch.as_tensor(voice.flow_speaker).to(self.device)
        self.greedy = reference.sampling_of(self.model, temperature=0.0)
        self.key = torch.tensor([int64_key(1, "flow")], device=self.device)
        half = torch.bfloat16 if cuda else torch.float32  # bfloat16 may be very slow on a CPU
        self.precisions = tuple(dict.fromkeys((torch.float32, half)))
        self.t3s = {kind: copy.deepcopy(self.networks.t3).to(kind) for kind in self.precisions}

    def time(self, name: str, act: Callable[[], object], **other: Any) -> float:
        taken = median_ms(act, self.device, rounds=1 if self.tiny else 5, **other)
        self.board.rows[f"{self.family}: {name}, ms"] = taken
        return taken

    def check(self, name: str, found: object) -> None:
        self.board.checks[f"{self.family}: {name}"] = found

    @cached_property
    def expected(self) -> list[int]:
        """Greedy tokens of the plain loop."""
        started = time.perf_counter()
        device = str(self.device)
        tokens = list(reference.speech_tokens(self.model, TEXT, seed=0, temperature=0.0, device=device))
        taken = 1000 * (time.perf_counter() - started) / len(tokens)
        self.board.rows[f"{self.family}: T3 step, float32 plain, ms"] = taken
        self.check("greedy tokens", f"{len(tokens)}, {len(set(tokens))} different")
        return tokens

    def decoder(self, t3: T3, **plan: Any) -> DecodeLoop:
        length = self.prompt(t3).shape[1] + self.tokens
        spans = (32, 64) if self.tiny else (256, 512, 640, 1024)
        return DecodeLoop(
            t3,
            order=self.model.defaults.sampler,
            guided=self.model.defaults.sampling.cfg_weight > 0,
            capacity=-(-(length + 1) // 64) * 64,
            plan=DecodePlan(slots=(1,), spans=spans, steps=6 if self.tiny else 17, **plan),
        )

    def prompt(self, t3: T3) -> Tensor:
        return reference.prompt_embeddings(self.model, t3, reference.decoding_of(self.model, TEXT))

    def begin(self, decoder: DecodeLoop, sampling: Sampling) -> None:
        decoder.begin(0, self.prompt(decoder.t3), sampling=sampling, seed=0, budget=self.tokens)

    def step(self, way: Way, tuning: tuple[int, ...] | None = None) -> None:
        """Time and check a step of this implementation in each precision."""
        expected = self.expected
        for kind in self.precisions:
            decoder = self.decoder(self.t3s[kind], way=way, tuning=tuning)
            name = f"{precision_name(kind)} {way}{f' {tuning}' if tuning else ''}"
            steps = decoder.plan.steps
            launches = self.tokens // steps
            self.begin(decoder, self.greedy)
            tokens = [token for _ in range(launches) for token in decoder.launch(steps).take()[0]]
            self.check(f"{name}: greedy tokens as plain's", tokens == expected)
            self.check(f"{name}: same until", board.same_until(tokens, expected))

            def decode(decoder: DecodeLoop = decoder, steps: int = steps, launches: int = launches) -> None:
                for _ in range(launches):
                    decoder.launch(steps)

            before = partial(self.begin, decoder, self.model.defaults.sampling)
            taken = self.time(f"T3 step, {name}", decode, before=before, count=launches * steps)
            least = f"{self.family}: T3 step, ms"
            if taken < self.board.rows.get(least, float("inf")):
                self.board.rows[least] = taken
                self.check("T3 step by", name)

    def logits(self) -> None:
        """Compare the logits after the prompt in each precision with float32."""
        found = []
        for t3 in self.t3s.values():
            decoder = self.decoder(t3)
            self.begin(decoder, self.greedy)
            found.append(decoder.state.scores)
        error = board.relative_error(found[-1], found[0])
        self.check(f"{precision_name(self.precisions[-1])} logits: error", error)

    def mel(self, how: How, kind: torch.dtype) -> Tensor:
        """Return the mel of a prompt and a sentence: (1, bands, frames)."""
        prompt = self.prompt_ids
        ids = torch.cat([prompt, prompt[: self.tokens]])[None]
        steps = FlowSteps(self.networks.flow, precision=kind)
        whole = WholeFlow(steps, batches=(1,), tokens=(ids.shape[1] + SPARE_TOKENS,), how=how)
        act = partial(
            whole,
            ids,
            torch.full((1,), ids.shape[1], device=self.device),
            prompt_mel=self.prompt_mel.T[None],
            prompt_frames=torch.full((1,), FRAMES * len(prompt), device=self.device),
            speaker=self.speaker[None],
            key=self.key,
        )
        self.time(f"flow, {precision_name(kind)} {how}", act)
        return act().clone()

    def flow(self) -> None:
        """Compare mels: the samples of random weights amplify any difference."""
        how, plain = how_on(self.device), self.mel("eager", torch.float32)
        for kind in self.precisions:
            error = board.relative_error(self.mel(how, kind), plain)
            self.check(f"flow, {precision_name(kind)} {how}: error", error)

    def vocoder(self) -> None:
        hift, frames = self.networks.hift, FRAMES * self.tokens
        mel = self.prompt_mel.T[None, :, :frames]
        phase = torch.zeros(1, hift.config.harmonics, 1, device=self.device)
        ends = torch.full((1,), frames, device=self.device)

        def plain() -> Tensor:
            noise = source_noise(self.key, torch.zeros_like(self.key), frames)
            source, _ = hift.m_source(hift.f0_predictor(mel), phase, noise)
            samples: Tensor = hift(mel, source)
            return samples

        self.time("vocoder, plain", plain)
        theirs = plain()
        for how in dict.fromkeys(("eager", how_on(self.device))):
            fast = Vocoder(hift, batches=(1,), frames=(frames + SPARE_FRAMES,), how=how)
            act = partial(fast, mel, ends, key=self.key, phase=phase)
            self.time(f"vocoder, {how}", act)
            self.check(f"vocoder, {how}: error", board.relative_error(act()[0], theirs))


def precision_name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def median_ms(
    act: Callable[[], object],
    device: torch.device,
    *,
    rounds: int,
    before: Callable[[], object] = lambda: None,
    count: int = 1,
) -> float:
    """Return the time of one of `count` repetitions, from an idle device to an idle device.

    The first two runs, which record graphs, are not counted, nor is `before`.
    """
    times = []
    for _ in range(rounds + 2):
        before()
        board.synchronize(device)
        started = time.perf_counter()
        act()
        board.synchronize(device)
        times.append(1000 * (time.perf_counter() - started) / count)
    return statistics.median(times[2:])


@torch.no_grad()
def main(arguments: list[str] | None = None) -> None:
    parser = board.parser(__doc__, budget_s=220.0)
    parser.add_argument("--tunings", action="store_true", help="also time T3's kernels with several tunings")
    shown = board.ScriptBoard(parser.parse_args(arguments))
    torch.manual_seed(0)
    built: list[Parts] = []

    def build(family: str) -> None:
        built.append(Parts(family, shown))

    for family in FAMILIES:
        shown.part(f"{family}: build", partial(build, family))
    ways: tuple[Way, ...] = ("sdpa", "triton") if shown.device.type == "cuda" else ("sdpa",)
    for parts in built:
        for way in ways:
            shown.part(f"{parts.family}: T3 step, {way}", partial(parts.step, way))
        for tuning in TUNINGS if shown.options.tunings else ():
            shown.part(f"{parts.family}: T3 step, {tuning}", partial(parts.step, "triton", tuning))
        shown.part(f"{parts.family}: T3 logits", parts.logits)
        shown.part(f"{parts.family}: flow", parts.flow)
        shown.part(f"{parts.family}: vocoder", parts.vocoder)
    shown.finish("gpu")


if __name__ == "__main__":
    main()
