"""Where the time of one sentence goes on a GPU: each graph by itself, its kernels, and a timeline.

    python benchmarks/gpu_trace.py --partial trace.json --timeline timeline.json   # on the GPU: two minutes
    python benchmarks/gpu_trace.py --tiny --device cpu                             # proves that it runs

benchmarks/gpu_engine.py measures the latency of the engine; this explains it. Random full-size weights. The
last line is JSON; details are written to --partial.

    steps      T3's step by every implementation and tuning: device and host time
    graphs     every graph of flow and vocoder: device and host time, and whether it is reproducible
    beside     T3's steps while a flow is rendered, and the flow meanwhile
    kernels    the kernels of the graphs, by torch's profiler
    sentence   one sentence under torch's profiler, as a timeline for chrome://tracing or Perfetto
    batched    how many requests are prefilled, decoded and rendered together
"""

from __future__ import annotations

import copy
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import torch
from gpu_engine import FAMILIES, EngineBench
from torch.profiler import ProfilerActivity, profile

from nightingale.backends.cuda.decoder import DecodeLoop, DecodePlan
from nightingale.backends.cuda.graphs import Replay
from nightingale.engine.tts import TTS
from nightingale_lab import reference
from nightingale_lab.bench import board, engine_internals
from nightingale_lab.bench.engine_internals import TEXT, cuda_decoder, cuda_renderer, random_model
from nightingale_lab.bench.reproducibility import different_replays

TUNINGS: list[tuple[int, ...]] = [
    (8, 256, 4, False), (8, 256, 4, True), (4, 256, 4, True), (16, 256, 8, True), (8, 256, 2, True),
    (4, 256, 2, True), (8, 512, 4, True), (8, 1024, 8, True),
]  # fmt: skip
"""Tunings of the kernels: outputs and inputs of a block, warps, whether the next kernel starts early."""
PROFILED = 9
"""Kernels that are listed for each graph, the slowest first."""


class Trace:
    def __init__(self, shown: board.Board) -> None:
        self.bench, self.board = EngineBench(shown), shown
        self.device, self.tiny = shown.device, shown.options.tiny
        self.cuda = self.device.type == "cuda"
        self.steps_per_launch = 2 if self.tiny else 16

    def note(self, part: str, name: str, found: dict[str, Any]) -> None:
        self.board.found.setdefault(part, {})[name] = found
        cells = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items())
        board.report(f"  {part} | {name} | {', '.join(cells)}")

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream) if self.cuda else nullcontext()

    def timed(self, act: Callable[[], object], times: int) -> tuple[float, float]:
        """Return the device's and the host's milliseconds of one of that many calls in a row."""
        board.synchronize(self.device)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self.cuda else []
        started = time.perf_counter()
        for mark in marks[:1]:
            mark.record()
        for _ in range(times):
            act()
        for mark in marks[1:]:
            mark.record()
        launched = time.perf_counter() - started
        board.synchronize(self.device)
        taken = marks[0].elapsed_time(marks[1]) if marks else 1000 * (time.perf_counter() - started)
        return taken / times, 1000 * launched / times

    def started_decoder(
        self, family: str, dtype: torch.dtype, slots: int, *, greedy: bool = False, **plan: Any
    ) -> DecodeLoop:
        """Return a decoder all of whose slots have read a random prompt."""
        model = self.bench.models[family]
        t3 = copy.deepcopy(model.networks.t3).to(dtype)
        guided = "cfg_weight" not in model.defaults.ignored
        length = 20 if self.tiny else (100 if guided else 440)
        decoder = DecodeLoop(
            t3,
            order=model.defaults.sampler,
            guided=guided,
            capacity=length + (40 if self.tiny else 412),
            plan=DecodePlan(slots=(slots,), spans=(), steps=16, **plan),
        )
        rng = torch.Generator().manual_seed(0)
        prompt = 0.02 * torch.randn(decoder.rows, length, t3.config.backbone.width, generator=rng)
        sampling = reference.sampling_of(model, 0.0 if greedy else None)
        for slot in range(slots):
            given = prompt.to(self.device, dtype)
            decoder.begin(slot, given, sampling=sampling, seed=slot, budget=16 if self.tiny else 400)
        return decoder

    def steps(self, family: str) -> None:
        """Time every implementation of a step in bfloat16; compare greedy tokens in float32."""
        half, steps = torch.bfloat16 if self.cuda else torch.float32, self.steps_per_launch
        ways: list[dict[str, Any]] = [{"way": "sdpa"}]
        if self.cuda:
            ways += [{"way": "triton", "tuning": tuning} for tuning in TUNINGS]
        for slots in (1, 2 if self.tiny else 64):
            for way in ways if slots == 1 else ways[:2]:
                name = f"{family}, {slots}: " + " ".join(map(str, way.values()))

                def attempt(way: dict[str, Any] = way, slots: int = slots, name: str = name) -> None:
                    decoder = self.started_decoder(family, half, slots, **way)
                    decoder.launch(steps)
                    device, host = self.timed(lambda: decoder.launch(steps), 1 if self.tiny else 6)
                    self.note("steps", name, {"device_ms": device / steps, "host_ms": host / steps})

                self.board.part(f"step of {name}", attempt)
        drawn = {}
        for way in ways[:3]:
            decoder = self.started_decoder(family, torch.float32, 1, greedy=True, **way)
            tokens = [decoder.launch(steps).take()[0] for _ in range(1 if self.tiny else 6)]
            drawn[str(way)] = [token for launched in tokens for token in launched]
        first = next(iter(drawn.values()))
        agree = {way: f"{board.same_until(tokens, first)} of {len(first)}" for way, tokens in drawn.items()}
        self.note("steps", f"{family}: float32 greedy tokens as sdpa's", agree)

    def graphs(self, family: str, tts: TTS) -> None:
        with self.on(engine_internals.rendering_stream(tts)):
            graphs = engine_internals.rendering_graphs(tts)
            for graph in [graphs[0], graphs[-1]] if self.tiny else graphs:
                run = graph._graph.replay if graph._graph is not None else graph
                run()
                device, host = self.timed(run, 1 if self.tiny else 4)
                times = 1 if self.tiny else 8
                different = f"{different_replays(graph, times)} of {times}"
                self.note(
                    "graphs",
                    f"{family}, {graph.name}",
                    {"device_ms": device, "host_ms": host, "different replays": different},
                )

    def beside(self, family: str, tts: TTS) -> None:
        if not self.cuda:
            return
        decoder, renderer = cuda_decoder(tts), cuda_renderer(tts)
        step = next(graph for key, graph in decoder._graphs.items() if key[:2] == ("step", 1))
        flow = max((key, graph) for key, graph in renderer.pieces._graphs.items() if key[2] == 1)[1]
        replay(decoder, step)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        with torch.cuda.stream(renderer._stream):
            flow._graph.replay()
            board.synchronize(self.device)
            marks[0].record()
            for _ in range(3):
                flow._graph.replay()
            marks[1].record()
        marks[2].record()
        for _ in range(30):
            replay(decoder, step)
        marks[3].record()
        board.synchronize(self.device)
        step_ms, flow_ms = marks[2].elapsed_time(marks[3]) / 30, marks[0].elapsed_time(marks[1]) / 3
        self.note("beside", family, {"step_ms": step_ms, "flow_ms": flow_ms, "of": flow.name})

    def kernels(self, family: str, tts: TTS) -> None:
        if not self.cuda:
            return
        decoder = cuda_decoder(tts)
        chosen = {
            kind: graph for (kind, *_), graph in reversed(decoder._graphs.items())
        }  # first of each kind
        graphs = engine_internals.rendering_graphs(tts)
        for graph in [*chosen.values(), graphs[0], graphs[-1]]:
            replay(decoder, graph)
            board.synchronize(self.device)
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                replay(decoder, graph)
                board.synchronize(self.device)
            count: Counter[str] = Counter()
            taken: Counter[str] = Counter()
            for event in profiled.events():
                if event.device_time > 0:
                    count[event.name] += 1
                    taken[event.name] += event.device_time
            found: dict[str, Any] = {"kernels": sum(count.values()), "busy_ms": sum(taken.values()) / 1000}
            for name, spent in taken.most_common(PROFILED):
                found[name[:70]] = f"{count[name]}x{spent / count[name]:.1f}us"
            self.note("kernels", f"{family}, {graph.name}", found)

    def sentence(self, family: str, tts: TTS) -> None:
        tts.say(TEXT, seed=1)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.cuda else [])]
        with profile(activities=activities) as profiled:
            started = time.perf_counter()
            arrivals = [round(1000 * (time.perf_counter() - started), 1) for _ in tts.stream(TEXT, seed=1)]
            taken = 1000 * (time.perf_counter() - started)
        self.note("sentence", family, {"ms": taken, "chunks at": str(arrivals)})
        if path := self.board.options.timeline:
            profiled.export_chrome_trace(str(path.with_name(f"{family}-{path.name}")))

    def batched(self, family: str) -> None:
        """Count batch sizes, and time the host's calls, while all streams run."""
        with self.bench.engine(family, "fast", slots=self.bench.streams) as (tts, _):
            list(tts.stream(TEXT, seed=0))
            decoder, renderer = cuda_decoder(tts), cuda_renderer(tts)
            calls: dict[str, list[float]] = {"begin": [], "launch": []}
            sizes: Counter[int] = Counter()
            render = renderer.launch

            def timed(name: str, act: Any, *args: Any, **kwargs: Any) -> Any:
                at = time.perf_counter()
                result = act(*args, **kwargs)
                calls[name].append(1000 * (time.perf_counter() - at))
                return result

            def counted(blocks: Any) -> Any:
                sizes[len(blocks)] += 1
                return render(blocks)

            for name in calls:
                setattr(decoder, name, partial(timed, name, getattr(decoder, name)))
            renderer.launch = counted
            started = time.perf_counter()
            streams = [tts.stream(TEXT, seed=i) for i in range(self.bench.streams)]
            seconds = sum(len(chunk.samples) for stream in streams for chunk in stream) / 24_000
            taken = time.perf_counter() - started
            found: dict[str, Any] = {"audio s/s": seconds / taken, "render batches": str(dict(sizes))}
            found["first audio p50"] = statistics.median(stream.metrics.ttfa_ms for stream in streams)
            for name, times in calls.items():
                found |= {f"{name} calls": len(times), f"{name} host_ms": statistics.median(times)}
            self.note("batched", family, found)


def replay(decoder: DecodeLoop, graph: Replay[Any]) -> None:
    """Replay a graph. Those of T3 write at the cursor, which a launch resets."""
    decoder.state.cursor.zero_()
    assert graph._graph is not None
    graph._graph.replay()


@torch.no_grad()
def main(arguments: list[str] | None = None) -> None:
    parser = board.parser(__doc__, budget_s=170.0)
    parser.add_argument("--only", default="", help="parts, by commas; all of them if empty")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--timeline", type=Path, help="a file for the timeline of a sentence")
    options = parser.parse_args(arguments)
    shown = board.Board(options)
    trace = Trace(shown)
    torch.manual_seed(0)
    engine_internals.make_control_ids_audible()
    wanted = set(filter(None, options.only.split(",")))

    def part(name: str, act: Callable[[], None]) -> None:
        if not wanted or name in wanted:
            shown.part(name, act)

    in_engine = {
        "graphs": trace.graphs,
        "beside": trace.beside,
        "sentence": trace.sentence,
        "kernels": trace.kernels,
    }
    for family in options.families.split(","):
        tokens = trace.bench.tokens
        trace.bench.models[family] = random_model(family, trace.device, tiny=options.tiny, tokens=tokens)
        if not wanted or wanted & in_engine.keys():
            with trace.bench.engine(family, "fast", slots=4) as (tts, _):
                for name, act in in_engine.items():
                    part(name, partial(act, family, tts))
        part("steps", partial(trace.steps, family))
        part("batched", partial(trace.batched, family))
    shown.finish("gpu_trace")


if __name__ == "__main__":
    main()
