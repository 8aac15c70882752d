"""The GPU tables of docs/performance.md: one engine with many listeners, and with one, beside upstream.

    python -m nightingale_lab.bench gpu_engine --upstream DIR       # on the GPU: up to eight minutes
    python -m nightingale_lab.bench gpu_engine                      # ours alone
    python -m nightingale_lab.bench gpu_engine --part multilingual/capacity,turbo/alone    # some parts; * is any text
    python -m nightingale_lab.bench gpu_engine --tiny --device cpu  # the same path, eager: proves that it runs

Weights are random and of full size: multilingual with ten guided steps of the flow, and Turbo. A sentence is
102 speech tokens (4.08 s) of 60 text ids, in a voice with a ten-second prompt. Ours is the engine itself: text
in, samples on the host, through TTS and its worker thread; scheduling, streaming and copies included. Upstream
is its own loops in float32 in the same process (nightingale_lab/upstream/upstream_side.py). Needs torch, numpy and
safetensors only.

Parts of each family:

upstream    a sentence of upstream's, and greedy tokens of ours, alone and among 64 voices, beside its own
alone       profile `fast`, one listener: T3 step, sentence, first audio
default     the default profile: sentence, first audio of three sentences
block       64 listeners at once who stream by block: 64 voices, then one voice; a voice never seen before
segment     64 listeners at once with 64 voices who stream by segment
capacity    the most listeners with first audio p95 up to 500 ms and underruns for up to 1 %, all at once
load        files to first audio in fresh processes, with empty caches and again
poisson     the capacity for callers who arrive at random
exact       a hash of the samples of profile `exact` with seeded weights, to compare commits on one kind of GPU

A part that fails is reported and the others run nevertheless. With --timeline, a sentence of `alone` runs under
torch's profiler, and the file can be opened in Perfetto or chrome://tracing. The last line is JSON.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile

from nightingale.backends.profiles import FAST, profile_named, with_options
from nightingale.engine.load import Model
from nightingale.engine.tts import TTS
from nightingale.models.chatterbox.presets import PRESETS
from nightingale_lab.bench.programs.gpu import board, gpu_goals
from nightingale_lab.bench.programs.gpu.gpu_models import (
    PLAIN,
    TEXT,
    TEXTS,
    THREE_SENTENCES,
    greedy_tokens,
    load_times,
    open_engine,
    upstream_networks,
)
from nightingale_lab.bench.runner import option, report
from nightingale_lab.bench.speed.capacity import CapacityLimits, find_capacity
from nightingale_lab.bench.speed.listeners import Arrivals, measure_listeners
from nightingale_lab.bench.speed.listeners_run import VoiceTargets
from nightingale_lab.bench.speed.targets import engine_target
from nightingale_lab.bench.speed.voices import NEW_VOICES, derived_voice, new_voice_cost
from nightingale_lab.random_models import random_model, random_voice, seeded_model
from nightingale_lab.upstream.upstream_side import UpstreamModel, UpstreamPackages

ORDER = (
    ("multilingual", ("upstream",)),
    ("turbo", ("upstream",)),
    ("multilingual", ("alone", "block", "capacity", "default", "segment")),
    ("turbo", ("alone", "capacity", "default")),
    ("multilingual", ("load", "poisson")),
    ("turbo", ("block", "poisson", "segment", "load")),
    ("multilingual", ("exact",)),
    ("turbo", ("exact",)),
)
"""Parts with goals first. A family's model is made once per line, and an engine once for parts in a row."""
MOST = {"multilingual": 160, "turbo": 320}
"""The most listeners that the search of the capacity tries."""
START = {"multilingual": 32, "turbo": 96}
SLOTS = {"multilingual": 64, "turbo": 128}
"""Slots that the official models get by default on an H200. Sentences of random ones are shorter: more would fit."""


class EngineBench:
    def __init__(self, shown: board.ScriptBoard) -> None:
        options = shown.options
        self.options, self.board, self.device = options, shown, shown.device
        self.tokens = 12 if options.tiny else 102
        self.listeners = 3 if options.tiny else options.listeners
        self.rounds = 1 if options.tiny else 5
        self.first_audio_rounds = 2 if options.tiny else 20
        self.packages: UpstreamPackages | None = None
        self._engine: tuple[tuple[str, str | None], TTS, ExitStack] | None = None
        self._model: Model | None = None

    def summary(self) -> dict[str, Any]:
        table = gpu_goals.table(self.board.rows, self.listeners)
        return {"part": self.options.part, "upstream_same_run": self.packages is not None, "table": table}

    def model(self, family: str) -> Model:
        """Return the model of a family. One is held at a time, so that its memory can be measured."""
        if self._model is None or self._model.name != family:
            self.drop_model()
            self._model = self._random(family)
        return self._model

    def drop_model(self) -> None:
        self.close_engine()
        self._model = None
        self._empty_cache()

    def _random(self, family: str, networks: Any = None) -> Model:
        return random_model(
            family, device=self.device, tiny=self.options.tiny, tokens=self.tokens, networks=networks
        )

    def _empty_cache(self) -> None:
        gc.collect()  # engines hold their graphs in cycles
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def reset_peak_memory(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    @contextmanager
    def engine(self, model: Model, profile: str | None = None, *, stream: str | None = None) -> Iterator[TTS]:
        """Open an engine as a server would, or go on with the one that is open."""
        spelled = with_options(profile, {"stream": stream, "slots": SLOTS[model.name]})
        if self._engine is None or self._engine[0] != (model.name, spelled):
            self.close_engine()
            opened = ExitStack()
            tts = opened.enter_context(self._opened(model, spelled))
            self._engine = (model.name, spelled), tts, opened
        self.reset_peak_memory()
        yield self._engine[1]

    def close_engine(self) -> None:
        if self._engine is not None:
            self._engine[2].close()
        self._engine = None

    @contextmanager
    def _opened(self, model: Model, spelled: str | None) -> Iterator[TTS]:
        wanted = replace(profile_named(spelled, default=model.defaults.profile), queue_limit=1024)
        self._empty_cache()
        started = time.perf_counter()
        with open_engine(model, wanted, self.device, max_streams=self.options.max_streams) as tts:
            chosen = {one.role: f"{one.backend.name} {one.precision}" for one in tts.plan.choices}
            ready = f"{chosen}, ready in {time.perf_counter() - started:.1f} s"
            if self.device.type == "cuda" and wanted.in_blocks:  # as a while after the start of a server
                tts.say(TEXT, seed=1)
                while tts._worker.preparing:
                    time.sleep(0.1)
                ready += f", prepared in {time.perf_counter() - started:.1f} s"
            report(f"         {model.name}, {wanted.name}: {ready}")
            yield tts

    def upstream(self, family: str) -> None:
        """Time a sentence of upstream's, and compare greedy tokens in float32 from the same weights."""
        self.drop_model()
        model, theirs = self._random(family), None
        if self.options.upstream:
            self.packages = self.packages or UpstreamPackages(self.options.upstream)
            self.board.checks["upstream's packages"] = self.packages.versions
            voice = random_voice(PRESETS[family])
            theirs = UpstreamModel(self.packages, family, self.device, voice)
            model = self._random(family, upstream_networks(theirs.model, PRESETS[family], self.device))
            times = theirs.measure(model.frontend.encode(TEXT, None), self.tokens, rounds=2)
            rows, name = self.board.rows, f"{family}, upstream"
            rows[f"{name}: T3 step, ms"], rows[f"{name}: sentence, ms"] = times.t3_token, times.sentence
            rows[f"{name}: of which s3gen, ms"] = times.s3gen
        own = model.default_voice
        assert own is not None
        texts = [TEXT + " And so on." * n for n in range(3)]
        others = self.listeners - len(texts)
        voices = [own] * len(texts) + [derived_voice(own, n) for n in range(others)]
        drawn = {
            "graphs alone": [greedy_tokens(model, FAST, self.device, [text], [own])[0] for text in texts[:1]],
            f"graphs among {self.listeners} voices": greedy_tokens(
                model, FAST, self.device, texts + [TEXT] * others, voices
            ),
        }
        encode = model.frontend.encode
        expected = (
            [theirs.greedy(encode(text, None), self.tokens) for text in texts]
            if theirs
            else greedy_tokens(model, replace(FAST, **PLAIN, batched=False), self.device, texts, [own] * 3)
        )
        whose = "upstream's" if theirs else "plain's"
        for how, found in drawn.items():
            name, pairs = (
                f"{family}: float32 greedy tokens of {how} as {whose}",
                list(zip(expected, found, strict=False)),
            )
            self.board.checks[name] = all(ours == known for known, ours in pairs)
            self.board.checks[f"{name}: same until"] = [
                board.same_until(known, ours) for known, ours in pairs
            ]

    def step_ms(self, tts: TTS) -> float:
        """Return the time of one T3 step in the engine's own decoder for one stream, sampling included."""
        while tts._worker._has_work():  # the last listener has left, and the worker may not have noticed
            time.sleep(0.01)
        decoder = tts._worker.decoder._loop  # type: ignore[attr-defined]
        width, length = decoder.t3.config.backbone.width, 8 if self.options.tiny else 96
        prompt = 0.02 * torch.randn(decoder.rows, length, width)
        times, launches = [], self.tokens // decoder.plan.steps
        for turn in range(4):
            given = prompt.to(self.device, decoder.dtype)
            sampling = tts._worker.model.defaults.sampling
            decoder.prefill(0, given, sampling=sampling, seed=turn, budget=self.tokens)
            decoder.compute_prompts()
            board.synchronize(self.device)
            started = time.perf_counter()
            for _ in range(launches):
                pending = decoder.launch(decoder.plan.steps)
            pending.take()
            times.append(1000 * (time.perf_counter() - started) / (launches * decoder.plan.steps))
        decoder.release(0)
        board.synchronize(self.device)
        return float(statistics.median(times[1:]))

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

    def alone(self, family: str) -> None:
        name, rows = f"{family}, fast", self.board.rows
        with self.engine(self.model(family), "fast", stream="block") as tts:
            self.board.checks[f"{name}: tokens of a sentence"] = tts.say(TEXT, seed=1).metrics.tokens
            self.repeats(name, tts)
            self.sentence(name, tts)
            rows[f"{name}: first audio p50, ms"] = self.first_audio_ms(tts, TEXT)
            rows[f"{name}: T3 step, ms"] = self.step_ms(tts)
            if self.options.timeline:
                with profile() as profiled:
                    tts.say(TEXT, seed=1)
                self.options.timeline.mkdir(parents=True, exist_ok=True)
                profiled.export_chrome_trace(str(self.options.timeline / f"{family}.json"))

    def default(self, family: str) -> None:
        model, name = self.model(family), f"{family}, default"
        with self.engine(model) as tts:
            chosen = tts.plan.profile
            self.board.checks[f"{name}: profile and stream"] = f"{chosen.name}, {chosen.stream}"
            tts.say(TEXT, seed=1)
            self.repeats(name, tts)
            self.sentence(name, tts)
            self.board.rows[f"{name}: first audio of 3, ms"] = self.first_audio_ms(tts, THREE_SENTENCES)

    def sentence(self, name: str, tts: TTS) -> None:
        """Time a whole sentence, and its stages."""
        whole, stages = [], []
        for seed in range(self.rounds):
            started = time.perf_counter()
            audio = tts.say(TEXT, seed=seed)
            whole.append(1000 * (time.perf_counter() - started) * self.tokens / audio.metrics.tokens)
            stages.append(audio.metrics.stage_ms)
        self.board.rows[f"{name}: sentence, ms"] = statistics.median(whole)
        for stage in stages[-1]:
            spent = statistics.median(one.get(stage, 0.0) for one in stages)
            self.board.rows[f"{name}: of which {stage}, ms"] = spent

    def first_audio_ms(self, tts: TTS, text: str) -> float:
        times = []
        for seed in range(self.first_audio_rounds):
            started = time.perf_counter()
            stream = tts.stream(text, seed=seed)
            next(stream)
            times.append(1000 * (time.perf_counter() - started))
            stream.close()
        return statistics.median(times)

    def listeners_of(self, family: str, stream: str) -> None:
        """Measure 64 listeners at once with 64 voices; by block, one voice and new voices too."""
        model, rows = self.model(family), self.board.rows
        own = model.default_voice
        assert own is not None
        with self.engine(model, "fast", stream=stream) as tts:
            targets = VoiceTargets(tts, [own])
            counts = {"own voices": self.listeners} | ({"one voice": 1} if stream == "block" else {})
            if stream == "block":
                cost = new_voice_cost(
                    lambda voice: engine_target(tts, voice), targets.unused(NEW_VOICES), TEXT, own
                )
                rows[f"{family}, new voice: extra first audio, ms"] = cost["extra_ms"]
                rows[f"{family}, new voice: memory kept, MB"] = cost["kept_mb_per_voice"]
            for which, voices in counts.items():
                name = f"{family}, {which}, {stream}"
                row = measure_listeners(targets(voices), TEXTS, self.listeners, rounds=2)
                rows[f"{name}: audio s/s"] = row["audio_seconds_per_s"]
                rows[f"{name}: first audio p50, ms"] = row["ttfa_ms_p50"]
                rows[f"{name}: first audio p95, ms"] = row["ttfa_ms_p95"]
                rows[f"{name}: listeners with underruns"] = row["stalled_listeners"]
                rows[f"{name}: underruns"] = row["underruns"]
                if self.device.type == "cuda":
                    rows[f"{name}: GPU memory, GiB"] = torch.cuda.max_memory_allocated() / 2**30
                    rows[f"{name}: GPU memory reserved, GiB"] = torch.cuda.max_memory_reserved() / 2**30

    def capacity(self, family: str, arrivals: Arrivals) -> None:
        """Search for the most listeners, each with their own voice, who are served in time."""
        model, most = self.model(family), 4 if self.options.tiny else MOST[family]
        assert model.default_voice is not None
        known = self.board.rows.get(f"{family}: most listeners, together")
        start = 2 if self.options.tiny else int(known or START[family])
        with self.engine(model, "fast", stream="block") as tts:
            targets = VoiceTargets(tts, [model.default_voice])

            def measure(listeners: int) -> dict[str, Any]:
                row = measure_listeners(targets(listeners), TEXTS, listeners, arrivals=arrivals, rounds=2)
                shown = ", ".join(
                    f"{key} {row[key]}" for key in ("ttfa_ms_p95", "stalled_share", "audio_seconds_per_s")
                )
                report(f"         {listeners} listeners, {arrivals}: {shown}")
                return row

            limits = CapacityLimits(first_audio_ms=self.options.limit_ms)
            found = find_capacity(measure, limits, start=start, most=most)
        self.board.rows[f"{family}: most listeners, {arrivals}"] = found["listeners"]
        self.board.checks[f"{family}: more listeners, {arrivals}"] = found["limited_by"]
        self.board.found[f"{family}: capacity, {arrivals}"] = found

    def load(self, family: str) -> None:
        self.drop_model()
        for run, found in zip(("first", "again"), load_times(family, self.options), strict=True):
            self.board.rows[f"{family}: files to loaded, {run}, s"] = found["load_s"]
            self.board.rows[f"{family}: files to first audio, {run}, s"] = found["load_to_first_audio_s"]

    def exact(self, family: str) -> None:
        self.drop_model()
        model = seeded_model(family, tokens=self.tokens, tiny=self.options.tiny, device=self.device)
        with self._opened(model, "exact") as tts:
            digests = [tts.say(TEXT, seed=1).sha256 for _ in range(2)]
        checks, name = self.board.checks, f"{family}, exact"
        checks[f"{name}: hash of the samples"] = digests[0]
        checks[f"{name}: the same seed, the same samples"] = len(set(digests)) == 1

    def part(self, family: str, name: str) -> None:
        if name in ("block", "segment"):
            self.listeners_of(family, name)
        elif name in ("capacity", "poisson"):
            self.capacity(family, "together" if name == "capacity" else "poisson")
        else:
            getattr(self, name)(family)


OPTIONS = (
    option("--upstream", type=Path, help="a folder of `make upstream-env`"),
    option("--timeline", type=Path, help="a folder for timelines of a sentence"),
    option("--part", default="*", help="parts with commas, such as multilingual/block,turbo/*"),
    option("--listeners", type=int, default=64, help="listeners at once"),
    option("--limit-ms", type=float, default=500.0, help="limit of first audio p95 for the capacity"),
    option(
        "--max-streams",
        type=lambda n: n if n == "auto" else int(n),
        default="auto",
        help="requests that are synthesized at once; auto: as many as the engine can keep supplied",
    ),
)


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = board.parser(__doc__, *OPTIONS, budget_s=400.0)
    options = parser.parse_args(arguments)
    if options.tiny and options.upstream:
        parser.error("upstream has no tiny sizes: give --tiny or --upstream")
    shown = board.ScriptBoard(options)
    bench = EngineBench(shown)
    shown.more = bench.summary
    torch.manual_seed(0)
    wanted = options.part.split(",")
    for family, names in ORDER:
        for name in names:
            part = f"{family}/{name}"
            if any(fnmatch(part, pattern.strip()) for pattern in wanted):
                shown.part(part, partial(bench.part, family, name))
    bench.close_engine()
    gpu_goals.print_goals(bench.summary()["table"])
    shown.finish("gpu_engine")
