"""The engine's worker thread. One step of it:

    admit waiting requests · decode a step · render blocks that are ready · deliver rendered audio

A renderer that takes batches, or runs beside the decoder, is given several blocks and not waited for while
there is something to decode, such as the next segment. An error in one request ends that request alone.
"""

from __future__ import annotations

import logging
import threading
import time
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
from nightingale.engine.deadlines import deadline_s
from nightingale.engine.faults import engine_closed, engine_failed
from nightingale.engine.guarded_calls import hint_busy, move_slot, release_slot
from nightingale.engine.load import Model
from nightingale.engine.pacing import Pacing
from nightingale.engine.rendering.utterance import Utterance
from nightingale.engine.requests.job import BlockRow, Job, results_of
from nightingale.engine.requests.recorded_segments import RecordedSegment
from nightingale.engine.requests.segments import SegmentQueue, TextSegment
from nightingale.engine.scheduler import Scheduler
from nightingale.engine.session import Session
from nightingale.engine.stream_capacity import Capacity, MaxStreams
from nightingale.errors import NightingaleError
from nightingale.types import Samples

log = logging.getLogger(__name__)
IDLE_S: Final = 0.3
"""Time without work after which the renderer prepares for other sizes of batches."""


class Worker:
    """Runs requests. Its thread starts with the first request and sleeps while there is no work."""

    def __init__(
        self,
        model: Model,
        profile: Profile,
        decoder: Decoder,
        renderer: Renderer,
        max_streams: MaxStreams = "auto",
    ) -> None:
        self.model, self.profile, self.decoder, self.renderer = model, profile, decoder, renderer
        slots, limit = profile.slots or DEFAULT_SLOTS, profile.queue_limit
        self.scheduler = Scheduler(slots=slots, queue_limit=limit)
        self._jobs: dict[int, Job] = {}
        self._ids = count()
        self._ready: list[int] = []  # requests whose next block waits to be rendered
        self._in_flight: deque[tuple[list[BlockRow], RenderFuture, float]] = deque()
        """Blocks that are being rendered, and since when."""
        self._changed, self._stopped, self.preparing = threading.Condition(), False, True
        """preparing: until the renderer is prepared for all sizes of batches, which it is while there is no work."""
        batching, in_blocks = renderer.max_batch > 1, profile.in_blocks
        self.capacity = Capacity(max_streams, whole_segments=not in_blocks, batching=batching)
        # Where blocks are rendered one by one, streams compete for the same cores, T3 included.
        competing = in_blocks and not batching
        self._max_utterances = 1 if in_blocks else 2  # the next segment is decoded while one is rendered
        self._decoded: list[int] = []  # requests whose segment was decoded in this step
        pacing = BatchPacing if batching else Pacing
        self._pacing = pacing(self._jobs, self._changed, self.capacity, renderer, competing=competing)
        starting = self._pacing.most_starting
        queue = (self.scheduler, self._jobs, self.capacity, profile)
        self.admission = Admission(*queue, starting, self._changed)
        self._thread: threading.Thread | None = None

    def submit(self, session: Session, segments: SegmentQueue, *, chars: int | None = None) -> None:
        """Queue a request; raise QueueFull if too many wait. chars: None if its text still arrives."""
        with self._changed:
            if self._stopped:
                raise engine_closed()
            request = next(self._ids)
            self.admission.submit(request)
            self._jobs[request] = Job(session=session, segments=segments, chars=chars)
            session.find_place = partial(self.admission.place, request)
            session.first_position = self.admission.position(request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="nightingale", daemon=True)
                self._thread.start()
            self._changed.notify_all()

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
            admitted = self.admission.admit()
            if admitted is None:
                break
            self._guarded(admitted[0], self._start, *admitted)
        self._decode()
        hint_busy(self.renderer, bool(self._rows_to_decode()))
        self._render()
        self._deliver()
        decoded, self._decoded = self._decoded, []
        for request in decoded:
            self._guarded(request, self._advance, request)

    def _has_work(self) -> bool:
        busy = self._ready or self._in_flight or self.admission.can_admit() or self._rows_to_decode()
        return bool(busy) or self._has_changes()

    def _has_changes(self) -> bool:
        return any(job.session.cancelled or job.may_resume for job in self._jobs.values())

    def _sweep(self) -> None:
        """Drop cancelled requests and queue parked ones that can continue."""
        with self._changed:
            jobs = list(self._jobs.items())
        for request, job in jobs:
            if job.held_until_s <= time.perf_counter():
                job.flush()
            if job.session.cancelled:
                self._drop(request)
            elif job.may_resume:
                self._continue(request, job)

    def _start(self, request: int, slot: int) -> None:
        """Prefill the prompt of a request's next segment."""
        job = self._jobs[request]
        job.segment = job.segment or job.segments.next()
        timing = job.session.timing
        if job.segment is not None:
            timing.admitted_s = timing.admitted_s or time.perf_counter()
            if isinstance(job.segment, RecordedSegment):
                return self._feed(request, job, job.segment)
            if job.segment.text_ids:
                return self._prefill(request, slot, job, job.segment)
            job.session.reached(job.segment)
            job.session.put(np.zeros(job.segment.pause_samples, np.float32))  # a pause and nothing else
            job.segment = None
        self._release(request)
        self._continue(request, job)

    def _prefill(self, request: int, slot: int, job: Job, segment: TextSegment) -> None:
        timing, started, is_first = job.session.timing, time.perf_counter(), not job.started
        utterance = job.begin(segment, self.model, self.profile, self.renderer)
        if job.session.plays and is_first:
            utterance.set_first_block(self._pacing.first_block_tokens)
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

    def _rows_to_decode(self) -> list[int]:
        # A started segment is decoded to its end, however far its listener is behind; see `_continue`.
        rows = [request for request in self.scheduler.running if self._jobs[request].is_decoding]
        if not self.profile.batched:  # each row takes a pass of its own, so the most urgent one goes first
            return sorted(rows, key=lambda request: deadline_s(self._jobs[request]))[:1]
        return self._pacing.rows_to_decode(rows, self._ready)

    def _decode(self) -> None:
        """Advance every running utterance."""
        rows = {}
        for request in self._rows_to_decode():
            utterance, slot = self._jobs[request].utterances[-1], self.scheduler.running.index(request)
            rows[request] = DecodeRow(slot, utterance.decoding, utterance.last_token)
        if not rows:
            return
        started = time.perf_counter()
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
        utterance, timing = job.utterances[-1], job.session.timing
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

    def _render(self) -> None:
        """Render the block with the earliest deadline, and others that can be rendered with it."""
        if not self._ready or not self._can_render():
            return
        self._ready = self._pacing.in_order(self._ready)
        key = self._utterance(self._ready[0]).batch_key
        alike = [r for r in self._ready if self._utterance(r).batch_key == key]
        requests = alike[: self._pacing.batch_size(alike)]
        self._ready = [request for request in self._ready if request not in requests]
        rows = [self._pacing.take_block(request) for request in requests]
        if len(rows) > 1:
            with suppress(Exception):  # one by one below, to find the request that is at fault
                return self._submit(rows)
        for row in rows:
            self._guarded(row.request, self._submit, [row])

    def _submit(self, rows: list[BlockRow]) -> None:
        started_s = time.perf_counter()
        self._in_flight.append((rows, self.renderer.render([row.block for row in rows]), started_s))
        for row in rows:  # not sooner: the next cut depends on what was submitted
            self._enqueue_block(row.request)

    def _utterance(self, request: int) -> Utterance:
        utterance = self._jobs[request].utterance
        assert utterance is not None
        return utterance

    def _can_render(self) -> bool:
        in_flight, decoding = len(self._in_flight), bool(self._rows_to_decode())
        return self._pacing.may_render(self._ready, in_flight, decoding=decoding)

    def _has_other_work(self) -> bool:
        """Return whether there is something to do before the next audio is ready."""
        with self._changed:
            waiting = self._decoded or self.admission.can_admit() or self._has_changes()
        if waiting or self._pacing.held_s() == 0.0 or self._rows_to_decode():
            return True
        return bool(self._ready) and self._can_render()

    def _deliver(self) -> None:
        """Hand out rendered audio; wait for it only if there is nothing else to do."""
        while self._in_flight:
            rows, future, started_s = self._in_flight[0]
            if not self._wait_for(future):
                return
            self._in_flight.popleft()
            rendered = results_of(future, len(rows))
            self._pacing.rendered(len(rows), started_s)
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
                    self._changed.wait(self._pacing.held_s())
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
        job.in_flight_s -= len(row.block.tokens) / CLOCKS.token_rate_hz
        self._pacing.pass_on(job, audio, final=row.block.final)
        if row.block.final:
            job.utterances.popleft()
            self._advance(row.request)

    def _advance(self, request: int) -> None:
        """Go on with a request's next segment, unless it has enough of them or waits for the next one."""
        job, waiting = self._jobs.get(request), self.scheduler.waiting
        if job is None or job.parked or job.is_decoding or request in waiting:
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
            self._pacing.learn(job)
            job.session.end()

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
