"""Where the time of one sentence goes on a GPU: each graph by itself, side by side, and in the engine.

    python benchmarks/gpu_trace.py --partial trace.json  # on the GPU: about two minutes
    python benchmarks/gpu_trace.py --tiny --device cpu   # the same path, without its numbers

benchmarks/gpu_engine.py says how long a listener waits; this says for what. Random full-size weights. A part
that fails is named and the others go on; the last line is JSON, and what is found is written to --partial.

    steps      T3's step by every way and tuning: device and host time of one, launched back to back
    graphs     every graph of the engine: device and host time, and whether it gives the same bits each time
    flows      the flow by the library and by our kernels: time, and how far apart
    beside     T3's steps while a flow is rendered, and the flow while T3 steps
    kernels    what the graphs are made of, by the profiler
    sentence   one sentence's launches on the host's clock and on the device's
    repeats    the same seed again: tokens, cuts and samples; for the balanced profile too
    crowd      how many are begun, stepped and rendered together
    plain      a sentence without any graph
"""

from __future__ import annotations

import copy
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import gpu_board
import torch
from gpu_bits import different_operations, different_replays
from gpu_engine import FAMILIES, PLAIN, TEXT, Bench, build, every_id_sounds

from nightingale.backends.cuda.decoder import DecodePlan, DecodeLoop
from nightingale.backends.cuda.flow import FlowSteps
from nightingale.backends.cuda.graphs import Replay
from nightingale.backends.cuda.flow_blocks import By, FlowPieces, hear_prompt
from nightingale.engine.rendering import utterance
from nightingale.engine.tts import TTS
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES

TUNINGS: list[tuple[int, ...]] = [
    (8, 256, 4, False), (8, 256, 4, True), (4, 256, 4, True), (16, 256, 8, True), (8, 256, 2, True),
    (4, 256, 2, True), (8, 512, 4, True), (8, 1024, 8, True),
]  # fmt: skip
"""Of the kernels: outputs and inputs of a block, warps, whether the next one starts early."""


class Trace:
    def __init__(self, board: gpu_board.Board) -> None:
        self.bench, self.board, self.found = Bench(board), board, board.found
        self.device, self.tiny = board.device, board.options.tiny
        self.cuda = self.device.type == "cuda"

    def sync(self) -> None:
        gpu_board.synchronize(self.device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream) if self.cuda else nullcontext()

    def timed(self, act: Callable[[], object], times: int) -> tuple[float, float]:
        """Milliseconds of one of so many in a row: the device's, and the host's to launch it."""
        self.sync()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self.cuda else []
        started = time.perf_counter()
        for mark in marks[:1]:
            mark.record()
        for _ in range(times):
            act()
        for mark in marks[1:]:
            mark.record()
        launched = time.perf_counter() - started
        self.sync()
        taken = marks[0].elapsed_time(marks[1]) if marks else 1000 * (time.perf_counter() - started)
        return taken / times, 1000 * launched / times

    def decoder(self, family: str, dtype: torch.dtype, slots: int, **plan: Any) -> DecodeLoop:
        model = self.bench.models[family]
        t3 = copy.deepcopy(model.networks.t3).to(dtype)
        guided = "cfg_weight" not in model.defaults.ignored
        length = 20 if self.tiny else (100 if guided else 440)
        capacity = length + (40 if self.tiny else 412)
        decoder = DecodeLoop(
            t3,
            order=model.defaults.sampler,
            guided=guided,
            capacity=capacity,
            plan=DecodePlan(slots=(slots,), spans=(), steps=16, **plan),
        )
        rng = torch.Generator().manual_seed(0)
        x = torch.randn(decoder.rows, length, t3.config.backbone.width, generator=rng)
        decoder.prompt = (0.02 * x).to(self.device, dtype)  # type: ignore[attr-defined]
        return decoder

    def begin(self, decoder: DecodeLoop, slots: int, *, family: str, greedy: bool) -> None:
        sampling = self.bench.models[family].defaults.sampling
        sampling = replace(sampling, temperature=0.0) if greedy else sampling
        for slot in range(slots):
            decoder.begin(slot, decoder.prompt, sampling=sampling, seed=slot, budget=16 if self.tiny else 400)  # type: ignore[attr-defined]

    def steps(self, family: str) -> None:
        """Every way to take a step, in bfloat16; what they draw, in float32, beside the plain one's."""
        half = torch.bfloat16 if self.cuda else torch.float32
        ways: list[dict[str, Any]] = [{"way": "sdpa"}]
        if self.cuda:
            ways += [{"way": "triton", "tuning": tuning} for tuning in TUNINGS]
        launches = 1 if self.tiny else 6
        for slots in (1, 2 if self.tiny else 64):
            for way in ways if slots == 1 else ways[:2]:
                name = f"{family}, {slots}: " + " ".join(map(str, way.values()))

                def attempt(way: dict[str, Any] = way, slots: int = slots, name: str = name) -> None:
                    decoder = self.decoder(family, half, slots, **way)
                    self.begin(decoder, slots, family=family, greedy=False)
                    decoder.launch(16 if not self.tiny else 2)
                    device, host = self.timed(lambda: decoder.launch(16 if not self.tiny else 2), launches)
                    count = 16 if not self.tiny else 2
                    self.note("steps", name, {"device_ms": device / count, "host_ms": host / count})

                self.board.part(f"step of {name}", attempt)
        said = {}
        for way in ways[:3]:
            decoder = self.decoder(family, torch.float32, 1, **way)
            self.begin(decoder, 1, family=family, greedy=True)
            tokens = [decoder.launch(8 if self.tiny else 16).take()[0] for _ in range(1 if self.tiny else 6)]
            said[str(way)] = [token for launched in tokens for token in launched]
        first = next(iter(said.values()))
        self.note(
            "steps",
            f"{family}: float32 greedy tokens as the library's",
            {way: f"{gpu_board.prefix(tokens, first)} of {len(first)}" for way, tokens in said.items()},
        )

    def note(self, part: str, name: str, found: dict[str, Any]) -> None:
        self.found.setdefault(part, {})[name] = found
        told = ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in found.items()
        )
        print(f"  {part} | {name} | {told}", flush=True)

    def parts_of(self, tts: TTS) -> tuple[Any, Any]:
        """The engine's decoder and renderer."""
        worker = tts._worker
        return worker.draws._decoder, worker.studio._renderer  # type: ignore[attr-defined]

    def graphs(self, family: str, tts: TTS) -> None:
        decoder, renderer = self.parts_of(tts)
        stream = renderer._stream
        chosen: list[tuple[str, Replay[Any], Any]] = []
        chosen += [("flow", graph, stream) for graph in renderer.pieces._graphs.values()]
        chosen += [("vocoder", graph, stream) for graph in renderer.windows.vocoder._graphs.values()]
        prompts = [graph for key, graph in decoder._graphs.items() if key[0] == "prefill"]
        chosen += [("prefill", graph, None) for graph in prompts[:6:2]]
        for part, graph, on in chosen:
            with self.on(on):
                run = graph._graph.replay if graph._graph is not None else graph
                run()
                device, host = self.timed(run, 1 if self.tiny else 4)
                found: dict[str, Any] = {"device_ms": device, "host_ms": host}
                if part != "prefill":
                    times = 1 if self.tiny else 8
                    found["different replays"] = f"{different_replays(graph, times)} of {times}"
                if part == "vocoder" and self.cuda and " 1 of" in graph.name:
                    act = partial(graph._function, **graph._buffers)
                    found["different operations"] = dict(different_operations(act))
                    found["without the promise"] = dict(different_operations(act, promised=False))
                self.sync()
            self.note("graphs", f"{family}, {graph.name}", found)

    def flows(self, family: str, tts: TTS) -> None:
        """The smallest and the largest pieces, by each way; the library's in float32 is the measure."""
        _, renderer = self.parts_of(tts)
        voice = self.bench.models[family].default_voice
        sizes, batches = (renderer.pieces.tokens[0], renderer.pieces.tokens[-1]), (1, renderer.batches[-1])
        exact = FlowSteps(renderer.steps.flow)
        rng = torch.Generator().manual_seed(1)
        found: dict[tuple[str, int, int], Any] = {}
        ways: list[tuple[str, FlowSteps, By]] = [("float32", exact, "library")]
        ways += [("library", renderer.steps, "library")]
        if self.cuda:
            ways += [("triton", renderer.steps, "triton")]
        given = {size: torch.randint(SPEECH_CODES, (1, size + 3), generator=rng) for size in sizes}
        with self.on(renderer._stream):
            told = voice.flow_prompt_ids[None], voice.flow_prompt_mel.T[None], voice.flow_speaker[None]
            ids, mel, speaker = (t.to(self.device) for t in told)
            key = torch.tensor([5], device=self.device)
            for name, steps, by in ways:
                heard = hear_prompt(steps, ids, mel, speaker, key)
                pieces = FlowPieces(steps, context=renderer.context, tokens=sizes, batches=batches, by=by)
                for size in sizes:
                    for many in batches:
                        act = partial(
                            pieces,
                            heard,
                            given[size].to(self.device).expand(many, -1),
                            torch.full((many,), size + 3, device=self.device),
                            cond=torch.zeros(many, 80, 2 * size, device=self.device),
                            speaker=speaker.expand(many, -1),
                            key=key.expand(many),
                            first_frame=torch.zeros(many, dtype=torch.int64, device=self.device),
                            carried=heard.carried.expand(many, -1),
                        )
                        found[name, size, many] = [t.clone() for t in act()]
                        device, host = self.timed(act, 1 if self.tiny else 4)
                        told_of: dict[str, Any] = {"device_ms": device, "host_ms": host}
                        for what, ours, theirs in zip(
                            ("mel", "left"),
                            found[name, size, many],
                            found["float32", size, many],
                            strict=True,
                        ):
                            told_of[f"{what} error"] = gpu_board.error_of(ours, theirs)
                        self.note("flows", f"{family}, {name}, {many} of {size}", told_of)
                del pieces, heard
                self.sync()

    def beside(self, family: str, tts: TTS) -> None:
        decoder, renderer = self.parts_of(tts)
        if not self.cuda:
            return
        step = next(g for key, g in decoder._graphs.items() if key[:2] == ("step", 1))
        flow = max((key, g) for key, g in renderer.pieces._graphs.items() if key[2] == 1)[1]
        one_step(decoder, step)
        with torch.cuda.stream(renderer._stream):
            flow._graph.replay()
        self.sync()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        with torch.cuda.stream(renderer._stream):
            marks[0].record()
            for _ in range(3):
                flow._graph.replay()
            marks[1].record()
        marks[2].record()
        for _ in range(30):
            one_step(decoder, step)
        marks[3].record()
        self.sync()
        self.note(
            "beside",
            family,
            {"step_ms": marks[2].elapsed_time(marks[3]) / 30, "flow_ms": marks[0].elapsed_time(marks[1]) / 3,
             "of": flow.name},
        )  # fmt: skip

    def kernels(self, family: str, tts: TTS) -> None:
        decoder, renderer = self.parts_of(tts)
        if not self.cuda:
            return
        flows = sorted((key, g) for key, g in renderer.pieces._graphs.items() if key[2] == 1)
        sounds = sorted((key, g) for key, g in renderer.windows.vocoder._graphs.items() if key[0] == 1)
        many = max((key[::-1], g) for key, g in renderer.pieces._graphs.items())
        chosen = [next(g for key, g in decoder._graphs.items() if key[:2] == ("step", 1))]
        chosen += [next(g for key, g in decoder._graphs.items() if key[0] == "prefill"), flows[0][1]]
        chosen += [many[1], sounds[0][1]]
        from torch.profiler import ProfilerActivity, profile

        for graph in chosen:
            one_step(decoder, graph)
            self.sync()
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                one_step(decoder, graph)
                self.sync()
            count: Counter[str] = Counter()
            taken: Counter[str] = Counter()
            for event in seen.events():
                if event.device_time > 0:
                    count[event.name] += 1
                    taken[event.name] += event.device_time
            found: dict[str, Any] = {"kernels": sum(count.values()), "busy_ms": sum(taken.values()) / 1000}
            for name, spent in taken.most_common(9):
                found[_short(name)] = f"{count[name]}x{spent / count[name]:.1f}us"
            self.note("kernels", f"{family}, {graph.name}", found)

    def sentence(self, family: str, tts: TTS) -> None:
        """Twice; the second is told."""
        decoder, renderer = self.parts_of(tts)
        tts.say(TEXT, seed=1)
        log: list[tuple[str, float, float, Any]] = []

        def watched(owner: Any, name: str, spoken: str, stream: Any = None) -> Callable[[], None]:
            plain = getattr(owner, name)

            def call(*args: Any, **kwargs: Any) -> Any:
                marks = None
                if self.cuda and stream != "host":
                    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                    marks[0].record(stream)
                at = time.perf_counter()
                result = plain(*args, **kwargs)
                ended = time.perf_counter()
                if marks is not None:
                    marks[1].record(stream)
                size = f" {len(args[0])}x{len(args[0][0][1])}" if spoken == "render" else ""
                log.append((spoken + size, at, ended, marks))
                return result

            setattr(owner, name, call)
            return lambda: delattr(owner, name)

        worker = tts._worker
        undo = [
            watched(decoder, "launch", "steps", torch.cuda.default_stream() if self.cuda else None),
            watched(decoder, "begin", "prompt", torch.cuda.default_stream() if self.cuda else None),
            watched(worker.studio, "open", "open", "host"),
            watched(renderer, "launch", "render", renderer._stream),
            watched(renderer, "_mel", "flow", renderer._stream),
            watched(renderer.windows, "push", "vocoder", renderer._stream),
            watched(worker, "_begin", "begin", "host"),
            watched(worker, "_hand_out", "hand out", "host"),
            watched(worker, "_decode", "decode", "host"),
        ]
        self.sync()
        base = torch.cuda.Event(enable_timing=True) if self.cuda else None
        if base is not None:
            base.record(torch.cuda.default_stream())
        started = time.perf_counter()
        chunks = []
        for chunk in tts.stream(TEXT, seed=1):
            chunks.append((1000 * (time.perf_counter() - started), len(chunk.samples)))
        ended = time.perf_counter()
        self.sync()
        for act in undo:
            act()
        lines = []
        for spoken, at, left, marks in sorted(log, key=lambda entry: entry[1]):
            line = f"{1000 * (at - started):7.2f} +{1000 * (left - at):6.2f} {spoken}"
            if marks is not None:
                line += f" [{base.elapsed_time(marks[0]):.2f} {base.elapsed_time(marks[1]):.2f}]"  # type: ignore[union-attr]
            if spoken not in ("hand out", "decode") or left - at > 0.002:
                lines.append(line)
        self.found.setdefault("sentence", {})[family] = {
            "ms": 1000 * (ended - started),
            "lines": lines,
            "chunks": chunks,
        }
        at = [round(when, 1) for when, _ in chunks]
        print(f"  sentence | {family} | {1000 * (ended - started):.1f} ms, chunks at {at}")
        shown = [line for line in lines if "steps" not in line]
        print("\n".join(f"    {line}" for line in shown[:60]), flush=True)
        steps = [e for e in log if e[0] == "steps"]
        for key in ("steps", "begin", "prompt", "open", "render", "flow", "vocoder", "decode", "hand out"):
            spent = [1000 * (e[2] - e[1]) for e in log if e[0].split()[0] == key.split()[0]]
            if spent:
                middle = statistics.median(spent)
                self.found["sentence"][family][f"host, {key}"] = [len(spent), middle, max(spent)]
                print(f"    host: {key}: {len(spent)} of {middle:.3f} ms, most {max(spent):.3f}")
        if base is not None and len(steps) > 2:
            ends = [base.elapsed_time(e[3][1]) for e in steps]
            gaps = statistics.median(b - a for a, b in pairwise(ends))
            self.found["sentence"][family]["device, ms between launches of steps"] = gaps
            print(f"    device: {len(steps)} launches of steps, from end to end {gaps:.3f} ms")

    def repeats(self, family: str, profile: str, tts: TTS) -> None:
        """The same seed six times, the host delayed in some: tokens, cuts and samples must be the same."""
        _, renderer = self.parts_of(tts)
        plain, accept = renderer.launch, utterance.Utterance.accept
        cuts: list[tuple[int, bool]] = []
        tokens: list[int] = []
        delay = [0.0]

        def launch(blocks: Any) -> Any:
            cuts.extend((len(ids), final) for _, ids, final in blocks)
            time.sleep(delay[0])
            return plain(blocks)

        def noted(spoken: Any, token: int) -> None:
            tokens.append(token)
            accept(spoken, token)

        renderer.launch, utterance.Utterance.accept = launch, noted  # type: ignore[method-assign]
        seen = []
        try:
            for turn in range(2 if self.tiny else 6):
                cuts.clear(), tokens.clear()
                delay[0] = 0.02 * (turn % 3)
                samples = tts.say(TEXT, seed=7).sha256
                seen.append((tuple(tokens), tuple(cuts), samples))
        finally:
            del renderer.launch
            utterance.Utterance.accept = accept  # type: ignore[method-assign]
        self.note(
            "repeats",
            f"{family}, {profile}",
            {
                "different tokens": len({s[0] for s in seen}) - 1,
                "different cuts": len({s[1] for s in seen}) - 1,
                "different samples": len({s[2] for s in seen}) - 1,
                "cuts": str(seen[0][1]),
            },
        )

    def crowd(self, family: str) -> None:
        with self.bench.engine(family, "fast", slots=self.bench.streams) as tts:
            decoder, renderer = self.parts_of(tts)
            for _ in range(2):
                renders: Counter[str] = Counter()
                begun, launched = [], []
                plain, begin, launch = renderer.launch, decoder.begin, decoder.launch

                def render(blocks: Any, plain: Any = plain, renders: Any = renders) -> Any:
                    spoken, ids, final = blocks[0]
                    renders[f"{len(blocks)}x{renderer._size(len(spoken.ids) + len(ids), final)}"] += 1
                    return plain(blocks)

                def timed(act: Any, into: list[float], *args: Any, **kwargs: Any) -> Any:
                    at = time.perf_counter()
                    result = act(*args, **kwargs)
                    into.append(1000 * (time.perf_counter() - at))
                    return result

                renderer.launch = render
                decoder.begin, decoder.launch = partial(timed, begin, begun), partial(timed, launch, launched)
                started = time.perf_counter()
                streams = [tts.stream(TEXT, seed=i) for i in range(self.bench.streams)]
                seconds = sum(len(chunk.samples) for stream in streams for chunk in stream) / 24_000
                taken = time.perf_counter() - started
                del renderer.launch, decoder.begin, decoder.launch
            waits = [stream.metrics.ttfa_ms for stream in streams]
            self.note(
                "crowd",
                family,
                {
                    "audio s/s": seconds / taken,
                    "s": taken,
                    "first audio p50": statistics.median(waits),
                    "begins": len(begun),
                    "begin host_ms": statistics.median(begun),
                    "launches": len(launched),
                    "launch host_ms": statistics.median(launched),
                    "renders": str(dict(renders)),
                },
            )
            if self.cuda:
                for key, graph in sorted(decoder._graphs.items(), key=str):
                    if key[0] == "step" and key[2] == 256:
                        device, _ = self.timed(partial(one_step, decoder, graph), 8)
                        self.note("crowd", f"{family}, {graph.name}", {"device_ms": device})
                for group in (renderer.pieces._graphs, renderer.windows.vocoder._graphs):
                    for graph in group.values():
                        if " 16 " in f"{graph.name} ".replace(",", " "):
                            with torch.cuda.stream(renderer._stream):
                                graph._graph.replay()
                                device, _ = self.timed(graph._graph.replay, 2)
                            self.note("crowd", f"{family}, {graph.name}", {"device_ms": device})

    def plain(self) -> None:
        """The plain way runs at all on this device."""
        family = next(iter(self.bench.models))
        with self.bench.engine(family, "balanced", slots=4, **PLAIN) as tts:
            audio = tts.say(TEXT, seed=1)
            self.note("plain", family, {"tokens": audio.metrics.tokens} | dict(audio.metrics.stage_ms))

    def balanced(self) -> None:
        family = next(iter(self.bench.models))
        with self.bench.engine(family, "balanced", slots=4) as tts:
            self.repeats(family, "balanced", tts)


def one_step(decoder: DecodeLoop, graph: Replay[Any]) -> None:
    """A graph of T3's notes its tokens where the cursor stands, which a launch brings back to the start."""
    decoder.state.cursor.zero_()
    assert graph._graph is not None
    graph._graph.replay()


def _short(name: str) -> str:
    for noise in ("void ", "at::native::", "(anonymous namespace)::", "cutlass::", "std::"):
        name = name.replace(noise, "")
    return name[:70]


@torch.no_grad()
def main(arguments: list[str] | None = None) -> gpu_board.Board:
    parser = gpu_board.parser(__doc__, budget_s=170.0)
    parser.add_argument("--only", default="", help="parts, by commas; all of them if empty")
    parser.add_argument("--families", default=",".join(FAMILIES))
    options = parser.parse_args(arguments)
    board = gpu_board.Board(options)
    trace = Trace(board)
    torch.manual_seed(0)
    every_id_sounds()
    wanted = set(filter(None, options.only.split(",")))

    def part(name: str, act: Callable[[], None]) -> None:
        if not wanted or name in wanted or name == "engine":
            board.part(name, act)

    for family in options.families.split(","):
        trace.bench.models[family] = build(family, trace.device, toy=options.tiny, tokens=trace.bench.tokens)

        def engine(family: str = family) -> None:
            with trace.bench.engine(family, "fast", slots=4) as tts:
                part("graphs", lambda: trace.graphs(family, tts))
                part("flows", lambda: trace.flows(family, tts))
                part("beside", lambda: trace.beside(family, tts))
                part("sentence", lambda: trace.sentence(family, tts))
                part("repeats", lambda: trace.repeats(family, "fast", tts))
                part("kernels", lambda: trace.kernels(family, tts))

        if not wanted or wanted & {"graphs", "flows", "beside", "sentence", "repeats", "kernels"}:
            part("engine", engine)
        part("steps", lambda f=family: trace.steps(f))  # type: ignore[misc]
        part("crowd", lambda f=family: trace.crowd(f))  # type: ignore[misc]
    part("plain", trace.plain)
    part("balanced", trace.balanced)
    board.finish()
    return board


if __name__ == "__main__":
    main()
