"""The GPU table of docs/performance.md: ours and upstream from the same weights, in the same run, on one GPU.

    python benchmarks/gpu_engine.py --upstream DIR       # on the GPU: four minutes; DIR: see upstream_side.py
    python benchmarks/gpu_engine.py                      # ours alone: under three minutes, random weights
    python benchmarks/gpu_engine.py --tiny --device cpu  # the same path, eager: proves that it runs

Ours is the engine itself: text ids in, samples on the host, through TTS and its worker thread; scheduling,
streaming and copies included. Upstream is its own loops in float32 (benchmarks/upstream_side.py). Needs
torch, numpy and safetensors only. A sentence is 102 speech tokens of 60 text ids, in a voice with a
ten-second prompt. benchmarks/gpu.py measures the parts by themselves. With --timeline, a sentence runs under
torch's profiler, and the files can be opened in Perfetto or chrome://tracing.

Checked: in float32 and greedy, the tokens of the graphs are those of the plain runner, alone and batched, and
upstream's; the same seed gives the same samples, even if the host is delayed. A part that fails is reported
and the others run nevertheless. The last line is JSON.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import torch
from torch.profiler import profile
from upstream_side import UpstreamModel, UpstreamPackages

from nightingale.backends import BACKENDS
from nightingale.backends.profiles import PROFILES, Profile
from nightingale.backends.selection import Choice, Plan, find_machine, select
from nightingale.engine.load import Model
from nightingale.engine.rendering.utterance import Utterance
from nightingale.engine.tts import TTS
from nightingale.models.chatterbox.build import UNUSED_BY_T3
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.presets import PRESETS, Preset
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import fold_weight_norm, load, part
from nightingale_lab.bench import board
from nightingale_lab.random_models import Networks, random_model, random_voice
from nightingale_lab.reference import backend_named, setup_for

TEXT = "This sentence stands for sixty text ids."
PLAIN: dict[str, Any] = {"decoder": (), "renderer": ()}
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
"""Name, family, name of the row, must and aim."""


def upstream_networks(upstream: Any, preset: Preset, device: torch.device) -> Networks:
    """Return our networks with upstream's weights."""
    t3, s3gen, source = upstream.t3.state_dict(), upstream.s3gen.state_dict(), Path("upstream")
    vocoder = fold_weight_norm(part(s3gen, "mel2wav."))
    return Networks(
        t3=load(lambda: T3(preset.t3), t3, source=source, unused=UNUSED_BY_T3).to(device),
        flow=load(lambda: Flow(preset.flow), part(s3gen, "flow."), source=source).to(device),
        hift=load(lambda: Hift(preset.hift), vocoder, source=source).to(device),
    )


def plan_for(model: Model, profile: Profile, device: torch.device, dtype: str) -> Plan:
    """Return the plan for this machine. Without a GPU, the functions of the CUDA graphs run eagerly."""
    machine = find_machine(BACKENDS, str(device))
    if device.type == "cuda":
        return select(BACKENDS, model.info, machine, profile, dtype=dtype)
    plan = select(BACKENDS, model.info, machine, replace(profile, **PLAIN))
    cuda, setup = backend_named("cuda"), setup_for(profile)
    return replace(
        plan,
        profile=profile,
        decoder=Choice(role="decoder", backend=cuda, setup=setup) if profile.decoder else plan.decoder,
        renderer=Choice(role="renderer", backend=cuda, setup=setup) if profile.renderer else plan.renderer,
    )


@contextmanager
def captured_tokens() -> Iterator[dict[int, list[int]]]:
    """Capture the tokens that every engine of this process samples, by seed."""
    captured: dict[int, list[int]] = {}
    accept = Utterance.accept

    def capture(utterance: Utterance, token: int) -> None:
        captured.setdefault(utterance.request.seed, []).append(token)
        accept(utterance, token)

    Utterance.accept = capture  # type: ignore[method-assign]
    try:
        yield captured
    finally:
        Utterance.accept = accept  # type: ignore[method-assign]


class EngineBench:
    def __init__(self, shown: board.ScriptBoard) -> None:
        options = shown.options
        self.options, self.board, self.device = options, shown, shown.device
        self.tokens = 12 if options.tiny else 102
        self.streams = 3 if options.tiny else 64
        self.rounds = 1 if options.tiny else 5
        self.first_audio_rounds = 2 if options.tiny else 20
        self.models: dict[str, Model] = {}
        self.packages: UpstreamPackages | None = None
        self.upstreams: dict[str, UpstreamModel] = {}

    def summary(self) -> dict[str, Any]:
        return {"upstream_same_run": bool(self.upstreams), "table": self.table()}

    def table(self) -> dict[str, dict[str, Any]]:
        rows, found = self.board.rows, {}
        for what, family, row, must, aim in TABLE:
            row = row.replace("64", str(self.streams))
            reached, theirs = rows.get(f"{family}, fast: {row}"), rows.get(f"{family}, upstream: {row}")
            higher = what.startswith("audio")
            met = (
                None if reached is None or must is None else (reached >= must if higher else reached <= must)
            )
            found[what] = {
                "upstream": theirs and round(theirs, 2), "must": must, "aim": aim,
                "reached": reached and round(reached, 3), "met": met,
            }  # fmt: skip
        return found

    def build(self, family: str) -> None:
        """Make both sides from the same weights, if upstream is there."""
        networks = None
        if self.options.upstream:
            self.packages = self.packages or UpstreamPackages(self.options.upstream)
            self.board.checks["upstream's packages"] = self.packages.versions
            voice = random_voice(PRESETS[family])
            upstream = self.upstreams[family] = UpstreamModel(self.packages, family, self.device, voice)
            networks = upstream_networks(upstream.model, PRESETS[family], self.device)
        self.models[family] = random_model(
            family, device=self.device, tiny=self.options.tiny, tokens=self.tokens, networks=networks
        )

    def upstream(self, family: str) -> None:
        """Time a sentence and a token of upstream's own loop in float32."""
        text_ids = self.models[family].frontend.encode(TEXT, None)
        times = self.upstreams[family].measure(text_ids, self.tokens, rounds=3)
        name = f"{family}, upstream"
        self.board.rows[f"{name}: T3 step, ms"] = times.t3_token
        self.board.rows[f"{name}: sentence, ms"] = times.sentence
        self.board.rows[f"{name}: of which s3gen, ms"] = times.s3gen
        self.board.checks[f"{name}: tokens of a sentence"] = times.tokens

    @contextmanager
    def engine(
        self, family: str, profile: str, *, slots: int, dtype: str = "auto", **changes: Any
    ) -> Iterator[tuple[TTS, float]]:
        """Open an engine, and yield it with the seconds that took."""
        model = self.models[family]
        wanted = replace(PROFILES[profile], slots=slots, queue_limit=256, **changes)
        started = time.perf_counter()
        plan = plan_for(model, wanted, self.device, dtype)
        with TTS.over(model, wanted, plan=plan, max_streams=slots) as tts:
            load_s = time.perf_counter() - started
            chosen = {one.role: f"{one.backend.name} {one.precision}" for one in tts.plan.choices}
            board.report(f"         {family}, {profile}, {slots} slots: {chosen}, ready in {load_s:.1f} s")
            yield tts, load_s
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def greedy(self, family: str) -> None:
        """Compare greedy tokens of the graphs in float32 with the plain runner's, or with upstream's."""
        texts = [TEXT + " And so on." * i for i in range(3)]
        variants: dict[str, dict[str, Any]] = {"graphs": {"renderer": ()}}
        if family not in self.upstreams:
            variants["plain"] = {**PLAIN, "batched": False}
        drawn: dict[str, dict[int, list[int]]] = {}
        for name, changes in variants.items():
            with (
                self.engine(family, "fast", slots=4, dtype="float32", **changes) as (tts, _),
                captured_tokens() as captured,
            ):
                streams = [
                    tts.stream(text, seed=i, temperature=0.0, repetition_penalty=1.0)
                    for i, text in enumerate(texts)
                ]
                for stream in streams:
                    list(stream)
                drawn[name] = captured
        if upstream := self.upstreams.get(family):
            encode = self.models[family].frontend.encode
            drawn["upstream"] = {
                seed: upstream.greedy(encode(texts[seed], None), len(ids))
                for seed, ids in drawn["graphs"].items()
            }
        checks = self.board.checks
        for other in drawn.keys() - {"graphs"}:
            name = f"{family}: float32 greedy tokens as {other}'s"
            tokens = [token for ids in drawn[other].values() for token in ids]
            checks[f"{name}, batched"] = drawn[other] == drawn["graphs"]
            checks[f"{name}: same until"] = [
                board.same_until(ids, drawn["graphs"][seed]) for seed, ids in drawn[other].items()
            ]
            checks[f"{name}: compared"] = f"{len(tokens)}, {len(set(tokens))} different"

    def step_ms(self, tts: TTS) -> float:
        """Return the time of one T3 step in the engine's own decoder for one stream, sampling included."""
        decoder = tts._worker.decoder._loop  # type: ignore[attr-defined]
        width, length = decoder.t3.config.backbone.width, 8 if self.options.tiny else 96
        prompt = 0.02 * torch.randn(decoder.rows, length, width)
        times, launches = [], self.tokens // decoder.plan.steps
        for turn in range(4):
            given = prompt.to(self.device, decoder.dtype)
            sampling = tts._worker.model.defaults.sampling
            decoder.prefill(0, given, sampling=sampling, seed=turn, budget=self.tokens)
            board.synchronize(self.device)
            started = time.perf_counter()
            for _ in range(launches):
                pending = decoder.launch(decoder.plan.steps)
            pending.take()
            times.append(1000 * (time.perf_counter() - started) / (launches * decoder.plan.steps))
        decoder.release(0)
        board.synchronize(self.device)
        return statistics.median(times[1:])

    def repeats(self, name: str, tts: TTS) -> None:
        """Check that a seed gives the same samples, with the host delayed in some runs."""
        digests = []
        renderer, delay_s = tts._worker.renderer, 0.0
        render = renderer.render

        def delayed(blocks: Any) -> Any:
            time.sleep(delay_s)
            return render(blocks)

        renderer.render = delayed  # type: ignore[method-assign]
        for turn in range(2 if self.options.tiny else 6):
            delay_s = 0.02 * (turn % 3)
            digests.append(tts.say(TEXT, seed=7).sha256)
        renderer.render = render  # type: ignore[method-assign]
        self.board.checks[f"{name}: the same seed, the same samples"] = len(set(digests)) == 1

    def alone(self, family: str, profile: str, **changes: Any) -> None:
        """Time a whole sentence and its first audio, one stream at a time."""
        name = f"{family}, {'plain' if changes else profile}"
        rows = self.board.rows
        with self.engine(family, profile, slots=4, **changes) as (tts, load_s):
            rows[f"{name}: load and record, s"] = load_s
            self.board.checks[f"{name}: tokens of a sentence"] = tts.say(TEXT, seed=1).metrics.tokens
            if not changes:
                rows[f"{name}: T3 step, ms"] = self.step_ms(tts)
            self.repeats(name, tts)
            whole, stages = [], []
            for seed in range(1 if changes else self.rounds):
                started = time.perf_counter()
                audio = tts.say(TEXT, seed=seed)
                whole.append(1000 * (time.perf_counter() - started) * self.tokens / audio.metrics.tokens)
                stages.append(audio.metrics.stage_ms)
            rows[f"{name}: sentence, ms"] = statistics.median(whole)
            for stage in stages[-1]:
                rows[f"{name}: of which {stage}, ms"] = statistics.median(s.get(stage, 0.0) for s in stages)
            first = []
            for seed in range(2 if changes else self.first_audio_rounds):
                stream = tts.stream(TEXT, seed=seed)
                started = time.perf_counter()
                next(stream)
                first.append(1000 * (time.perf_counter() - started))
                stream.close()
            rows[f"{name}: first audio p50, ms"] = statistics.median(first)
            if self.options.timeline:
                self.timeline(name, tts)

    def timeline(self, name: str, tts: TTS) -> None:
        """Write the timeline of one sentence."""
        with profile() as profiled:
            tts.say(TEXT, seed=1)
        self.options.timeline.mkdir(parents=True, exist_ok=True)
        profiled.export_chrome_trace(str(self.options.timeline / f"{name.replace(', ', '-')}.json"))

    def batched(self, family: str, profile: str) -> None:
        """Time all streams at once."""
        name, rows = f"{family}, {profile}", self.board.rows
        with self.engine(family, profile, slots=self.streams) as (tts, _):
            for turn in range(2):  # the first one warms up
                started = time.perf_counter()
                streams = [tts.stream(TEXT, seed=i) for i in range(self.streams)]
                seconds = sum(len(chunk.samples) for stream in streams for chunk in stream) / 24_000
                taken = time.perf_counter() - started
                rows[f"{name}: audio s/s at {self.streams}{', cold' if turn == 0 else ''}"] = seconds / taken
                waits = [stream.metrics.ttfa_ms for stream in streams]
            rows[f"{name}: first audio p50 at {self.streams}, ms"] = statistics.median(waits)
            if self.device.type == "cuda":
                rows[f"{name}: GPU memory at {self.streams}, GiB"] = torch.cuda.max_memory_allocated() / 2**30


def render_table(table: dict[str, dict[str, Any]]) -> str:
    lines = [f"{'':46}{'upstream':>10}{'must':>8}{'aim':>8}{'reached':>10}"]
    for what, found in table.items():
        values = [found[name] for name in ("upstream", "must", "aim", "reached")]
        cells = ["–" if value is None else f"{value:g}" for value in values]
        lines.append(f"{what:46}{cells[0]:>10}{cells[1]:>8}{cells[2]:>8}{cells[3]:>10}")
    return "\n".join(lines)


@torch.no_grad()
def main(arguments: list[str] | None = None) -> None:
    parser = board.parser(__doc__, budget_s=150.0)
    parser.add_argument("--upstream", type=Path, help="an unpacked folder of upstream's packages")
    parser.add_argument("--timeline", type=Path, help="a folder for timelines of a sentence")
    options = parser.parse_args(arguments)
    if options.tiny and options.upstream:
        parser.error("upstream has no tiny sizes: give --tiny or --upstream")
    shown = board.ScriptBoard(options)
    bench = EngineBench(shown)
    shown.more = bench.summary
    torch.manual_seed(0)
    parts: list[tuple[str, Callable[[], None]]] = []
    for family in FAMILIES:
        parts += [(f"{family}: build", partial(bench.build, family))]
        if options.upstream:
            parts += [(f"{family}: upstream", partial(bench.upstream, family))]
        parts += [(f"{family}: alone, fast", partial(bench.alone, family, "fast"))]
    parts += [("multilingual: batched, fast", partial(bench.batched, "multilingual", "fast"))]
    parts += [(f"{family}: greedy", partial(bench.greedy, family)) for family in FAMILIES]
    parts += [
        ("turbo: batched, fast", partial(bench.batched, "turbo", "fast")),
        ("multilingual: alone, plain", partial(bench.alone, "multilingual", "balanced", **PLAIN)),
        ("turbo: alone, plain", partial(bench.alone, "turbo", "balanced", **PLAIN)),
        ("multilingual: alone, balanced", partial(bench.alone, "multilingual", "balanced")),
    ]
    for name, act in parts:
        shown.part(name, act)
    shown.finish("gpu_engine", render_table(bench.table()))


if __name__ == "__main__":
    main()
