"""The engine's worker thread. One step of it:

    admit waiting requests · decode a step · render blocks that are ready · deliver rendered audio

A renderer that takes batches, or runs beside the decoder, is given several blocks and not waited for while
there is something to decode, such as the next segment. An error in one request ends that request alone.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final

import numpy as np

from nightingale.backends.base import DEFAULT_SLOTS, Decoder, Renderer, RenderFuture
from nightingale.backends.profiles import Profile
from nightingale.clocks import CLOCKS
from nightingale.decoding.host_decoder import DecodeRow
from nightingale.engine.admission import Admission
from nightingale.engine.batch_pacing import BatchPacing
from nightingale.engine.faults import engine_closed, engine_failed
from nightingale.engine.guarded_calls import hint_busy, move_slot, release_slot
from nightingale.engine.load import Model
from nightingale.engine.monotonic_clock import Clock, system_clock
from nightingale.engine.pacing import Pacing
from nightingale.engine.rendering.utterance import Utterance
from nightingale.engine.requests.job import BlockRow, Job, results_of
from nightingale.engine.requests.recorded_segments import RecordedSegment
from nightingale.engine.requests.segments import SegmentQueue, TextSegment
from nightingale.engine.scheduler import Scheduler
from nightingale.engine.session import Session
from nightingale.engine.snapshot import EngineSnapshot
from nightingale.engine.stream_capacity import Capacity, MaxStreams, Occupancy, QueuePlace, known_wait_s
from nightingale.errors import NightingaleError, QueueFull
from nightingale.types import Samples

log = logging.getLogger(__name__)
IDLE_S: Final = 0.3
"""Time without work after which the renderer prepares for other sizes of batches."""


class Worker:
    """Runs requests. Its thread starts with the first request and sleeps while there is no work.

    It owns the requests: only its thread changes them. What to do next is decided from snapshots, by `Admission` and
    `Pacing`.
    """

    def __init__(
        self,
        model: Model,
        profile: Profile,
        decoder: Decoder,
        renderer: Renderer,
        max_streams: MaxStreams = "auto",
        clock: Clock = system_clock,
    ) -> None:
        self.model = model
        self.profile = profile
        self.decoder = decoder
        self.renderer = renderer
        self.clock = clock
        self.scheduler = Scheduler(slots=profile.slots or DEFAULT_SLOTS, queue_limit=profile.queue_limit)
        self._jobs: dict[int, Job] = {}
        self._ids = count()
        self._ready: list[int] = []  # requests whose next block waits to be rendered
        self._in_flight: deque[tuple[list[BlockRow], RenderFuture, float]] = deque()
        """Blocks that are being rendered, and since when."""
        self._decoded: list[int] = []  # requests whose segment was decoded in this step
        self._changed = threading.Condition()
        self._stopped = False
        self.preparing = True
        """True until the renderer is prepared for all sizes of batches, which it is while there is no work."""
        batching = renderer.max_batch > 1
        in_blocks = profile.in_blocks
        self.capacity = Capacity(max_streams, whole_segments=not in_blocks, batching=batching)
        # Where blocks are rendered one by one, streams compete for the same cores, T3 included.
        self._competing = in_blocks and not batching
        self._max_utterances = 1 if in_blocks else 2  # the next segment is decoded while one is rendered
        pacing = BatchPacing if batching else Pacing
        self._pacing = pacing(self.capacity, renderer, competing=self._competing)
        self._admission = Admission(self.capacity, profile, self._pacing.most_starting)
        self._thread: threading.Thread | None = None

    def submit(self, session: Session, segments: SegmentQueue, *, chars: int | None = None) -> None:
        """Queue a request; raise QueueFull if too many wait. chars: None if its text still arrives."""
        with self._changed:
            if self._stopped:
                raise engine_closed()
            self._admission.check_stalled(sum(job.is_stalled for job in self._jobs.values()))
            request = next(self._ids)
            try:
                self.scheduler.submit(request)
            except QueueFull as error:
                self._admission.add_waits(error, self._snapshot())
                raise
            self._jobs[request] = Job(session=session, segments=segments, chars=chars)
            session.find_place = partial(self._place, request)
            session.first_position = self._admission.position(request, self._snapshot())
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="nightingale", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _place(self, request: int) -> QueuePlace | None:
        """Return the place of a request in the queue; None if it has started or starts now."""
        return self._admission.place(request, self._snapshot())

    @property
    def occupancy(self) -> Occupancy:
        """The load of the engine at this moment."""
        snapshot = self._snapshot()
        return Occupancy(
            waiting=len(snapshot.waiting),
            speaking=len(snapshot.running),
            slots=snapshot.slots,
            rate=self.capacity.rate,
            wait_s=known_wait_s(self._admission.wait_s(snapshot)),
            capacity=self.capacity.streams,
        )

    def _snapshot(self) -> EngineSnapshot:
        """Return all requests as they are now. Any thread may call this."""
        with self._changed:
            return EngineSnapshot(
                now_s=self.clock(),
                streams={request: job.snapshot() for request, job in self._jobs.items()},
                waiting=tuple(self.scheduler.waiting),
                running=tuple(self.scheduler.running),
                slots=self.scheduler.slots,
            )

    def wake(self) -> None:
        """Look for work: text arrived, or a listener read audio or left."""
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """End every session and the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=30)
        self.renderer.close()

    def _run(self) -> None:
        reason = engine_closed()
        try:
            self.decoder.start()
            idle = False
            while True:
                with self._changed:
                    while not self._stopped and not self._has_work():
                        self.capacity.meter.pause()
                        if not self._changed.wait((0.0 if idle else IDLE_S) if self.preparing else None):
                            break
                    if self._stopped:
                        return
                    idle = not self._has_work()
                self._prepare() if idle else self._step()
        except BaseException as error:  # a fault of the engine itself: no request may wait for ever
            reason = engine_failed(error)
        finally:
            with self._changed:
                self._stopped = True
                jobs = list(self._jobs.values())
                self._jobs.clear()
                self.scheduler.waiting.clear()
                self.scheduler.running.clear()
            for job in jobs:
                job.session.end(reason)

    def _prepare(self) -> None:
        try:
            self.preparing = self.decoder.prepare() or self.renderer.prepare()
        except Exception:  # what is missing is made when it is needed
            self.preparing = False
            log.warning("preparation failed: first requests are slower", exc_info=True)

    def _step(self) -> None:
        self._sweep()
        for _ in range(self.decoder.max_prefills):
            with self._changed:
                if (admitted := self._next_request()) is None:
                    break
                request, snapshot = admitted
                slot = self.scheduler.admit(request)
            self._guarded(request, self._start, request, slot, snapshot)
        self._decode()
        snapshot = self._snapshot()
        decoding = bool(self._rows_to_decode(snapshot))
        hint_busy(self.renderer, decoding)
        if self._ready and self._can_render(snapshot, decoding=decoding):
            self._render(snapshot)
        self._deliver()
        decoded = self._decoded
        self._decoded = []
        for request in decoded:
            self._guarded(request, self._advance, request)

    def _has_work(self) -> bool:
        busy = self._ready or self._in_flight or self._next_request() is not None
        return bool(busy) or bool(self._decodable()) or self._has_changes()

    def _has_changes(self) -> bool:
        return any(job.session.cancelled or job.may_resume for job in self._jobs.values())

    def _sweep(self) -> None:
        """Drop cancelled requests and queue parked ones that can continue."""
        with self._changed:
            jobs = list(self._jobs.items())
        for request, job in jobs:
            if job.held_until_s <= self.clock():
                job.flush()
            if job.session.cancelled:
                self._drop(request)
            elif job.may_resume:
                self._continue(request, job)
            job.changed()  # what other threads change is seen once a step

    def _next_request(self) -> tuple[int, EngineSnapshot] | None:
        """Return the request that can be given a slot, and what it was decided from. The caller holds the lock."""
        if not self.scheduler.can_admit:
            return None
        snapshot = self._snapshot()
        request = self._admission.next_request(snapshot)
        return None if request is None else (request, snapshot)

    def _start(self, request: int, slot: int, snapshot: EngineSnapshot) -> None:
        """Prefill the prompt of a request's next segment."""
        job = self._jobs[request]
        job.segment = job.segment or job.segments.next()
        timing = job.session.timing
        if job.segment is not None:
            timing.admitted_s = timing.admitted_s or self.clock()
            if isinstance(job.segment, RecordedSegment):
                return self._feed(request, job, job.segment)
            if job.segment.text_ids:
                return self._prefill(request, slot, job, job.segment, snapshot)
            job.session.reached(job.segment)
            job.session.put(np.zeros(job.segment.pause_samples, np.float32))  # a pause and nothing else
            job.segment = None
        self._release(request)
        self._continue(request, job)

    def _prefill(
        self, request: int, slot: int, job: Job, segment: TextSegment, snapshot: EngineSnapshot
    ) -> None:
        timing = job.session.timing
        started = self.clock()
        is_first = not job.started
        utterance = job.begin(segment, self.model, self.profile, self.renderer)
        if job.session.plays and is_first:
            for other in self._pacing.blocks_to_shrink(snapshot):
                self._utterance(other).shrink_next_block()
            utterance.block_tokens = self._pacing.first_block_tokens(utterance.block_tokens, snapshot)
        tokens = self.decoder.prefill(slot, utterance.decoding)
        self.capacity.start(started)
        timing.record("prefill", started)
        self._accept(request, tokens)

    def _feed(self, request: int, job: Job, segment: RecordedSegment) -> None:
        """Hand on speech tokens of a recording. T3 has no part in it, so they take no slot."""
        self._release(request)
        job.feed(segment, self.model, self.profile, self.renderer)
        self._enqueue_block(request)
        if segment.ends_utterance:
            self._decoded.append(request)
        else:
            self._continue(request, job)

    def _decodable(self) -> list[int]:
        """Return the requests in slots with a segment to decode: to its end, however far its listener is behind."""
        return [request for request in self.scheduler.running if self._jobs[request].is_decoding]

    def _rows_to_decode(self, snapshot: EngineSnapshot) -> list[int]:
        """Return the requests that the next step advances."""
        rows = self._decodable()
        if not self.profile.batched:  # each row takes a pass of its own, so the most urgent one goes first
            return sorted(rows, key=snapshot.deadline_s)[:1]
        return self._pacing.rows_to_decode(rows, self._ready, snapshot)

    def _decode(self) -> None:
        """Advance every running utterance."""
        rows = {}
        for request in self._rows_to_decode(self._snapshot()):
            utterance = self._jobs[request].utterances[-1]
            slot = self.scheduler.running.index(request)
            rows[request] = DecodeRow(slot, utterance.decoding, utterance.last_token)
        if not rows:
            return
        started = self.clock()
        # All tokens first: accepting one may end an utterance and move another one to its slot.
        for request, tokens in zip(rows, self.decoder.decode(list(rows.values())), strict=True):
            if (job := self._jobs.get(request)) is None:
                continue  # it was dropped, because its slot could not be moved
            job.session.timing.record("t3", started)
            if isinstance(tokens, Exception):
                self._drop(request, engine_failed(tokens))
            else:
                self._guarded(request, self._accept, request, tokens)

    def _accept(self, request: int, tokens: list[int]) -> None:
        job = self._jobs[request]
        utterance = job.utterances[-1]
        timing = job.session.timing
        for token in tokens:
            utterance.accept(token)
            if utterance.must_restart or utterance.decoding.finished:
                break  # tokens beyond the end belong to no utterance
        if utterance.must_restart:
            if utterance is job.utterance and request in self._ready:
                self._ready.remove(request)
            utterance.restart(timing)
            slot = self.scheduler.running.index(request)
            self._accept(request, self.decoder.prefill(slot, utterance.decoding))
            return
        if utterance.decoding.finished:
            timing.kv_bytes = max(timing.kv_bytes, self.decoder.kv_cache_size.used_bytes(utterance.decoding))
            self._release(request)  # its slot is free while its last block still waits to be rendered
            self._decoded.append(request)
        self._enqueue_block(request)

    def _enqueue_block(self, request: int) -> None:
        if self._utterance(request).has_block and request not in self._ready:
            self._ready.append(request)

    def _can_render(self, snapshot: EngineSnapshot, *, decoding: bool) -> bool:
        return self._pacing.may_render(self._ready, len(self._in_flight), snapshot, decoding=decoding)

    def _render(self, snapshot: EngineSnapshot) -> None:
        """Render the block with the earliest deadline, and others that can be rendered with it."""
        self._ready = self._pacing.in_order(self._ready, snapshot)
        key = self._utterance(self._ready[0]).batch_key
        alike = [r for r in self._ready if self._utterance(r).batch_key == key]
        requests = alike[: self._pacing.batch_size(alike, snapshot)]
        self._ready = [request for request in self._ready if request not in requests]
        rows = [self._take_block(request, snapshot) for request in requests]
        if len(rows) > 1:
            with suppress(Exception):  # one by one below, to find the request that is at fault
                return self._submit(rows)
        for row in rows:
            self._guarded(row.request, self._submit, [row])

    def _take_block(self, request: int, snapshot: EngineSnapshot) -> BlockRow:
        """Take the next block of a request, which must be ready."""
        job = self._jobs[request]
        utterance = self._utterance(request)
        block = utterance.take_block(job.session.timing, self._pacing.block_limits(request, snapshot))
        job.in_flight_tokens += len(block.tokens)
        job.changed()
        return BlockRow(request, utterance, block)

    def _submit(self, rows: list[BlockRow]) -> None:
        started_s = self.clock()
        self._in_flight.append((rows, self.renderer.render([row.block for row in rows]), started_s))
        for row in rows:  # not sooner: the next cut depends on what was submitted
            self._enqueue_block(row.request)

    def _utterance(self, request: int) -> Utterance:
        utterance = self._jobs[request].utterance
        assert utterance is not None
        return utterance

    def _held_s(self) -> float | None:
        """Return the time until kept audio must be handed out; None if there is none."""
        with self._changed:
            times = [job.held_until_s for job in self._jobs.values() if job.held]
        return max(0.0, min(times) - self.clock()) if times else None

    def _has_other_work(self) -> bool:
        """Return whether there is something to do before the next audio is ready."""
        with self._changed:
            if self._decoded or self._next_request() is not None or self._has_changes():
                return True
        snapshot = self._snapshot()
        if self._held_s() == 0.0 or self._rows_to_decode(snapshot):
            return True
        return bool(self._ready) and self._can_render(snapshot, decoding=False)

    def _deliver(self) -> None:
        """Hand out rendered audio; wait for it only if there is nothing else to do."""
        while self._in_flight:
            rows, future, started_s = self._in_flight[0]
            if not self._wait_for(future):
                return
            self._in_flight.popleft()
            rendered = results_of(future, len(rows))
            share = len(rows) / self.renderer.max_batch
            self.capacity.rendered(len(rows), started_s, self.clock(), share=share)
            for row, samples in zip(rows, rendered, strict=True):
                self._guarded(row.request, self._put, row, samples)

    def _wait_for(self, future: RenderFuture) -> bool:
        """Wait for rendered audio until there is something else to do; return whether it can be taken."""
        if future.done() or self._has_other_work():
            return future.done()
        if isinstance(future, Future):
            future.add_done_callback(lambda _: self.wake())
            with self._changed:
                while not (future.done() or self._stopped or self._has_other_work()):
                    self._changed.wait(self._held_s())
            return future.done()
        return True  # taking it waits

    def _put(self, row: BlockRow, samples: Samples | Exception) -> None:
        job = self._jobs.get(row.request)
        if job is None or row.utterance not in job.utterances:
            return  # the request was cancelled
        if isinstance(samples, Exception):
            raise samples
        audio = row.utterance.finish(row.block, samples)
        job.session.reached(row.utterance.segment, row.utterance.take_words())
        job.in_flight_tokens -= len(row.block.tokens)
        job.changed()
        self._hand_out(row.request, job, audio, final=row.block.final)
        if row.block.final:
            job.utterances.popleft()
            self._advance(row.request)

    def _hand_out(self, request: int, job: Job, audio: Samples, *, final: bool) -> None:
        """Hand out audio. A competing stream's first block is kept until the second can follow in time."""
        with self._changed:
            streams = sum(bool(one.started) and not one.parked for one in self._jobs.values())
            self.capacity.meter.add(len(audio), self.clock(), streams=streams)
        if self._competing and job.session.plays and job.is_silent and len(audio) and not final:
            snapshot = self._snapshot()
            hold_s = self._pacing.hold_s(request, len(audio) / CLOCKS.sample_rate_hz, snapshot)
            if hold_s > 0:
                job.hold(audio, self.clock() + hold_s)
                return
        job.flush()
        job.session.put(audio)

    def _advance(self, request: int) -> None:
        """Go on with a request's next segment, unless it has enough of them or waits for the next one."""
        job = self._jobs.get(request)
        if job is None or job.parked or job.is_decoding or request in self.scheduler.waiting:
            return
        if len(job.utterances) < self._max_utterances:
            self._continue(request, job)

    def _continue(self, request: int, job: Job) -> None:
        """Queue a request for its next segment, park it until text or its listener arrives, or end it.

        Backpressure is applied here, between two segments, and nowhere else: so a stalled listener holds no
        slot, and its buffered audio is bounded all the same, because a segment is.
        """
        # Outside the lock, because text is segmented here and `submit` must not wait for that.
        ended = not job.prepare_segment()
        with self._changed:
            if job.utterances and (ended or job.is_at_silence):
                job.parked = ended = False  # `_put` goes on once they are rendered
            elif ended:
                del self._jobs[request]
            else:
                job.parked = job.segment is None or job.session.is_ahead or job.has_backlog
                if not job.parked:
                    self.scheduler.submit(request, limited=False)
        if ended:  # not under the lock: a listener that holds its own may be waiting for ours
            self._learn(job)
            job.session.end()

    def _learn(self, job: Job) -> None:
        """Improve the estimates by a request that has ended."""
        timing = job.session.timing
        if timing.admitted_s is not None and timing.first_audio_s is not None and timing.samples:
            audio_s = timing.samples / CLOCKS.sample_rate_hz
            self.capacity.learn(timing.first_audio_s - timing.admitted_s, job.spoken_chars, audio_s)

    def _release(self, request: int) -> None:
        """Free a request's slot and keep the slots in use without a gap."""
        with self._changed:
            running = self.scheduler.running
            slot = running.index(request) if request in running else None
            move = self.scheduler.remove(request)
        if slot is not None:
            release_slot(self.decoder, slot)
        if move is not None and (error := move_slot(self.decoder, *move)) is not None:
            self._drop(self.scheduler.running[move[1]], engine_failed(error))

    def _drop(self, request: int, error: NightingaleError | None = None) -> None:
        """Remove a request and free all it holds."""
        if error is not None and request in self.scheduler.running:
            self.decoder.reset(self.scheduler.running.index(request))
        self._release(request)
        self._ready = [other for other in self._ready if other != request]
        with self._changed:
            job = self._jobs.pop(request, None)
        if job is not None:
            job.flush()
            job.session.end(error)

    def _guarded(self, request: int, action: Callable[..., None], *arguments: Any) -> None:
        """Run an action for one request; if it fails, end that request alone."""
        try:
            action(*arguments)
        except Exception as error:
            self._drop(request, engine_failed(error))
        finally:
            if (job := self._jobs.get(request)) is not None:
                job.changed()
