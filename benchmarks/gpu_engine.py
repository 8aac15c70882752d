"""The engine itself on one GPU: text ids in, samples on the host, through TTS and its worker's thread.

    python benchmarks/gpu_engine.py                      # on the GPU: under four minutes, random weights
    python benchmarks/gpu_engine.py --tiny --device cpu  # the same path, eager: proves that it runs

benchmarks/gpu.py measures the parts by themselves; this measures what a listener gets: scheduling, streaming,
guards and copies included. Needs torch, numpy and safetensors, nothing else: packages that are only imported
are stood in for. A sentence is 102 speech tokens of 60 text ids, in a voice with a ten-second prompt.

What is checked: in float32 and greedy, the graphs' tokens are the plain runner's, alone and in a crowd; the
same seed gives the same samples. What is measured, for `balanced`, `fast` and the plain way: loading with
recording, a whole sentence, the first audio (p50 of 20), audio seconds per second of 64 streams. A part
that fails is named and the others go on; the last line is JSON, and each part's is written to --partial.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent)]
ONLY_IMPORTED = ("soxr", "soundfile", "tokenizers", "platformdirs", "num2words", "huggingface_hub")


class Absent(types.ModuleType):
    """Stands for a package that is imported and never used here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for package in ONLY_IMPORTED:
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        sys.modules[package] = Absent(package)

from gpu import Board, machine, tiny  # noqa: E402

from nightingale.engine import utterance  # noqa: E402
from nightingale.engine.habits import HABITS  # noqa: E402
from nightingale.engine.load import Model, Once, plan_for  # noqa: E402
from nightingale.engine.plan import Plan  # noqa: E402
from nightingale.engine.profiles import PROFILES, Profile  # noqa: E402
from nightingale.engine.tts import TTS  # noqa: E402
from nightingale.engine.utterance import Utterance  # noqa: E402
from nightingale.models.chatterbox.build import Speakers  # noqa: E402
from nightingale.models.chatterbox.hift.generator import Hift  # noqa: E402
from nightingale.models.chatterbox.presets import PRESETS  # noqa: E402
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES  # noqa: E402
from nightingale.models.chatterbox.s3gen.flow import Flow  # noqa: E402
from nightingale.models.chatterbox.t3.model import T3  # noqa: E402
from nightingale.text.frontend import Frontend  # noqa: E402
from nightingale.voices.voice import Voice  # noqa: E402

TEXT = "This sentence stands for sixty text ids."
PLAIN: dict[str, Any] = {"t3": (), "flow": (), "vocoder": ()}


class Sixty:
    """Every text is as many ids."""

    vocab_size = 256

    def __init__(self, ids: int) -> None:
        self._ids = ids

    def encode(self, text: str, language: str | None = None) -> list[int]:  # noqa: ARG002, a protocol
        return [(7 * i + len(text)) % 200 for i in range(self._ids)]


def build(family: str, device: torch.device, *, toy: bool, tokens: int) -> Model:
    """A member of full size with random weights, and a voice with a ten-second prompt."""
    preset = tiny(PRESETS[family], gpt=family == "turbo") if toy else PRESETS[family]
    prompt = 20 if toy else 250
    with torch.device(device):  # random weights are made where they are needed
        t3 = T3(preset.t3).eval().requires_grad_(False).to(device)
        flow = Flow(preset.flow).eval().requires_grad_(False).to(device)
        hift = Hift(preset.hift).eval().requires_grad_(False).to(device)
    rng = torch.Generator().manual_seed(0)
    voices = "turbo" if family == "turbo" else "chatterbox"
    shown = min(preset.t3.prompt_tokens, 375 if voices == "turbo" else 150)
    voice = Voice.checked(
        name="random",
        family=voices,
        speaker=torch.randn(preset.t3.speaker_width, generator=rng),
        prompt_ids=torch.randint(SPEECH_CODES, (shown,), generator=rng),
        flow_prompt_ids=torch.randint(SPEECH_CODES, (prompt,), generator=rng),
        flow_prompt_mel=torch.randn(2 * prompt, 80, generator=rng),
        flow_speaker=torch.randn(preset.flow.speaker_width, generator=rng),
    )

    def nobody() -> Any:
        raise RuntimeError("no voices are made here")

    return Model(
        name=family,
        voice_family=voices,
        frontend=Frontend(tokenizer=Sixty(6 if toy else 60)),
        speakers=Speakers(t3=t3, flow=flow, hift=hift),
        listeners=Once(nobody),
        habits=replace(HABITS[family], max_new_tokens=tokens, guarded=False, tail_silence_tokens=0),
        default_voice=voice,
        fingerprint="random",
    )


class Bench:
    def __init__(self, options: argparse.Namespace, board: Board) -> None:
        self.options, self.board = options, board
        self.device = torch.device(options.device)
        self.tokens = 12 if options.tiny else 102
        self.streams = 3 if options.tiny else 64
        self.rounds = 1 if options.tiny else 5
        self.firsts = 2 if options.tiny else 20
        self.models: dict[str, Model] = {}

    def part(self, name: str, act: Callable[[], None]) -> None:
        self.board.part(name, act)
        if self.options.partial:
            self.options.partial.write_text(json.dumps(self.result()) + "\n", encoding="utf-8")

    def result(self) -> dict[str, Any]:
        return machine(self.device) | {
            "tiny": self.options.tiny,
            "rows": {name: round(value, 4) for name, value in self.board.rows.items()},
            "checks": self.board.checks,
            "errors": self.board.errors,
        }

    def plan(self, model: Model, profile: Profile) -> Plan:
        """This machine's; without a GPU, graphs are run eagerly, which proves the path and nothing else."""
        made = plan_for(model, profile)
        if self.device.type == "cuda":
            return made
        ways: dict[str, Any] = {
            stage: replace(getattr(made, stage), way="graphs")
            for stage in ("t3", "flow", "vocoder")
            if getattr(profile, stage)
        }
        return replace(made, **ways)

    @contextmanager
    def engine(
        self, family: str, profile: str, *, slots: int, dtype: str = "auto", **changes: Any
    ) -> Iterator[TTS]:
        model = replace(self.models[family], dtype=dtype)
        wanted = replace(PROFILES[profile], slots=slots, queue_limit=256, **changes)
        started = time.perf_counter()
        with TTS.over(model, wanted, plan=self.plan(model, wanted)) as tts:
            tts.load_s = time.perf_counter() - started  # type: ignore[attr-defined]
            ways = {part.stage: f"{part.way} {part.dtype}" for part in tts.plan.parts}
            print(
                f"         {family}, {profile}, {slots} slots: {ways}, ready in {tts.load_s:.1f} s",
                flush=True,
            )  # type: ignore[attr-defined]
            yield tts
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def greedy(self, family: str) -> None:
        """Float32, temperature 0: the graphs' tokens beside the plain runner's."""
        drawn: dict[int, list[int]] = {}
        accept = Utterance.accept

        def noted(spoken: Utterance, token: int) -> None:
            drawn.setdefault(spoken.request.seed, []).append(token)
            accept(spoken, token)

        texts = [TEXT + " And so on." * i for i in range(3)]
        said = {}
        Utterance.accept = noted  # type: ignore[method-assign]
        try:
            for name, changes in (
                ("plain", {**PLAIN, "batched": False}),
                ("graphs", {"flow": (), "vocoder": ()}),
            ):
                with self.engine(family, "fast", slots=4, dtype="float32", **changes) as tts:
                    drawn.clear()
                    streams = [tts.stream(text, seed=i, temperature=0.0) for i, text in enumerate(texts)]
                    for stream in streams:
                        list(stream)
                    said[name] = dict(drawn)
        finally:
            Utterance.accept = accept  # type: ignore[method-assign]
        checks = self.board.checks
        checks[f"{family}: float32 greedy tokens identical, in a crowd"] = said["plain"] == said["graphs"]
        checks[f"{family}: greedy tokens compared"] = sum(map(len, said["plain"].values()))
        agree = [
            next(
                (i for i, (a, b) in enumerate(zip(one, said["graphs"][seed], strict=False)) if a != b),
                len(one),
            )
            for seed, one in said["plain"].items()
        ]
        checks[f"{family}: greedy prefixes"] = agree

    def alone(self, family: str, profile: str, **changes: Any) -> None:
        """One listener: the whole sentence, and the first sound of it."""
        name = f"{family}, {'plain' if changes else profile}"
        rows = self.board.rows
        with self.engine(family, profile, slots=4, **changes) as tts:
            rows[f"{name}: load and record, s"] = tts.load_s  # type: ignore[attr-defined]
            one, other = tts.say(TEXT, seed=1), tts.say(TEXT, seed=1)
            self.board.checks[f"{name}: the same seed, the same samples"] = one.sha256 == other.sha256
            self.board.checks[f"{name}: tokens of a sentence"] = one.metrics.tokens
            rounds = 1 if changes else self.rounds
            whole, stages = [], []
            for seed in range(rounds):
                started = time.perf_counter()
                audio = tts.say(TEXT, seed=seed)
                whole.append(1000 * (time.perf_counter() - started) * self.tokens / audio.metrics.tokens)
                stages.append(audio.metrics.stage_ms)
            rows[f"{name}: sentence, ms"] = statistics.median(whole)
            for stage in stages[-1]:
                rows[f"{name}: of which {stage}, ms"] = statistics.median(s.get(stage, 0.0) for s in stages)
            first = []
            for seed in range(2 if changes else self.firsts):
                stream = tts.stream(TEXT, seed=seed)
                started = time.perf_counter()
                next(stream)
                first.append(1000 * (time.perf_counter() - started))
                stream.close()
            rows[f"{name}: first audio p50, ms"] = statistics.median(first)

    def crowd(self, family: str, profile: str) -> None:
        """Everybody at once."""
        name, rows = f"{family}, {profile}", self.board.rows
        with self.engine(family, profile, slots=self.streams) as tts:
            for turn in range(2):  # the first one finds what is not yet warm
                started = time.perf_counter()
                streams = [tts.stream(TEXT, seed=i) for i in range(self.streams)]
                seconds = sum(len(chunk.samples) for stream in streams for chunk in stream) / 24_000
                taken = time.perf_counter() - started
                rows[f"{name}: audio s/s at {self.streams}{', cold' if turn == 0 else ''}"] = seconds / taken
                waits = [stream.metrics.ttfa_ms for stream in streams]
            rows[f"{name}: first audio p50 at {self.streams}, ms"] = statistics.median(waits)
            if self.device.type == "cuda":
                rows[f"{name}: GPU memory at {self.streams}, GiB"] = torch.cuda.max_memory_allocated() / 2**30


@torch.no_grad()
def main(arguments: list[str] | None = None) -> Board:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy sizes: proves the path, measures nothing")
    parser.add_argument(
        "--budget-s", type=float, default=190.0, help="no part is begun after so many seconds"
    )
    parser.add_argument("--partial", type=Path, help="where to write what is known after each part")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file too")
    options = parser.parse_args(arguments)
    board = Board(deadline=time.perf_counter() + options.budget_s, tiny=options.tiny)
    bench = Bench(options, board)
    torch.manual_seed(0)
    # A network of random weights draws control ids too; here they sound, so that a sentence has its length.
    utterance.audible = lambda ids: [token % SPEECH_CODES for token in ids]
    for family in ("multilingual", "turbo"):

        def make(family: str = family) -> None:
            bench.models[family] = build(family, bench.device, toy=options.tiny, tokens=bench.tokens)

        bench.part(f"{family}: build", make)
    parts: list[tuple[str, Callable[[], None]]] = []
    for family in bench.models:
        parts += [
            (f"{family}: greedy", lambda f=family: bench.greedy(f)),
            (f"{family}: alone, fast", lambda f=family: bench.alone(f, "fast")),
        ]
    parts += [
        ("multilingual: crowd, fast", lambda: bench.crowd("multilingual", "fast")),
        ("multilingual: alone, balanced", lambda: bench.alone("multilingual", "balanced")),
        ("turbo: crowd, fast", lambda: bench.crowd("turbo", "fast")),
        ("multilingual: alone, plain", lambda: bench.alone("multilingual", "balanced", **PLAIN)),
        ("turbo: alone, plain", lambda: bench.alone("turbo", "balanced", **PLAIN)),
    ]
    for name, act in parts:
        bench.part(name, act)
    print(*(f"{name:52}{value:10.3f}" for name, value in board.rows.items()), sep="\n")
    print(*(f"{name}: {value}" for name, value in (board.checks | board.errors).items()), sep="\n")
    if options.tiny:
        print("toy sizes: these numbers prove the path and measure nothing")
    line = json.dumps(bench.result(), separators=(",", ":"))
    if options.out:
        with options.out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    print(line)
    return board


if __name__ == "__main__":
    main()
