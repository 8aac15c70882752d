"""The GPU table of the issue: ours and upstream from the same weights, in the same call, on one GPU.

    python benchmarks/gpu_engine.py --upstream DIR       # on the GPU: four minutes; DIR: see upstream_side.py
    python benchmarks/gpu_engine.py                      # ours alone: under three minutes, random weights
    python benchmarks/gpu_engine.py --tiny --device cpu  # the same path, eager: proves that it runs

Ours is the engine itself: text ids in, samples on the host, through TTS and its worker's thread;
scheduling, streaming and copies included. Upstream is its own loops in float32 (benchmarks/upstream_side.py).
Needs torch, numpy and safetensors, nothing else: packages that are only imported are stood in for. A sentence
is 102 speech tokens of 60 text ids, in a voice with a ten-second prompt. benchmarks/gpu.py measures the parts
by themselves, gpu_trace.py says where the time goes.

What is checked: in float32 and greedy, the graphs' tokens are the plain runner's, alone and in a crowd, and
upstream's; the same seed gives the same samples, and if it does not, who is to blame. A part that fails is
named and the others go on; then the table; the last line is JSON, and each part's is written to --partial.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_board
import torch
from gpu_bits import look_into
from upstream_side import Guest, House

from nightingale.engine.rendering import utterance
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.engine.load import plan_for
from nightingale.engine.model import Model, Once
from nightingale.engine.plan import Plan
from nightingale.backends.profiles import PROFILES, Profile
from nightingale.engine.tts import TTS
from nightingale.engine.rendering.utterance import Utterance
from nightingale.models.chatterbox.build import UNUSED_BY_T3, Networks
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.presets import PRESETS, Preset
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES, FlowConfig
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.config import Gpt2Config, LlamaConfig
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import fold_weight_norm, load, part
from nightingale.text.frontend import Frontend
from nightingale.voices.voice import Voice

TEXT = "This sentence stands for sixty text ids."
PLAIN: dict[str, Any] = {"t3": (), "flow": (), "vocoder": ()}
FAMILIES = ("multilingual", "turbo")
TABLE = (
    ("T3 step with CFG and sampling, ms", "multilingual", "T3 step, ms", 1.6, 0.8),
    ("whole sentence, 10 steps with CFG, ms", "multilingual", "sentence, ms", 300, 120),
    ("first audio, streaming, warm, p50 of 20, ms", "multilingual", "first audio p50, ms", 90, 35),
    ("audio seconds per second at 64 streams", "multilingual", "audio s/s at 64", 60, 200),
    ("Turbo: whole sentence, ms", "turbo", "sentence, ms", 200, 80),
    ("Turbo: first audio, p50 of 20, ms", "turbo", "first audio p50, ms", 60, 25),
    ("Turbo: T3 step, ms", "turbo", "T3 step, ms", None, None),
)
"""What, whose, by which name of the rows, must and aim."""


def every_id_sounds() -> None:
    """Random weights may draw control ids too; here they are spoken, and a sentence has its length."""
    utterance.audible = lambda ids: [token % SPEECH_CODES for token in ids]


class Sixty:
    """Every text is as many ids."""

    vocab_size = 256

    def __init__(self, ids: int) -> None:
        self._ids = ids

    def encode(self, text: str, language: str | None = None) -> list[int]:  # noqa: ARG002, a protocol
        return [
            1 + (7 * i + len(text)) % 200 for i in range(self._ids)
        ]  # neither start nor stop is among them


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


def speakers_of(preset: Any, device: torch.device) -> Networks:
    """Random weights, made where they are needed."""
    with torch.device(device):
        t3, flow, hift = T3(preset.t3), Flow(preset.flow), Hift(preset.hift)
    with torch.no_grad():  # sounds are ever likelier than controls, so that a sentence has its length
        t3.speech_head.weight[:SPEECH_CODES] *= 10
        t3.speech_head.weight[SPEECH_CODES:] = 0
    nets = [net.to(device).eval().requires_grad_(False) for net in (t3, flow, hift)]
    return Networks(t3=nets[0], flow=nets[1], hift=nets[2])  # type: ignore[arg-type]


def speakers_from(guest: Guest, preset: Any, device: torch.device) -> Networks:
    """Upstream's very weights, as ours reads them."""
    t3, s3gen, source = guest.t3.state_dict(), guest.s3gen.state_dict(), Path("upstream")
    return Networks(
        t3=load(lambda: T3(preset.t3), t3, source=source, unused=UNUSED_BY_T3).to(device),
        flow=load(lambda: Flow(preset.flow), part(s3gen, "flow."), source=source).to(device),
        hift=load(lambda: Hift(preset.hift), fold_weight_norm(part(s3gen, "mel2wav.")), source=source).to(
            device
        ),
    )


def build(family: str, device: torch.device, *, toy: bool, tokens: int, guest: Guest | None = None) -> Model:
    """A member of full size with random weights, or the guest's, and a voice with a ten-second prompt."""
    preset = tiny(PRESETS[family], gpt=family == "turbo") if toy else PRESETS[family]
    speakers = speakers_of(preset, device) if guest is None else speakers_from(guest, preset, device)

    def nobody() -> Any:
        raise RuntimeError("no voices are made here")

    return Model(
        name=family,
        voice_family="turbo" if family == "turbo" else "chatterbox",
        frontend=Frontend(tokenizer=Sixty(6 if toy else 60)),
        networks=speakers,
        encoders=Once(nobody),
        defaults=replace(MODEL_DEFAULTS[family], max_new_tokens=tokens, guarded=False, tail_silence_tokens=0),
        default_voice=voice_of(family, toy=toy),
        fingerprint="random",
    )


def voice_of(family: str, *, toy: bool) -> Voice:
    preset, prompt = PRESETS[family], 20 if toy else 250
    if toy:
        preset = tiny(preset, gpt=family == "turbo")
    rng = torch.Generator().manual_seed(0)
    voices = "turbo" if family == "turbo" else "chatterbox"
    shown = min(preset.t3.prompt_tokens, 375 if voices == "turbo" else 150)
    return Voice.checked(
        name="random",
        family=voices,
        speaker=torch.randn(preset.t3.speaker_width, generator=rng),
        prompt_ids=torch.randint(SPEECH_CODES, (shown,), generator=rng),
        flow_prompt_ids=torch.randint(SPEECH_CODES, (prompt,), generator=rng),
        flow_prompt_mel=torch.randn(2 * prompt, 80, generator=rng),
        flow_speaker=torch.randn(preset.flow.speaker_width, generator=rng),
    )


class Bench:
    def __init__(self, board: gpu_board.Board) -> None:
        options = board.options
        self.options, self.board, self.device = options, board, board.device
        self.tokens = 12 if options.tiny else 102
        self.streams = 3 if options.tiny else 64
        self.rounds = 1 if options.tiny else 5
        self.firsts = 2 if options.tiny else 20
        self.models: dict[str, Model] = {}
        self.house: House | None = None
        self.guests: dict[str, Guest] = {}

    def more(self) -> dict[str, Any]:
        return {"upstream_same_run": bool(self.guests), "table": self.table()}

    def table(self) -> dict[str, dict[str, Any]]:
        rows, told = self.board.rows, {}
        for what, family, row, must, aim in TABLE:
            row = row.replace("64", str(self.streams))
            reached, theirs = rows.get(f"{family}, fast: {row}"), rows.get(f"{family}, upstream: {row}")
            more = what.startswith("audio")
            met = None if reached is None or must is None else (reached >= must if more else reached <= must)
            told[what] = {
                "upstream": theirs and round(theirs, 2), "must": must, "aim": aim,
                "reached": reached and round(reached, 3), "met": met,
            }  # fmt: skip
        return told

    def build(self, family: str) -> None:
        """Both sides from the same weights, where upstream is there."""
        voice = voice_of(family, toy=self.options.tiny)
        if self.options.upstream:
            self.house = self.house or House(self.options.upstream)
            self.board.checks["upstream's packages"] = self.house.versions
            self.guests[family] = self.house.build(family, self.device, seed=0, voice=voice)  # type: ignore[arg-type]
        self.models[family] = build(
            family, self.device, toy=self.options.tiny, tokens=self.tokens, guest=self.guests.get(family)
        )

    def upstream(self, family: str) -> None:
        """Its own loop in float32: a sentence, and what a token of it takes."""
        times = self.guests[family].measure(self.text_ids(family), self.tokens, rounds=3)
        name = f"{family}, upstream"
        self.board.rows[f"{name}: T3 step, ms"] = times.t3_token
        self.board.rows[f"{name}: sentence, ms"] = times.sentence
        self.board.rows[f"{name}: of which s3gen, ms"] = times.s3gen
        self.board.checks[f"{name}: tokens of a sentence"] = times.tokens

    def text_ids(self, family: str) -> list[int]:
        return self.models[family].frontend.encode(TEXT, None)

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
        """Float32, temperature 0: the graphs' tokens beside the plain runner's, and beside upstream's."""
        drawn: dict[int, list[int]] = {}
        told: dict[int, list[int]] = {}
        accept = Utterance.accept

        def noted(spoken: Utterance, token: int) -> None:
            drawn.setdefault(spoken.request.seed, []).append(token)
            told[spoken.request.seed] = list(spoken.piece.text_ids)
            accept(spoken, token)

        texts = [TEXT + " And so on." * i for i in range(3)]
        ways: dict[str, dict[str, Any]] = {"graphs": {"flow": (), "vocoder": ()}}
        if family not in self.guests:  # who is the better judge
            ways["plain"] = {**PLAIN, "batched": False}
        said: dict[str, dict[int, list[int]]] = {}
        Utterance.accept = noted  # type: ignore[method-assign]
        try:
            for name, changes in ways.items():
                with self.engine(family, "fast", slots=4, dtype="float32", **changes) as tts:
                    drawn.clear()
                    streams = [
                        tts.stream(text, seed=i, temperature=0.0, repetition_penalty=1.0)
                        for i, text in enumerate(texts)
                    ]
                    for stream in streams:
                        list(stream)
                    said[name] = {seed: list(tokens) for seed, tokens in drawn.items()}
        finally:
            Utterance.accept = accept  # type: ignore[method-assign]
        if family in self.guests:
            guest = self.guests[family]
            said["upstream"] = {
                seed: guest.greedy(told[seed], len(ids)) for seed, ids in said["graphs"].items()
            }
        checks = self.board.checks
        for other in said.keys() - {"graphs"}:
            name = f"{family}: float32 greedy tokens as {other}'s"
            tokens = [token for ids in said[other].values() for token in ids]
            checks[f"{name}, in a crowd"] = said[other] == said["graphs"]
            checks[f"{name}: prefixes"] = [
                gpu_board.prefix(ids, said["graphs"][seed]) for seed, ids in said[other].items()
            ]
            checks[f"{name}: compared"] = f"{len(tokens)}, {len(set(tokens))} different"

    def step(self, tts: TTS) -> float:
        """Milliseconds of one of T3's steps in the engine's own decoder, for one speaker, draws included."""
        decoder: Any = tts._worker.draws._decoder  # type: ignore[attr-defined]
        width, length = decoder.t3.config.backbone.width, 8 if self.options.tiny else 96
        prompt = 0.02 * torch.randn(decoder.rows, length, width)
        times, launches = [], self.tokens // decoder.plan.steps
        for turn in range(4):
            given = prompt.to(self.device, decoder.dtype)
            sampling = tts._worker.model.defaults.sampling
            decoder.begin(0, given, sampling=sampling, seed=turn, budget=self.tokens)
            gpu_board.synchronize(self.device)
            started = time.perf_counter()
            for _ in range(launches):
                pending = decoder.launch(decoder.plan.steps)
            pending.take()
            times.append(1000 * (time.perf_counter() - started) / (launches * decoder.plan.steps))
        decoder.release(0)
        gpu_board.synchronize(self.device)
        return statistics.median(times[1:])

    def repeats(self, name: str, tts: TTS) -> None:
        """The same seed some times, the host delayed in some: the same samples, or who is to blame."""
        renderer: Any = getattr(tts._worker.studio, "_renderer", None)
        plain, delay = getattr(renderer, "launch", None), [0.0]

        def launch(blocks: Any) -> Any:
            time.sleep(delay[0])
            assert plain is not None
            return plain(blocks)

        if renderer is not None:
            renderer.launch = launch
        said = []
        for turn in range(2 if self.options.tiny else 6):
            delay[0] = 0.02 * (turn % 3)
            said.append(tts.say(TEXT, seed=7).sha256)
        if renderer is not None:
            del renderer.launch
        self.board.checks[f"{name}: the same seed, the same samples"] = len(set(said)) == 1
        if len(set(said)) == 1 or renderer is None or self.device.type != "cuda":
            return
        with torch.cuda.stream(renderer._stream):
            graphs = [*renderer.pieces._graphs.values(), *renderer.windows.vocoder._graphs.values()]
            found = look_into(graph for graph in graphs if ", 1 " in graph.name)
        self.board.checks[f"{name}: of {len(said)} sentences {len(set(said))} are different, by"] = found

    def alone(self, family: str, profile: str, **changes: Any) -> None:
        """One listener: the whole sentence, and the first sound of it."""
        name = f"{family}, {'plain' if changes else profile}"
        rows = self.board.rows
        with self.engine(family, profile, slots=4, **changes) as tts:
            rows[f"{name}: load and record, s"] = tts.load_s  # type: ignore[attr-defined]
            self.board.checks[f"{name}: tokens of a sentence"] = tts.say(TEXT, seed=1).metrics.tokens
            if not changes:
                rows[f"{name}: T3 step, ms"] = self.step(tts)
            self.repeats(name, tts)
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


def spoken_table(table: dict[str, dict[str, Any]]) -> str:
    lines = [f"{'':46}{'upstream':>10}{'must':>8}{'aim':>8}{'reached':>10}"]
    for what, found in table.items():
        cells = [found[name] for name in ("upstream", "must", "aim", "reached")]
        told = ["–" if cell is None else f"{cell:g}" for cell in cells]
        lines.append(f"{what:46}{told[0]:>10}{told[1]:>8}{told[2]:>8}{told[3]:>10}")
    return "\n".join(lines)


@torch.no_grad()
def main(arguments: list[str] | None = None) -> gpu_board.Board:
    parser = gpu_board.parser(__doc__, budget_s=150.0)
    parser.add_argument("--upstream", type=Path, help="an unpacked folder of upstream's packages")
    options = parser.parse_args(arguments)
    if options.tiny and options.upstream:
        parser.error("upstream has no toy sizes: give --tiny or --upstream")
    board = gpu_board.Board(options)
    bench = Bench(board)
    board.more = bench.more
    torch.manual_seed(0)
    every_id_sounds()
    parts: list[tuple[str, Callable[[], None]]] = []
    for family in FAMILIES:
        parts += [(f"{family}: build", lambda f=family: bench.build(f))]
        if options.upstream:
            parts += [(f"{family}: upstream", lambda f=family: bench.upstream(f))]
        parts += [(f"{family}: alone, fast", lambda f=family: bench.alone(f, "fast"))]
    parts += [("multilingual: crowd, fast", lambda: bench.crowd("multilingual", "fast"))]
    parts += [(f"{family}: greedy", lambda f=family: bench.greedy(f)) for family in FAMILIES]
    parts += [
        ("turbo: crowd, fast", lambda: bench.crowd("turbo", "fast")),
        ("multilingual: alone, plain", lambda: bench.alone("multilingual", "balanced", **PLAIN)),
        ("turbo: alone, plain", lambda: bench.alone("turbo", "balanced", **PLAIN)),
        ("multilingual: alone, balanced", lambda: bench.alone("multilingual", "balanced")),
    ]
    for name, act in parts:
        board.part(name, act)
    board.finish(spoken_table(bench.table()))
    return board


if __name__ == "__main__":
    main()
