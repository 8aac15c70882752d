"""The engine's one thread: decides, computes, renders, a step at a time, for everybody at once.

    admit one waiting utterance · a step for each running one · render what is ready · hand out what sounds

RenderStream one block a step keeps everybody's tokens coming while somebody's block is rendered; a studio that
renders several together, or beside T3, is given several, and is not waited for while there is something to
decode. What fails in one request ends that request with a typed error; the others never notice.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np

from nightingale.backends.torch.pipelined import use_threads
from nightingale.backends.torch.paged import room_for
from nightingale.decoding.decoder import Decoder, Speaking
from nightingale.engine.faults import engine_closed, engine_failed
from nightingale.engine.model import Model
from nightingale.engine.requests.segments import Piece
from nightingale.engine.profiles import Profile
from nightingale.decoding.seeds import nth_seed
from nightingale.engine.scheduler import Scheduler
from nightingale.engine.session import Pieces, Session
from nightingale.backends.torch.renderer import Block, RenderFuture, Renderer
from nightingale.engine.rendering.utterance import Utterance
from nightingale.errors import NightingaleError, QueueFull
from nightingale.types import Samples


@dataclass(frozen=True, slots=True)
class Launched:
    """Blocks being rendered, and whose they are."""

    rows: list[tuple[int, Utterance, Block]]
    sound: RenderFuture


@dataclass(slots=True)
class Job:
    """A request in the worker's hands."""

    session: Session
    pieces: Pieces
    begun: int = 0
    """How many pieces were begun."""
    piece: Piece | None = None
    """The next to be spoken."""
    utterance: Utterance | None = None
    """What is being spoken."""
    parked: bool = False
    """Holds no place, in the line or in a slot: waits for more text, or for its listener."""

    @property
    def may_go_on(self) -> bool:
        """Whether what it waits for has come: its listener has caught up, or there is news of its text."""
        return self.parked and (self.pieces.waiting if self.piece is None else not self.session.is_ahead)


class Worker:
    """Starts its thread with the first request, and sleeps when there is nothing to say."""

    def __init__(self, model: Model, profile: Profile, draws: Decoder, studio: Renderer) -> None:
        self.model, self.profile, self.draws, self.studio = model, profile, draws, studio
        self.room, budget = room_for(model, profile), profile.memory_bytes
        self.scheduler = Scheduler(slots=profile.slots, queue_limit=profile.queue_limit, budget_bytes=budget)
        self._jobs: dict[int, Job] = {}
        self._tickets = count()
        self._ready: deque[int] = deque()
        """Tickets whose block waits to be rendered."""
        self._launched: deque[Launched] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def submit(self, session: Session, pieces: Pieces) -> None:
        """Join the line; QueueFull at once if it is too long."""
        with self._changed:
            if self._stopped:
                raise engine_closed()
            self._check_sleepers()
            ticket = next(self._tickets)
            self.scheduler.submit(ticket)
            self._jobs[ticket] = Job(session=session, pieces=pieces)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="nightingale", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wake(self) -> None:
        """Something changed outside: text came, a listener caught up or left."""
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """End every session, and the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=30)
        self.studio.close()

    def _run(self) -> None:
        reason = engine_closed()
        try:
            if self.studio.shares is not None:
                use_threads(self.studio.shares.t3)
            while True:
                with self._changed:
                    while not self._stopped and not self._has_work():
                        self._changed.wait()
                    if self._stopped:
                        return
                self._step()
        except BaseException as error:  # the engine's own fault: nobody may be left waiting for ever
            reason = engine_failed(error)
        finally:
            with self._changed:
                self._stopped = True
                jobs, self._jobs = list(self._jobs.values()), {}
            for job in jobs:
                job.session.end(reason)

    def _has_work(self) -> bool:
        jobs = self._jobs.values()
        return (
            bool(self._ready)
            or bool(self._launched)
            or self.scheduler.may_admit
            or self._is_decoding()
            or any(job.session.cancelled or job.may_go_on for job in jobs)
        )

    def _may_decode(self, ticket: int) -> bool:
        """A piece that was begun is spoken to its end, however far its listener is behind: see `_go_on`."""
        spoken = self._jobs[ticket].utterance
        return spoken is not None and not spoken.decoding.finished

    def _check_sleepers(self) -> None:
        """Who sleeps holds no slot, but half a minute of audio or more. Called under the lock."""
        asleep = sum(job.parked and job.piece is not None for job in self._jobs.values())
        if asleep >= self.profile.sleepers_limit:
            raise QueueFull(
                "too many listeners do not read what was spoken for them",
                got=f"{asleep} of them, each {self.profile.ahead_seconds:g} s behind or more",
                allowed=f"at most {self.profile.sleepers_limit}",
                fix="Read or close the streams that are open, then try again.",
            )

    def _step(self) -> None:
        self._sweep()
        for _ in range(self.draws.at_once):
            self._weigh_next()
            with self._changed:
                admitted = self.scheduler.admit()
            if admitted is None:
                break
            self._for(admitted[0], partial(self._begin, *admitted))
        self._decode()
        self.studio.t3_works(self._is_decoding())
        self._render()
        self._hand_out()

    def _sweep(self) -> None:
        """Let go of those who left; put those who may go on back in line."""
        with self._changed:
            jobs = list(self._jobs.items())
        for ticket, job in jobs:
            if job.session.cancelled:
                self._drop(ticket)
            elif job.may_go_on:
                self._go_on(ticket, job)

    def _weigh_next(self) -> None:
        """Where bytes are counted, the first in line says what it needs; its text is cut for that."""
        with self._changed:
            line, counted = self.scheduler.waiting, self.scheduler.budget_bytes
            ticket = line[0] if counted and line and line[0] not in self.scheduler.needs_bytes else None
        if ticket is not None:
            job = self._jobs[ticket]
            job.piece = job.piece or job.pieces.next()
            need = self.room.need(job.piece, job.session.request) if job.piece else 0
            self.scheduler.needs_bytes[ticket] = need

    def _begin(self, ticket: int, slot: int) -> None:
        """Read the prompt of the next piece, and draw its first token."""
        job = self._jobs[ticket]
        job.piece = job.piece or job.pieces.next()
        if job.piece is None:
            self._release(ticket)
            self._go_on(ticket, job)
            return
        timing, at = job.session.timing, time.perf_counter()
        timing.admitted_s = timing.admitted_s or at
        if not job.piece.text_ids:  # a pause, and nothing else
            job.session.put(np.zeros(job.piece.pause_samples, np.float32))
            job.piece = None
            self._release(ticket)
            self._go_on(ticket, job)
            return
        seed = nth_seed(job.session.request.seed, job.begun)
        job.utterance = Utterance(
            self.model,
            self.profile,
            job.piece,
            job.session.request,
            seed=seed,
            rendering=self.studio.open(job.session.request.voice, seed=seed),
            tally=timing.tally,
        )
        job.begun, job.piece = job.begun + 1, None
        tokens = self.draws.begin(slot, job.utterance.decoding, job.utterance.prompt())
        timing.lap("prefill", at)
        self._accept(ticket, tokens)

    def _decode(self) -> None:
        """A step for everybody who may take one."""
        speaking, tickets = [], []
        for slot, ticket in enumerate(self.scheduler.running):
            if self._may_decode(ticket):
                spoken = self._jobs[ticket].utterance
                assert spoken is not None
                speaking.append(Speaking(slot=slot, decoding=spoken.decoding, last_token=spoken.last_token))
                tickets.append(ticket)
        if not speaking:
            return
        at = time.perf_counter()
        # All tokens first: accepting one may end an utterance and move another to its slot.
        for ticket, drawn in zip(tickets, self.draws.step(speaking), strict=True):
            self._jobs[ticket].session.timing.lap("t3", at)
            if isinstance(drawn, Exception):
                self._drop(ticket, engine_failed(drawn))
            else:
                self._for(ticket, partial(self._accept, ticket, drawn))

    def _accept(self, ticket: int, tokens: list[int]) -> None:
        spoken = self._jobs[ticket].utterance
        assert spoken is not None
        for token in tokens:
            spoken.accept(token)
            if spoken.must_restart or spoken.decoding.finished:
                break  # what was drawn beyond is nobody's
        if spoken.must_restart:
            self._ready = deque(waiting for waiting in self._ready if waiting != ticket)  # its block is void
            spoken.restart(self._jobs[ticket].session.timing)
            slot = self.scheduler.running.index(ticket)
            self._accept(ticket, self.draws.begin(slot, spoken.decoding, spoken.prompt()))
            return
        if spoken.decoding.finished:
            held = self.room.held(spoken.piece, spoken.request, spoken.decoding.drawn)
            self._jobs[ticket].session.timing.remembered(held)
            self._release(ticket)  # its memory is free while its last block still waits to be rendered
        self._line_up(ticket, spoken)

    def _line_up(self, ticket: int, spoken: Utterance) -> None:
        if spoken.block_ready and ticket not in self._ready:
            self._ready.append(ticket)

    def _render(self) -> None:
        """The block that has waited longest, and others that can be rendered with it."""
        if not self._ready or not self._has_room():
            return
        first = self._utterance(self._ready[0])
        tickets = [self._ready.popleft()]
        if self.studio.together > 1:
            alike = [t for t in self._ready if self._utterance(t).company == first.company]
            tickets += alike[: self.studio.together - 1]
            self._ready = deque(ticket for ticket in self._ready if ticket not in tickets)
        spoken = [self._utterance(ticket) for ticket in tickets]
        blocks = []
        for ticket, utterance in zip(tickets, spoken, strict=True):
            utterance.in_company = self._crowd() > 1
            blocks.append(utterance.take_block(self._jobs[ticket].session.timing))
        rows = list(zip(tickets, spoken, blocks, strict=True))
        if len(rows) > 1:
            try:
                return self._launch(rows)
            except Exception:
                pass  # then each alone, which shows whose fault it was
        for row in rows:
            self._for(row[0], partial(self._launch, [row]))

    def _launch(self, rows: list[tuple[int, Utterance, Block]]) -> None:
        self._launched.append(Launched(rows, self.studio.launch([block for _, _, block in rows])))
        for ticket, spoken, _ in rows:  # not sooner: what may be cut next depends on what was launched
            self._line_up(ticket, spoken)

    def _crowd(self) -> int:
        """Requests that are spoken or about to be. Who waits for text, or for a listener, is no company."""
        with self._changed:
            return sum(not job.parked for job in self._jobs.values())

    def _utterance(self, ticket: int) -> Utterance:
        spoken = self._jobs[ticket].utterance
        assert spoken is not None
        return spoken

    def _hand_out(self) -> None:
        """What has been rendered; waited for only if there is nothing else to do."""
        while self._launched:
            launched = self._launched[0]
            if not launched.sound.ready and self._is_busy():
                return
            self._launched.popleft()
            try:
                heard: list[Samples | Exception] = list(launched.sound.take())
            except Exception as error:
                heard = [error] * len(launched.rows)
            for (ticket, spoken, block), samples in zip(launched.rows, heard, strict=True):
                job = self._jobs.get(ticket)
                if job is None or job.utterance is not spoken:
                    continue  # he has left
                if isinstance(samples, Exception):
                    self._drop(ticket, engine_failed(samples))
                else:
                    self._for(ticket, partial(self._put, ticket, job, block, samples))

    def _is_busy(self) -> bool:
        """Whether there is something to do before the next sound is ready."""
        with self._changed:
            waiting = self.scheduler.may_admit
        return waiting or self._is_decoding() or (bool(self._ready) and self._has_room())

    def _is_decoding(self) -> bool:
        return any(self._may_decode(ticket) for ticket in self.scheduler.running)

    def _has_room(self) -> bool:
        """Whether another launch may be under way."""
        return len(self._launched) < self.studio.under_way

    def _put(self, ticket: int, job: Job, block: Block, samples: Samples) -> None:
        spoken = job.utterance
        assert spoken is not None
        job.session.put(spoken.finish(block, samples))
        if block.final:
            job.utterance = None
            self._go_on(ticket, job)

    def _go_on(self, ticket: int, job: Job) -> None:
        """Back in line with the next piece, or wait for the listener, or for text, or the end.

        Here, between two pieces, and nowhere else a listener who falls behind is waited for: so nobody holds
        a slot who does not use it, and what waits to be heard is bounded all the same, for a piece is.
        """
        # Asked first: what is added just before the end belongs to it.
        closed = job.pieces.closed
        # Outside the lock: text is cut here, and whoever opens a request need not wait for that.
        job.piece = job.piece or job.pieces.next()
        over = job.piece is None and closed
        with self._changed:
            if over:
                del self._jobs[ticket]
            else:
                job.parked = job.piece is None or job.session.is_ahead
                if not job.parked:
                    self.scheduler.submit(ticket, limited=False)
        if over:  # not under the lock: a listener who holds his own may be waiting for it
            job.session.end()

    def _release(self, ticket: int) -> None:
        with self._changed:
            running = self.scheduler.running
            slot = running.index(ticket) if ticket in running else None
            move = self.scheduler.leave(ticket)
        if slot is not None:
            self.draws.leave(slot)
        if move is not None:
            self.draws.move(move.source, move.target)

    def _drop(self, ticket: int, error: NightingaleError | None = None) -> None:
        """Forget a request and free all it holds."""
        if error is not None and ticket in self.scheduler.running:
            self.draws.wipe(self.scheduler.running.index(ticket))
        self._release(ticket)
        if ticket in self._ready:
            self._ready.remove(ticket)
        with self._changed:
            job = self._jobs.pop(ticket, None)
        if job is not None:
            job.session.end(error)

    def _for(self, ticket: int, act: Callable[[], None]) -> None:
        """Do something for one request; if it fails, that request alone ends."""
        try:
            act()
        except NightingaleError as error:
            self._drop(ticket, error)
        except Exception as error:
            self._drop(ticket, engine_failed(error))
