"""The parts of the engine by themselves on one GPU; the table of the issue is benchmarks/gpu_engine.py's.

    python benchmarks/gpu.py                      # on the GPU: about four minutes, full-size random weights
    python benchmarks/gpu.py --tiny --device cpu  # the same path, eager, in seconds: proves that it runs

Needs torch, numpy and safetensors, nothing else. Random weights cost the time that real ones cost. A sentence
is 102 speech tokens (4.08 s) of 60 text ids, in a voice with a ten-second prompt of 250 tokens.

Upstream is not installable where this runs, so its column holds what was measured on an H200 with upstream's
own modules, random weights and float32 (2026-11-15), and not in the same run; "plain" is our own path without
graphs, in this run. A part that fails is named and the others go on. The last line is JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from nightingale.accel.decode import DecodePlan, Decoder
from nightingale.accel.flow import FlowSteps, WholeFlow
from nightingale.accel.graphs import how_on
from nightingale.accel.noise import key_of
from nightingale.accel.pieces import FlowPieces, Heard, hear_prompt
from nightingale.accel.vocoder import Vocoder, source_noise
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.presets import PRESETS, Preset
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES, FlowConfig
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.config import Gpt2Config, LlamaConfig
from nightingale.models.chatterbox.t3.model import T3
from nightingale.values import Sampling

UPSTREAM = {
    "t3 step, ms": 18.75,
    "sentence, ms": 2390.0,
    "turbo: t3 step, ms": 16.80,
    "turbo: sentence, ms": 1800.0,
}
GOALS = {
    "t3 step, ms": (1.6, 0.8),
    "sentence, ms": (300, 120),
    "first audio p50, ms": (90, 35),
    "audio s/s at 64": (60, 200),
    "turbo: sentence, ms": (200, 80),
    "turbo: first audio p50, ms": (60, 25),
}
"""Must and aim, of the issue."""
TUNINGS = [(8, 512, 4), (4, 1024, 4), (8, 1024, 8), (16, 256, 4), (8, 256, 2)]
"""Of the Triton kernels: outputs and inputs of a block, warps."""
LOOKAHEAD, FRAMES, SAMPLES = 3, 2, 480
HOLD_FRAMES, GUESSED_FRAMES = 4, 20
"""As engine/vocode.py streams: 4 frames wait for their future, which is guessed by holding the last frame."""


@dataclass(frozen=True)
class Size:
    tokens: int = 102
    text_ids: int = 60
    prompt_tokens: int = 250
    first_block: int = 8
    streams: int = 64
    render_batch: int = 16
    rounds: int = 7
    first_rounds: int = 20
    spans: tuple[int, ...] = (256, 512, 640, 1024)
    steps: int = 17


TINY = Size(
    tokens=12, text_ids=6, prompt_tokens=12, first_block=4, streams=2, render_batch=2, rounds=1,
    first_rounds=1, spans=(32, 64), steps=7,
)  # fmt: skip


@dataclass
class Board:
    """What was measured, and what went wrong."""

    deadline: float
    tiny: bool
    rows: dict[str, float] = field(default_factory=dict)
    checks: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def part(self, name: str, act: Callable[[], None]) -> None:
        """One that fails, or for which no time is left, is named; the others go on."""
        started = time.perf_counter()
        if started > self.deadline:
            self.errors[name] = "skipped: no time left"
            return
        try:
            act()
        except Exception as error:
            self.errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            traceback.print_exc()
        print(f"[{time.perf_counter() - started:6.1f} s] {name}", flush=True)


@dataclass
class Clip:
    """A voice, as the networks need it; random."""

    speaker: Tensor
    prompt_ids: Tensor
    flow_ids: Tensor
    flow_mel: Tensor
    flow_speaker: Tensor
    text: Tensor


class Bench:
    """One member of the family on one device, and what is built around it."""

    def __init__(self, preset: Preset, size: Size, device: torch.device, *, turbo: bool) -> None:
        self.preset, self.size, self.device, self.turbo = preset, size, device, turbo
        with torch.device(device):  # random weights are made where they are needed
            self.t3 = T3(preset.t3).eval().requires_grad_(False)
            self.flow = Flow(preset.flow).eval().requires_grad_(False)
            self.hift = Hift(preset.hift).eval().requires_grad_(False)
        self.t3, self.flow, self.hift = self.t3.to(device), self.flow.to(device), self.hift.to(device)
        self.sampling = Sampling(top_p=0.95, min_p=0.0, top_k=1000, cfg_weight=0.0) if turbo else Sampling()
        self.order = "turbo" if turbo else "chatterbox"
        rng = torch.Generator().manual_seed(0)
        many = size.prompt_tokens
        shown = min(preset.t3.prompt_tokens, many)

        def ids(count: int, below: int) -> Tensor:
            return torch.randint(below, (1, count), generator=rng).to(device)

        self.clip = Clip(
            speaker=torch.randn(1, preset.t3.speaker_width, generator=rng).to(device),
            prompt_ids=ids(shown, SPEECH_CODES),
            flow_ids=ids(many, SPEECH_CODES),
            flow_mel=torch.randn(1, 80, FRAMES * many, generator=rng).to(device),
            flow_speaker=torch.randn(1, preset.flow.speaker_width, generator=rng).to(device),
            text=ids(size.text_ids, preset.t3.text_vocab),
        )
        self.t3_half = copy.deepcopy(self.t3).to(torch.bfloat16 if device.type == "cuda" else torch.float32)
        self.vocoder = Vocoder(
            self.hift,
            batches=(1, size.render_batch),
            frames=(FRAMES * size.first_block + GUESSED_FRAMES, FRAMES * size.tokens),
        )
        self.key = torch.tensor([key_of(1, "flow")], device=device)
        self.phase = torch.zeros(1, HiftConfig().harmonics, 1, device=device)
        self.half: Decoder | None = None
        self.expected: list[int] = []

    def prompt(self, t3: T3) -> Tensor:
        dtype = t3.speech_head.weight.dtype
        return t3.prompt(
            self.clip.text,
            speaker=self.clip.speaker.to(dtype),
            prompt_ids=self.clip.prompt_ids,
            exaggeration=torch.full((1,), 0.5, device=self.device, dtype=dtype),
            guided=not self.turbo,
        )

    def decoder(self, t3: T3, *, slots: int = 1, **plan: Any) -> Decoder:
        size = self.size
        length = self.prompt(t3).shape[1] + size.tokens
        capacity = -(-(length + 1) // 64) * 64
        return Decoder(
            t3,
            order="turbo" if self.turbo else "chatterbox",
            guided=not self.turbo,
            capacity=capacity,
            plan=DecodePlan(slots=(slots,), spans=size.spans, steps=size.steps, **plan),
        )

    def decode(self, decoder: Decoder, sampling: Sampling, *, slots: int = 1) -> list[list[int]]:
        """A sentence for each slot; the next steps are under way while the last ones' tokens are read."""
        prompt = self.prompt(decoder.t3)
        for slot in range(slots):
            decoder.begin(slot, prompt, sampling=sampling, seed=slot, budget=self.size.tokens)
        return self.read(decoder, self.size.tokens, slots)

    def read(self, decoder: Decoder, tokens: int, slots: int) -> list[list[int]]:
        out: list[list[int]] = [[] for _ in range(slots)]
        pending = None
        for start in [*range(0, tokens, decoder.plan.steps), None]:
            following = None
            if start is not None:
                following = decoder.launch(min(decoder.plan.steps, tokens - start))
            if pending is not None:
                for mine, fresh in zip(out, pending.take(), strict=False):
                    mine += fresh
            pending = following
        return out

    def audible(self, tokens: list[int]) -> list[int]:
        """As many as a sentence has, whatever a random network stopped at."""
        return ([t % SPEECH_CODES for t in tokens] + [0] * self.size.tokens)[: self.size.tokens]

    def render(self, whole: WholeFlow, rows: list[list[int]]) -> Tensor:
        """Ids to samples on the host, all rows in one batch."""
        count, clip, many = len(rows), self.clip, self.size.prompt_tokens
        spoken = torch.tensor([self.audible(row) for row in rows])
        if self.device.type == "cuda":
            spoken = spoken.pin_memory().to(self.device, non_blocking=True)
        ids = torch.cat([clip.flow_ids.expand(count, -1), spoken], dim=1)
        mel = whole(
            ids,
            torch.full((count,), ids.shape[1], device=self.device),
            prompt_mel=clip.flow_mel.expand(count, -1, -1),
            prompt_frames=torch.full((count,), FRAMES * many, device=self.device),
            speaker=clip.flow_speaker.expand(count, -1),
            key=self.key + torch.arange(count, device=self.device),
        )
        samples, _ = self.vocoder(
            mel[:, :, FRAMES * many :],
            torch.full((count,), FRAMES * self.size.tokens, device=self.device),
            key=self.key.expand(count),
            phase=self.phase.expand(count, -1, -1),
        )
        return samples.float().cpu()

    def sentence(self, decoder: Decoder, whole: WholeFlow) -> Tensor:
        return self.render(whole, self.decode(decoder, self.sampling))

    def first_audio(self, decoder: Decoder, pieces: FlowPieces, heard: Heard) -> Tensor:
        """Text ids to the first samples on the host: a block of tokens, a piece of mel, a window of sound."""
        size, clip = self.size, self.clip
        wanted = size.first_block + LOOKAHEAD
        decoder.begin(0, self.prompt(decoder.t3), sampling=self.sampling, seed=3, budget=size.tokens)
        ids = self.audible(self.read(decoder, wanted, 1)[0])[:wanted]
        waiting = clip.flow_ids[:, -LOOKAHEAD:]
        given = torch.cat([waiting, torch.tensor([ids], device=self.device)], dim=1)
        tokens = size.first_block + LOOKAHEAD
        cond = torch.zeros(1, 80, FRAMES * tokens, device=self.device)
        cond[..., : FRAMES * LOOKAHEAD] = clip.flow_mel[..., -FRAMES * LOOKAHEAD :]
        first = torch.full((1,), FRAMES * (size.prompt_tokens - LOOKAHEAD), device=self.device)
        mel, _ = pieces(
            heard,
            given,
            torch.full((1,), given.shape[1], device=self.device),
            cond=cond,
            speaker=clip.flow_speaker,
            key=self.key,
            first_frame=first,
            carried=heard.carried,
        )
        mel = mel[..., FRAMES * LOOKAHEAD :]
        held = torch.cat([mel, mel[..., -1:].expand(-1, -1, GUESSED_FRAMES)], dim=2)
        ends = torch.full((1,), held.shape[2], device=self.device)
        samples, _ = self.vocoder(held, ends, key=self.key, phase=self.phase)
        return samples[:, : (mel.shape[2] - HOLD_FRAMES) * SAMPLES].float().cpu()

    def pieces(self, steps: FlowSteps) -> tuple[FlowPieces, Heard]:
        clip, first = self.clip, self.size.first_block
        heard = hear_prompt(steps, clip.flow_ids, clip.flow_mel, clip.flow_speaker, self.key)
        return FlowPieces(steps, context=first, tokens=(first + LOOKAHEAD,), batches=(1,)), heard


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_ms(act: Callable[[], object], rounds: int, device: torch.device) -> float:
    """By the clock, from an idle device to an idle device; the first two runs, which record, not counted."""
    times = []
    for turn in range(rounds + 2):
        synchronize(device)
        started = time.perf_counter()
        act()
        synchronize(device)
        if turn >= 2:
            times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def step_ms(bench: Bench, decoder: Decoder, slots: int = 1) -> float:
    """One step, of a whole sentence's steps launched one after another."""
    steps = decoder.plan.steps
    launches = bench.size.tokens // steps
    bench.decode(decoder, bench.sampling, slots=slots)
    times = []
    for _ in range(3):
        for slot in range(slots):
            decoder.begin(
                slot, bench.prompt(decoder.t3), sampling=bench.sampling, seed=slot, budget=bench.size.tokens
            )
        synchronize(bench.device)
        started = time.perf_counter()
        for _ in range(launches):
            decoder.launch(steps)
        synchronize(bench.device)
        times.append(1000 * (time.perf_counter() - started) / (launches * steps))
    return statistics.median(times)


def plain_tokens(bench: Bench, board: Board, name: str) -> list[int]:
    """Greedy tokens of engine/decode.py's own loop, and what one of its steps costs."""
    engine = Path(__file__).parents[1] / "src" / "nightingale" / "engine"
    if "nightingale.engine" not in sys.modules:
        # The room without its face, which would import packages that a bare machine does not have.
        room = types.ModuleType("nightingale.engine")
        room.__path__ = [str(engine)]
        sys.modules["nightingale.engine"] = room
    from nightingale.engine.decode import Decoding
    from nightingale.engine.habits import HABITS

    habits = replace(HABITS["turbo" if bench.turbo else "multilingual"], max_new_tokens=bench.size.tokens)
    sampling = replace(bench.sampling, temperature=0.0)
    decoding = Decoding(bench.t3, habits=habits, sampling=sampling, text_ids=60, rng=torch.Generator())
    x = bench.prompt(bench.t3)
    memory = bench.t3.new_memory(rows=len(x), capacity=x.shape[1] + bench.size.tokens)
    tokens: list[int] = []
    started = time.perf_counter()
    while not decoding.finished:
        tokens.append(decoding.accept(bench.t3.next_scores(x, memory)))
        x = bench.t3.embed_speech(torch.full((len(x), 1), tokens[-1], device=bench.device), decoding.drawn)
    board.rows[f"{name}plain float32 step, ms"] = 1000 * (time.perf_counter() - started) / len(tokens)
    return tokens


def check_greedy(bench: Bench, board: Board, name: str) -> None:
    """Float32: the graphs' tokens are the plain path's. Bfloat16: how far it goes along with them."""
    expected = bench.expected = plain_tokens(bench, board, name)
    sampling = replace(bench.sampling, temperature=0.0)
    exact = bench.decoder(bench.t3)
    ours = bench.decode(exact, sampling)[0]
    board.checks[f"{name}float32 greedy tokens identical"] = ours == expected
    board.checks[f"{name}float32 greedy tokens"] = len(expected)
    board.checks[f"{name}float32 different tokens"] = len(set(expected))
    board.rows[f"{name}float32 step, ms"] = step_ms(bench, exact)
    half = bench.decoder(bench.t3_half)
    prefix = bench.decode(half, sampling)[0]
    same = next((i for i, (a, b) in enumerate(zip(prefix, expected, strict=False)) if a != b), len(prefix))
    board.checks[f"{name}bfloat16 greedy prefix"] = same
    for decoder in (exact, half):
        decoder.begin(0, bench.prompt(decoder.t3), sampling=sampling, seed=0, budget=1)
    told, near = exact.state.scores, half.state.scores
    board.checks[f"{name}bfloat16 score error"] = error_of(near, told)


def check_twins(bench: Bench, board: Board, name: str) -> None:
    """Each graph beside its eager twin, at full size, and the kernels' tokens beside the plain ones."""
    size, device = bench.size, bench.device
    ids = torch.cat([bench.clip.flow_ids, bench.clip.flow_ids[:, : size.tokens]], dim=1)
    steps, heard = FlowSteps(bench.flow), {}
    for how in ("eager", how_on(device)):
        whole = WholeFlow(steps, batches=(1,), tokens=(ids.shape[1] + 10,), how=how)
        for _ in range(2):
            mel = whole(
                ids,
                torch.full((1,), ids.shape[1], device=device),
                prompt_mel=bench.clip.flow_mel,
                prompt_frames=torch.full((1,), bench.clip.flow_mel.shape[2], device=device),
                speaker=bench.clip.flow_speaker,
                key=bench.key,
            )
        heard[how] = mel.clone()
    board.checks[f"{name}flow: graph from eager"] = error_of(heard[how_on(device)], heard["eager"])
    mel, frames = heard["eager"][..., -FRAMES * size.tokens :], FRAMES * size.tokens
    ends, sounds = torch.full((1,), frames, device=device), {}
    for how in ("eager", how_on(device)):
        vocoder = Vocoder(bench.hift, batches=(1,), frames=(frames + 20,), how=how)
        sounds[how] = vocoder(mel, ends, key=bench.key, phase=bench.phase)[0].clone()
    board.checks[f"{name}vocoder: graph from eager"] = error_of(sounds[how_on(device)], sounds["eager"])
    noise = source_noise(bench.key, torch.zeros_like(bench.key), frames)
    source, _ = bench.hift.m_source(bench.hift.f0_predictor(mel), bench.phase, noise)
    board.checks[f"{name}vocoder: eager from plain"] = error_of(sounds["eager"], bench.hift(mel, source))
    if device.type == "cuda" and not bench.turbo:
        tokens = bench.decode(
            bench.decoder(bench.t3, way="triton"), replace(bench.sampling, temperature=0.0)
        )[0]
        board.checks["kernels: float32 greedy tokens identical"] = tokens == bench.expected


def error_of(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def ways_of(bench: Bench, *, compiled: bool) -> list[dict[str, Any]]:
    """What the compiler makes takes longest to make, and comes last."""
    if compiled:
        return [{"compile_mode": "default", "way": way} for way in ("sums", "sdpa")]
    tunings = [] if bench.turbo or bench.device.type != "cuda" else TUNINGS
    return [{}, *({"way": "triton", "tuning": tuning} for tuning in tunings)]


def best_decoder(bench: Bench, board: Board, name: str, ways: list[dict[str, Any]]) -> None:
    """Every way to take a step that works here; the fastest so far is used from now on."""
    for way in ways:
        spoken = "bfloat16, " + (", ".join(str(value) for value in way.values()) or "graph")

        def attempt(way: dict[str, Any] = way, spoken: str = spoken) -> None:
            decoder = bench.decoder(bench.t3_half, **way)
            taken = step_ms(bench, decoder)
            board.rows[f"{name}step by {spoken}, ms"] = taken
            if taken < board.rows.get(f"{name}t3 step, ms", float("inf")):
                bench.half = decoder
                board.rows[f"{name}t3 step, ms"] = taken
                board.checks[f"{name}t3 step by"] = spoken

        board.part(f"{name}step by {spoken}", attempt)


def sentences(bench: Bench, board: Board, name: str, precision: torch.dtype, *, compiling: bool) -> None:
    """The whole sentence and the first audio, with the flow in this precision."""
    assert bench.half is not None
    size, device, decoder = bench.size, bench.device, bench.half
    spoken = str(precision).removeprefix("torch.") + (", compiled" if compiling else "")
    steps = FlowSteps(bench.flow, precision=precision, compile_mode="default" if compiling else None)
    whole = WholeFlow(steps, batches=(1,), tokens=(size.prompt_tokens + size.tokens,))
    ids = bench.decode(decoder, bench.sampling)
    board.rows[f"{name}render, flow {spoken}, ms"] = median_ms(
        lambda: bench.render(whole, ids), size.rounds, device
    )
    taken = median_ms(lambda: bench.sentence(decoder, whole), size.rounds, device)
    board.rows[f"{name}sentence, flow {spoken}, ms"] = taken
    keep_least(board.rows, f"{name}sentence, ms", taken)
    if compiling:
        return  # a stream's pieces are not compiled
    pieces, heard = bench.pieces(steps)
    taken = median_ms(lambda: bench.first_audio(decoder, pieces, heard), size.first_rounds, device)
    board.rows[f"{name}first audio p50, flow {spoken}, ms"] = taken
    keep_least(board.rows, f"{name}first audio p50, ms", taken)


def keep_least(rows: dict[str, float], name: str, value: float) -> None:
    rows[name] = min(value, rows.get(name, float("inf")))


def flow_error(bench: Bench, board: Board, name: str) -> None:
    """Samples are compared nowhere: random weights make them chaotic. The mel says enough."""
    mels = []
    for precision in (torch.float32, torch.bfloat16):
        whole = WholeFlow(
            FlowSteps(bench.flow, precision=precision),
            batches=(1,),
            tokens=(bench.size.prompt_tokens + bench.size.tokens,),
            how="eager",
        )
        ids = torch.cat([bench.clip.flow_ids, bench.clip.flow_ids[:, : bench.size.tokens]], dim=1)
        mel = whole(
            ids,
            torch.full((1,), ids.shape[1], device=bench.device),
            prompt_mel=bench.clip.flow_mel,
            prompt_frames=torch.full((1,), bench.clip.flow_mel.shape[2], device=bench.device),
            speaker=bench.clip.flow_speaker,
            key=bench.key,
        )
        mels.append(mel.float())
    board.checks[f"{name}bfloat16 mel error"] = error_of(mels[1], mels[0])


def crowd(bench: Bench, board: Board, precision: torch.dtype) -> None:
    """As many sentences at once: prompts one by one, tokens all together, sound in batches."""
    size, device = bench.size, bench.device
    decoder = bench.decoder(bench.t3_half, slots=size.streams)
    board.rows[f"t3 step of {size.streams}, ms"] = step_ms(bench, decoder, size.streams)
    whole = WholeFlow(
        FlowSteps(bench.flow, precision=precision),
        batches=(size.render_batch,),
        tokens=(size.prompt_tokens + size.tokens,),
    )

    def speak() -> None:
        rows = bench.decode(decoder, bench.sampling, slots=size.streams)
        for start in range(0, size.streams, size.render_batch):
            bench.render(whole, rows[start : start + size.render_batch])

    taken = median_ms(speak, 3, device)
    spoken = str(precision).removeprefix("torch.")
    board.rows[f"{size.streams} sentences, flow {spoken}, ms"] = taken
    rate = size.streams * size.tokens / 25 / (taken / 1000)
    board.rows[f"audio s/s at {size.streams}, flow {spoken}"] = rate
    board.rows["audio s/s at 64"] = max(rate, board.rows.get("audio s/s at 64", 0.0))


def tiny(preset: Preset, *, gpt: bool) -> Preset:
    backbone: Any = (
        Gpt2Config(layers=2, width=64, heads=4) if gpt else LlamaConfig(layers=2, width=64, heads=4, ffn=96)
    )
    flow = FlowConfig(
        encoder_width=32, encoder_heads=2, encoder_blocks=1, encoder_up_blocks=1, encoder_ffn=32,
        estimator_width=32, estimator_heads=1, estimator_mid_stages=1, estimator_stage_blocks=1,
        meanflow=preset.flow.meanflow,
    )  # fmt: skip
    hift = HiftConfig(base_channels=16, resblock_kernels=(3,), source_kernels=(3, 3, 3), f0_channels=16)
    t3 = replace(preset.t3, backbone=backbone, prompt_tokens=10)
    return replace(preset, t3=t3, flow=flow, hift=hift)


def table(board: Board) -> str:
    lines = [f"{'':34}{'upstream*':>11}{'must':>8}{'aim':>8}{'reached':>10}"]
    for name, (must, aim) in GOALS.items():
        reached = board.rows.get(name)
        told = UPSTREAM.get(name)
        lines.append(
            f"{name:34}{'–' if told is None else f'{told:.2f}':>11}{must:>8}{aim:>8}"
            f"{'none' if reached is None else f'{reached:.2f}':>10}"
        )
    if board.tiny:
        lines.append("toy sizes: these numbers prove the path and measure nothing")
    lines.append("* measured on an H200 on 2026-11-15 with upstream's modules, not in this run")
    return "\n".join(lines)


def machine(device: torch.device) -> dict[str, str]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "device": name or platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit.stdout.strip() or "unknown",
    }


@torch.no_grad()
def main(arguments: list[str] | None = None) -> Board:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy sizes: proves the path, measures nothing")
    parser.add_argument("--no-compile", action="store_true", help="leave out what torch.compile makes")
    parser.add_argument(
        "--budget-s", type=float, default=220.0, help="no part is begun after so many seconds"
    )
    parser.add_argument("--cudnn-search", action="store_true", help="let cuDNN time its convolutions first")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file too")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    size = TINY if options.tiny else Size()
    compiling = not options.no_compile and device.type == "cuda"
    board = Board(deadline=time.perf_counter() + options.budget_s, tiny=options.tiny)
    precisions = (torch.float32, torch.bfloat16) if device.type == "cuda" else (torch.float32,)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = options.cudnn_search
    built: dict[str, Bench] = {}
    for name, family in (("", "multilingual"), ("turbo: ", "turbo")):
        turbo = family == "turbo"
        preset = tiny(PRESETS[family], gpt=turbo) if options.tiny else PRESETS[family]

        def build(name: str = name, preset: Preset = preset, turbo: bool = turbo) -> None:
            built[name] = Bench(preset, size, device, turbo=turbo)

        board.part(f"{name}build", build)
        if name not in built:
            continue
        bench = built[name]
        board.part(f"{name}greedy", lambda b=bench, n=name: check_greedy(b, board, n))
        board.part(f"{name}twins", lambda b=bench, n=name: check_twins(b, board, n))
        best_decoder(bench, board, name, ways_of(bench, compiled=False))
        for precision in precisions:
            board.part(
                f"{name}sentences, flow {precision}",
                lambda b=bench, n=name, p=precision: sentences(b, board, n, p, compiling=False),
            )
        if not turbo:
            board.part("crowd", lambda b=bench: crowd(b, board, precisions[-1]))
    if compiling:
        for name, bench in built.items():
            best_decoder(bench, board, name, ways_of(bench, compiled=True))
            board.part(
                f"{name}sentences again, flow bfloat16",
                lambda b=bench, n=name: sentences(b, board, n, torch.bfloat16, compiling=False),
            )
            board.part(
                f"{name}sentences, compiled flow",
                lambda b=bench, n=name: sentences(b, board, n, torch.bfloat16, compiling=True),
            )
    if "" in built and device.type == "cuda":
        board.part("crowd, flow float32", lambda: crowd(built[""], board, torch.float32))
        board.part("flow error", lambda: flow_error(built[""], board, ""))
    print(*(f"{name:52}{value:10.3f}" for name, value in board.rows.items()), sep="\n")
    print(*(f"{name}: {value}" for name, value in (board.checks | board.errors).items()), sep="\n")
    print(table(board))
    result = machine(device) | {
        "tiny": options.tiny,
        "cudnn_search": options.cudnn_search,
        "upstream_same_run": False,
        "rows": {name: round(value, 4) for name, value in board.rows.items()},
        "checks": board.checks,
        "errors": board.errors,
    }
    line = json.dumps(result, separators=(",", ":"))
    if options.out:
        with options.out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    print(line)
    return board


if __name__ == "__main__":
    main()
