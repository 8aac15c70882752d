"""Each fast part by itself beside its plain twin, on one GPU: whether both say the same, and what each takes.

    python benchmarks/gpu.py                      # on the GPU, full-size random weights
    python benchmarks/gpu.py --tiny --device cpu  # the same path, eager, in seconds: proves that it runs

    T3         every way to take a step, in float32 and bfloat16: its time, and how far its greedy tokens are
               those of the plain loop (decoding/decoding.py); in float32 they must be, to the end
    flow       the mel of a sentence by graphs, in float32 and bfloat16, beside the eager one in float32
    vocoder    its samples by graphs and eagerly, beside the plain network's
    compiled   T3's step and the flow by torch.compile, which takes longest and comes last

How long a listener waits, and for upstream, is measured through the engine: benchmarks/gpu_engine.py. Where
that time goes, and how the kernels are tuned: benchmarks/gpu_trace.py. Needs torch, numpy and safetensors,
nothing else. A part that fails is named and the others go on. The last line is JSON.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import gpu_board
import torch
from gpu_engine import FAMILIES, TEXT, build, voice_of
from torch import Tensor

from nightingale.backends.cuda.decoder import DecodeLoop, DecodePlan
from nightingale.backends.cuda.flow import FRAMES, FlowSteps, WholeFlow
from nightingale.backends.cuda.graphs import How, how_on
from nightingale.backends.cuda.random import int64_key
from nightingale.backends.cuda.t3_layers import Way
from nightingale.backends.cuda.vocoder import Vocoder, source_noise
from nightingale.decoding.decoding import prompt_of, speak
from nightingale.models.chatterbox.t3.model import T3
from nightingale.types import Sampling

MODES = {"": None, "compiled": "default"}
"""Of torch.compile."""
SPARE_TOKENS, SPARE_FRAMES = 10, 20
"""A bucket is longer than what is put in, as it mostly is in the engine."""


class Parts:
    """One member of the family with random weights; what is found goes to the board."""

    def __init__(self, family: str, board: gpu_board.Board) -> None:
        self.family, self.board, self.device = family, board, board.device
        self.tiny, self.cuda = board.options.tiny, board.device.type == "cuda"
        self.tokens = 12 if self.tiny else 102
        self.model = build(family, self.device, toy=self.tiny, tokens=self.tokens)
        self.voice, self.defaults = voice_of(family, toy=self.tiny), self.model.defaults
        self.greedy = replace(self.defaults.sampling, temperature=0.0)
        self.key = torch.tensor([int64_key(1, "flow")], device=self.device)
        half = torch.bfloat16 if self.cuda else torch.float32  # which a CPU may take for ever over
        self.precisions = tuple(dict.fromkeys((torch.float32, half)))
        self.t3s = {kind: copy.deepcopy(self.model.networks.t3).to(kind) for kind in self.precisions}

    def clock(self, name: str, act: Callable[[], object], **other: Any) -> float:
        taken = median_ms(act, self.device, rounds=1 if self.tiny else 5, **other)
        self.board.rows[f"{self.family}: {name}, ms"] = taken
        return taken

    def check(self, name: str, found: object) -> None:
        self.board.checks[f"{self.family}: {name}"] = found

    # T3

    def told(self, sampling: Sampling) -> dict[str, Any]:
        """What both the prompt and the plain loop are told."""
        return {
            "text_ids": self.model.frontend.encode(TEXT, None),
            "voice": self.voice,
            "defaults": self.defaults,
            "sampling": sampling,
            "exaggeration": self.defaults.exaggeration,
        }

    @cached_property
    def expected(self) -> list[int]:
        """Greedy tokens of the plain loop, over weights that no decoder has joined."""
        started = time.perf_counter()
        tokens = list(speak(self.model.networks.t3, **self.told(self.greedy), seed=0))
        taken = 1000 * (time.perf_counter() - started) / len(tokens)
        self.board.rows[f"{self.family}: T3 step, float32 plain, ms"] = taken
        self.check("greedy tokens", f"{len(tokens)}, {len(set(tokens))} different")
        return tokens

    def decoder(self, t3: T3, **plan: Any) -> DecodeLoop:
        length = self.prompt(t3).shape[1] + self.tokens
        spans = (32, 64) if self.tiny else (256, 512, 640, 1024)
        return DecodeLoop(
            t3,
            order=self.defaults.sampler,
            guided=self.defaults.sampling.cfg_weight > 0,
            capacity=-(-(length + 1) // 64) * 64,
            plan=DecodePlan(slots=(1,), spans=spans, steps=6 if self.tiny else 17, **plan),
        )

    def prompt(self, t3: T3) -> Tensor:
        return prompt_of(t3, **self.told(self.defaults.sampling))

    def begin(self, decoder: DecodeLoop, sampling: Sampling) -> None:
        decoder.begin(0, self.prompt(decoder.t3), sampling=sampling, seed=0, budget=self.tokens)

    def step(self, way: Way, made: str = "") -> None:
        """A step in each precision by this way; a compiled one in the lowest only."""
        expected = self.expected
        for kind in self.precisions[-1:] if made else self.precisions:
            decoder = self.decoder(self.t3s[kind], way=way, compile_mode=MODES[made])
            name = spoken(kind, made, way)
            steps = decoder.plan.steps
            launches = self.tokens // steps
            self.begin(decoder, self.greedy)
            tokens = [token for _ in range(launches) for token in decoder.launch(steps).take()[0]]
            self.check(f"{name}: greedy tokens as plain's", tokens == expected)
            self.check(f"{name}: the same until", gpu_board.prefix(tokens, expected))

            def speak_on(decoder: DecodeLoop = decoder, steps: int = steps, launches: int = launches) -> None:
                for _ in range(launches):
                    decoder.launch(steps)

            before = partial(self.begin, decoder, self.defaults.sampling)
            taken = self.clock(f"T3 step, {name}", speak_on, before=before, count=launches * steps)
            least = f"{self.family}: T3 step, ms"
            if taken < self.board.rows.get(least, float("inf")):
                self.board.rows[least] = taken
                self.check("T3 step by", name)

    def scores(self) -> None:
        """After the prompt, before anything was drawn: how far each precision is from the first."""
        found = []
        for t3 in self.t3s.values():
            decoder = self.decoder(t3)
            self.begin(decoder, self.greedy)
            found.append(decoder.state.scores)
        self.check(f"{spoken(self.precisions[-1])} scores: error", gpu_board.error_of(found[-1], found[0]))

    # The flow

    def mel(self, how: How, kind: torch.dtype, made: str = "") -> Tensor:
        """Of a prompt and a sentence; (1, bands, frames)."""
        voice, prompt = self.voice, self.voice.flow_prompt_ids
        ids = torch.cat([prompt, prompt[: self.tokens]])[None].to(self.device)
        steps = FlowSteps(self.model.networks.flow, precision=kind, compile_mode=MODES[made])
        whole = WholeFlow(steps, batches=(1,), tokens=(ids.shape[1] + SPARE_TOKENS,), how=how)
        act = partial(
            whole,
            ids,
            torch.full((1,), ids.shape[1], device=self.device),
            prompt_mel=voice.flow_prompt_mel.T[None].to(self.device),
            prompt_frames=torch.full((1,), FRAMES * len(prompt), device=self.device),
            speaker=voice.flow_speaker[None].to(self.device),
            key=self.key,
        )
        self.clock(f"flow, {spoken(kind, made, how)}", act)
        return act().clone()

    @cached_property
    def plain_mel(self) -> Tensor:
        return self.mel("eager", torch.float32)

    def flow(self, made: str = "") -> None:
        """The mel says enough: samples of random weights are chaotic in it."""
        how = how_on(self.device)
        for kind in self.precisions[-1:] if made else self.precisions:
            error = gpu_board.error_of(self.mel(how, kind, made), self.plain_mel)
            self.check(f"flow, {spoken(kind, made, how)}: error", error)

    # The vocoder

    def vocoder(self) -> None:
        hift, frames = self.model.networks.hift, FRAMES * self.tokens
        mel = self.voice.flow_prompt_mel.T[None, :, :frames].to(self.device)
        phase = torch.zeros(1, hift.config.harmonics, 1, device=self.device)
        ends = torch.full((1,), frames, device=self.device)

        def plain() -> Tensor:
            noise = source_noise(self.key, torch.zeros_like(self.key), frames)
            source, _ = hift.m_source(hift.f0_predictor(mel), phase, noise)
            samples: Tensor = hift(mel, source)
            return samples

        self.clock("vocoder, plain", plain)
        theirs = plain()
        for how in dict.fromkeys(("eager", how_on(self.device))):
            fast = Vocoder(hift, batches=(1,), frames=(frames + SPARE_FRAMES,), how=how)
            act = partial(fast, mel, ends, key=self.key, phase=phase)
            self.clock(f"vocoder, {how}", act)
            self.check(f"vocoder, {how}: error", gpu_board.error_of(act()[0], theirs))


def spoken(kind: torch.dtype, *by: str) -> str:
    return " ".join([str(kind).removeprefix("torch."), *filter(None, by)])


def median_ms(
    act: Callable[[], object],
    device: torch.device,
    *,
    rounds: int,
    before: Callable[[], object] = lambda: None,
    count: int = 1,
) -> float:
    """Of one of `count`, by the clock, from an idle device to an idle device; the first two runs, which
    record, are not counted, nor is what must be done before each."""
    times = []
    for _ in range(rounds + 2):
        before()
        gpu_board.synchronize(device)
        started = time.perf_counter()
        act()
        gpu_board.synchronize(device)
        times.append(1000 * (time.perf_counter() - started) / count)
    return statistics.median(times[2:])


@torch.no_grad()
def main(arguments: list[str] | None = None) -> gpu_board.Board:
    parser = gpu_board.parser(__doc__, budget_s=220.0)
    parser.add_argument("--no-compile", action="store_true", help="leave out what torch.compile makes")
    options = parser.parse_args(arguments)
    board = gpu_board.Board(options)
    torch.manual_seed(0)
    built: list[Parts] = []

    def make(family: str) -> None:
        built.append(Parts(family, board))

    for family in FAMILIES:
        board.part(f"{family}: build", partial(make, family))
    cuda = board.device.type == "cuda"
    ways: tuple[Way, ...] = ("sdpa", "triton") if cuda else ("sdpa",)
    compiled: tuple[Way, ...] = ("sums", "sdpa")
    for parts in built:
        for way in ways:
            board.part(f"{parts.family}: T3 step, {way}", partial(parts.step, way))
        board.part(f"{parts.family}: T3 scores", parts.scores)
        board.part(f"{parts.family}: flow", parts.flow)
        board.part(f"{parts.family}: vocoder", parts.vocoder)
    for parts in built if cuda and not options.no_compile else []:
        for way in compiled:
            board.part(f"{parts.family}: T3 step, compiled {way}", partial(parts.step, way, "compiled"))
        board.part(f"{parts.family}: flow, compiled", partial(parts.flow, "compiled"))
    board.finish()
    return board


if __name__ == "__main__":
    main()
