"""The engine's worker in simulated time: a fake decoder and renderer whose costs are numbers.

Everything that a worker waits for advances a clock instead, so a minute of speech takes a moment and the result
is the same on every machine. Running stages share the cores equally.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nightingale.backends.base import Block, BlockCut
from nightingale.backends.profiles import BALANCED, Profile
from nightingale.backends.shared.pipeline import CutStream
from nightingale.clocks import CLOCKS
from nightingale.decoding.decoding import Decoding
from nightingale.decoding.host_decoder import DecodeRow
from nightingale.decoding.kv_cache_size import KVCacheSize
from nightingale.engine.load import Model
from nightingale.engine.requests.controls import build_request
from nightingale.engine.requests.segments import SegmentQueue, TextSegment
from nightingale.engine.session import Session
from nightingale.engine.stream_capacity import CHARS_PER_S
from nightingale.engine.worker import Worker
from nightingale.errors import NightingaleError
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.t3.config import STOP_SPEECH
from nightingale.types import Samples


@dataclass
class Costs:
    """Seconds of one core."""

    prefill_s: float = 0.023
    step_s: float = 0.0041
    row_s: float = 0.0007
    """Each further row of a step."""
    flow_s: tuple[float, float] = (0.005, 0.0023)
    """Each block, each token."""
    vocoder_s: tuple[float, float] = (0.003, 0.0076)


@dataclass(eq=False)
class Task:
    left_s: float
    after: list[Callable[[], None]] = field(default_factory=list)


class Cores:
    """A clock that advances while work is done by tasks which share some cores."""

    def __init__(self, cores: float = 2) -> None:
        self.cores, self.now_s = cores, 0.0
        self.tasks: list[Task] = []
        self.timers: list[tuple[float, Callable[[], object]]] = []
        """Acts of other threads, and their times."""

    def now(self) -> float:
        return self.now_s

    def start(self, work_s: float, after: Callable[[], None] | None = None) -> Task:
        task = Task(work_s, [after] if after else [])
        self.tasks.append(task)
        return task

    def run(self, work_s: float) -> None:
        """Do work in the calling thread."""
        task = self.start(work_s)
        self.wait_for(lambda: task not in self.tasks)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.advance()

    def advance(self) -> None:
        """Go on to the end of the next task or to the next timer."""
        assert self.tasks or self.timers, "nothing can happen any more"
        share = min(1.0, self.cores / len(self.tasks)) if self.tasks else 1.0
        step_s = min((task.left_s for task in self.tasks), default=math.inf) / share
        if self.timers:
            step_s = min(step_s, max(0.0, self.timers[0][0] - self.now_s))
        self.now_s += step_s
        for task in self.tasks:
            task.left_s -= step_s * share
        ended = [task for task in self.tasks if task.left_s <= 1e-12]
        self.tasks = [task for task in self.tasks if task.left_s > 1e-12]
        for task in ended:
            for act in task.after:
                act()
        while self.timers and self.timers[0][0] <= self.now_s:
            self.timers.pop(0)[1]()

    def at(self, time_s: float, act: Callable[[], object]) -> None:
        """Call something at a time, which may be in the middle of the worker's work."""
        self.timers = sorted([*self.timers, (time_s, act)], key=lambda timer: timer[0])


class SimulatedCondition:
    """A condition of the only thread: waiting lets time pass."""

    def __init__(self, cores: Cores) -> None:
        self._cores = cores

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def notify_all(self) -> None: ...

    def wait(self, timeout: float | None = None) -> None:
        if timeout is not None:
            self._cores.at(self._cores.now_s + timeout, lambda: None)
        self._cores.advance()


class SimulatedDecoder:
    """Every token is 1; an utterance ends after as many tokens as its first text id says."""

    max_prefills = 1

    def __init__(self, cores: Cores, costs: Costs, kv_cache_size: KVCacheSize) -> None:
        self.cores, self.costs, self.kv_cache_size = cores, costs, kv_cache_size

    def start(self) -> None: ...

    def prefill(self, slot: int, decoding: Decoding) -> list[int]:
        self.cores.run(self.costs.prefill_s)
        return [1]

    def decode(self, rows: Sequence[DecodeRow]) -> list[list[int] | Exception]:
        self.cores.run(self.costs.step_s + (len(rows) - 1) * self.costs.row_s)
        ended = [row.decoding.appended >= row.decoding.prompt.text_ids[0] for row in rows]
        return [[STOP_SPEECH] if end else [1] for end in ended]

    def release(self, slot: int) -> None: ...

    def move(self, source: int, target: int) -> None: ...

    def reset(self, slot: int) -> None: ...


class SimulatedStream(CutStream):
    tokens = 0

    def batch_key(self, cut: BlockCut) -> Hashable:
        return id(self)


class SimulatedFuture(Future[list[Samples]]):
    def __init__(self, cores: Cores) -> None:
        super().__init__()
        self.cores = cores

    def result(self, timeout: float | None = None) -> list[Samples]:
        self.cores.wait_for(self.done)
        return super().result(timeout)


class SimulatedRenderer:
    """A thread for the flow and one for the vocoder, as in backends/shared/pipeline.py."""

    max_batch, max_in_flight = 1, 3
    decoder_threads: int | None = None

    def __init__(self, cores: Cores, costs: Costs) -> None:
        self.cores, self.costs = cores, costs
        self.busy = False
        self._queues: dict[str, list[tuple[float, Callable[[], None]]]] = {"flow": [], "vocoder": []}
        self._running: set[str] = set()

    def open(self, voice: Any, *, seed: int) -> SimulatedStream:
        return SimulatedStream()

    def render(self, blocks: Sequence[Block]) -> SimulatedFuture:
        [block] = blocks
        stream: SimulatedStream = block.stream
        before = max(0, stream.tokens - LOOKAHEAD_TOKENS)
        stream.tokens += len(block.tokens)
        stream.started = stream.started or bool(block.tokens)
        held = 0 if block.final else LOOKAHEAD_TOKENS
        tokens = max(0, stream.tokens - held - before)
        stream.tokens = stream.tokens if not block.final else 0
        samples = np.zeros(tokens * CLOCKS.samples_per_token, np.float32)
        future = SimulatedFuture(self.cores)
        flowed: list[bool] = []

        def vocode() -> None:
            flowed.append(True)
            self._queue("vocoder", _cost(self.costs.vocoder_s, tokens), lambda: future.set_result([samples]))

        self._queue("flow", _cost(self.costs.flow_s, tokens), vocode)
        if block.first and block.alone:
            self.cores.wait_for(lambda: bool(flowed))
        return future

    def _queue(self, stage: str, work_s: float, after: Callable[[], None]) -> None:
        self._queues[stage].append((work_s, after))
        self._next(stage)

    def _next(self, stage: str) -> None:
        if stage in self._running or not self._queues[stage]:
            return
        if stage == "flow" and self.busy and "vocoder" in self._running:
            return  # two cores: T3 and one block
        self._running.add(stage)
        work_s, after = self._queues[stage].pop(0)

        def ended() -> None:
            self._running.discard(stage)
            after()
            self._next("vocoder")
            self._next("flow")

        self.cores.start(work_s, ended)

    def decoder_busy(self, busy: bool) -> None:
        self.busy = busy
        self._next("flow")

    def close(self) -> None: ...


def _cost(cost_s: tuple[float, float], tokens: int) -> float:
    return cost_s[0] + cost_s[1] * tokens if tokens else 0.0


@dataclass
class Listener:
    """A request, and when each of its chunks arrived."""

    opened_s: float
    session: Session
    arrivals: list[tuple[float, float]] = field(default_factory=list)
    """Time and seconds of audio of each chunk."""
    on_end: Callable[[], object] = lambda: None

    @property
    def first_audio_s(self) -> float:
        return self.arrivals[0][0] - self.opened_s

    @property
    def played_s(self) -> float:
        """When a player that had no underrun is at the end."""
        return self.arrivals[0][0] + sum(length_s for _, length_s in self.arrivals)

    @property
    def underruns(self) -> int:
        count, ends_s = 0, math.inf
        for number, (arrival_s, length_s) in enumerate(self.arrivals):
            if number == 0:
                ends_s = arrival_s
            elif arrival_s > ends_s + 1e-9:
                count, ends_s = count + 1, arrival_s
            ends_s += length_s
        return count


class SimulatedEngine:
    """Requests at given times, served by a worker without a thread."""

    def __init__(
        self,
        model: Model,
        *,
        profile: Profile = BALANCED,
        costs: Costs | None = None,
        cores: float = 2,
        decoder: Callable[[SimulatedEngine, KVCacheSize], Any] | None = None,
        renderer: Callable[[SimulatedEngine], Any] | None = None,
        **options: Any,
    ) -> None:
        self.cores, self.costs = Cores(cores), costs or Costs()
        self.model = model.with_defaults(
            max_new_tokens=750, first_block_tokens=7, second_block_tokens=9, guarded=False
        )
        info = self.model.info
        kv_cache_size = KVCacheSize(info.preset.t3, itemsize=4)
        self.renderer: Any = renderer(self) if renderer else SimulatedRenderer(self.cores, self.costs)
        decoder: Any = (
            decoder(self, kv_cache_size)
            if decoder
            else SimulatedDecoder(self.cores, self.costs, kv_cache_size)
        )
        self.worker = Worker(self.model, profile, decoder, self.renderer, clock=self.cores.now, **options)
        self.worker._thread = threading.current_thread()  # so that it starts none
        self.worker._changed = SimulatedCondition(self.cores)  # type: ignore[assignment]
        self.listeners: list[Listener] = []

    def open(self, *sentences: int) -> Listener:
        """Open a request whose sentences have so many tokens each."""
        voice = self.model.default_voice
        assert voice is not None
        request = build_request(self.model.defaults, voice, 1, {})
        session = Session(request, ahead_seconds=1e6, on_change=lambda: None, clock=self.cores.now)
        listener = Listener(self.cores.now_s, session)
        put = session.put

        def record(samples: Samples) -> None:
            if len(samples):
                listener.arrivals.append((self.cores.now_s, len(samples) / CLOCKS.sample_rate_hz))
            put(samples)

        end = session.end

        def record_end(error: NightingaleError | None = None) -> None:
            end(error)
            listener.on_end()

        session.put, session.end = record, record_end  # type: ignore[method-assign]
        segments: Iterator[TextSegment] = iter(
            [TextSegment(text_ids=[tokens] * 30, pause_samples=2880, text="a") for tokens in sentences]
        )
        chars = round(sum(sentences) / CLOCKS.token_rate_hz * CHARS_PER_S)
        self.worker.submit(session, SegmentQueue(segments), chars=chars)
        self.listeners.append(listener)
        return listener

    def run(self) -> None:
        """Serve everything that is open or will be opened by a timer."""
        while self.cores.timers or self.worker._jobs:
            if self.worker._has_work():
                self.worker._step()
            else:
                self.worker.capacity.meter.pause()
                self.cores.advance()
