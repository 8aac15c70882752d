"""The engine's one thread: decides, computes, renders, a step at a time, for everybody at once.

    admit one waiting utterance · one token for each running one · render one block that is ready

Rendering one block a step keeps everybody's tokens coming while somebody's block is rendered. What fails in
one request ends that request with a typed error; the others never notice.
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
from torch import Tensor

from nightingale.engine.acoustic import PromptState, prepare_prompt
from nightingale.engine.load import Model
from nightingale.engine.pieces import Piece
from nightingale.engine.profiles import Profile
from nightingale.engine.randomness import nth_seed
from nightingale.engine.runner import Runner, Turn
from nightingale.engine.scheduler import Scheduler
from nightingale.engine.session import Pieces, Session
from nightingale.engine.utterance import Utterance
from nightingale.errors import EngineFault, NightingaleError, QueueFull

PROMPTS_KEPT_BYTES = 3 << 30
"""How much may be remembered of voices' prompts. Ten seconds of a guided flow's take 2.3 GB in float32."""


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

    def __init__(self, model: Model, profile: Profile) -> None:
        self.model, self.profile = model, profile
        self.scheduler = Scheduler(slots=profile.slots, queue_limit=profile.queue_limit)
        t3, habits = model.speakers.t3, model.habits
        self.runner = Runner(
            t3,
            slots=profile.slots,
            rows_per_slot=1 if "cfg_weight" in habits.ignored else 2,
            capacity=t3.prompt_length(habits.max_text_ids) + habits.max_new_tokens,
            batched=profile.batched,
        )
        self._jobs: dict[int, Job] = {}
        self._tickets = count()
        self._ready: deque[int] = deque()
        """Tickets whose block waits to be rendered."""
        self._prompts: dict[str, PromptState] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def submit(self, session: Session, pieces: Pieces) -> None:
        """Join the line; QueueFull at once if it is too long."""
        with self._changed:
            if self._stopped:
                raise _closed()
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

    def _run(self) -> None:
        reason = _closed()
        try:
            while True:
                with self._changed:
                    while not self._stopped and not self._has_work():
                        self._changed.wait()
                    if self._stopped:
                        return
                self._step()
        except BaseException as error:  # the engine's own fault: nobody may be left waiting for ever
            reason = _fault(error)
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
            or (bool(self.scheduler.waiting) and len(self.scheduler.running) < self.profile.slots)
            or any(self._may_decode(ticket) for ticket in self.scheduler.running)
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
        with self._changed:
            admitted = self.scheduler.admit()
        if admitted is not None:
            self._for(admitted[0], partial(self._begin, *admitted))
        self._decode()
        self._render()

    def _sweep(self) -> None:
        """Let go of those who left; put those who may go on back in line."""
        with self._changed:
            jobs = list(self._jobs.items())
        for ticket, job in jobs:
            if job.session.cancelled:
                self._drop(ticket)
            elif job.may_go_on:
                self._go_on(ticket, job)

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
        job.utterance = Utterance(
            self.model,
            self.profile,
            job.piece,
            job.session.request,
            seed=nth_seed(job.session.request.seed, job.begun),
            prompt_state=self._prompt_state(job.session),
        )
        job.begun, job.piece = job.begun + 1, None
        scores = self.runner.begin(slot, job.utterance.prompt())
        timing.lap("prefill", at)
        self._accept(ticket, scores)

    def _decode(self) -> None:
        """One token for everybody who may have one."""
        turns, tickets = [], []
        for slot, ticket in enumerate(self.scheduler.running):
            if self._may_decode(ticket):
                spoken = self._jobs[ticket].utterance
                assert spoken is not None
                turns.append(Turn(slot=slot, token=spoken.last_token, position=spoken.decoding.drawn))
                tickets.append(ticket)
        if not turns:
            return
        at = time.perf_counter()
        # All scores first: accepting one may end an utterance and move another to its slot.
        for ticket, scores in zip(tickets, self._scores(turns), strict=True):
            self._jobs[ticket].session.timing.lap("t3", at)
            if isinstance(scores, Exception):
                self._drop(ticket, _fault(scores))
            else:
                self._for(ticket, partial(self._accept, ticket, scores))

    def _scores(self, turns: list[Turn]) -> list[Tensor | Exception]:
        """Of all together; if that fails, each alone, which shows whose fault it was."""
        try:
            return list(self.runner.step(turns))
        except Exception:
            return [self._scores_alone(turn) for turn in turns]

    def _scores_alone(self, turn: Turn) -> Tensor | Exception:
        try:
            return self.runner.step([turn])[0]
        except Exception as error:
            return error

    def _accept(self, ticket: int, scores: Tensor) -> None:
        spoken = self._jobs[ticket].utterance
        assert spoken is not None
        spoken.accept(scores)
        if spoken.must_restart:
            spoken.restart(self._jobs[ticket].session.timing)
            slot = self.scheduler.running.index(ticket)
            self._accept(ticket, self.runner.begin(slot, spoken.prompt()))
            return
        if spoken.decoding.finished:
            self._release(ticket)  # its memory is free while its last block still waits to be rendered
        if spoken.block_ready and ticket not in self._ready:
            self._ready.append(ticket)

    def _render(self) -> None:
        """The block that has waited longest."""
        if not self._ready:
            return
        ticket = self._ready.popleft()
        self._for(ticket, partial(self._render_one, ticket))

    def _render_one(self, ticket: int) -> None:
        job = self._jobs[ticket]
        spoken = job.utterance
        assert spoken is not None
        spoken.in_company = len(self._jobs) > 1
        job.session.put(spoken.render(job.session.timing))
        if spoken.rendered:
            job.utterance = None
            self._go_on(ticket, job)
        elif spoken.block_ready:
            self._ready.append(ticket)

    def _go_on(self, ticket: int, job: Job) -> None:
        """Back in line with the next piece, or wait for the listener, or for text, or the end.

        Here, between two pieces, and nowhere else a listener who falls behind is waited for: so nobody holds
        a slot who does not use it, and what waits to be heard is bounded all the same, for a piece is.
        """
        # Asked first: what is added just before the end belongs to it.
        closed = job.pieces.closed
        # Outside the lock: text is cut here, and whoever opens a request need not wait for that.
        job.piece = job.piece or job.pieces.next()
        with self._changed:
            if job.piece is None and closed:
                del self._jobs[ticket]
                job.session.end()
                return
            job.parked = job.piece is None or job.session.is_ahead
            if not job.parked:
                self.scheduler.submit(ticket, limited=False)

    def _prompt_state(self, session: Session) -> PromptState | None:
        """What the flow remembers of the voice's prompt: computed once per voice."""
        if not self.profile.streaming:
            return None
        voice = session.request.voice
        state = self._prompts.pop(voice.content_hash, None) or prepare_prompt(self.model.speakers.flow, voice)
        while (
            self._prompts
            and state.nbytes + sum(p.nbytes for p in self._prompts.values()) > PROMPTS_KEPT_BYTES
        ):
            self._prompts.pop(next(iter(self._prompts)))  # the one that was not used for the longest time
        self._prompts[voice.content_hash] = state
        return state

    def _release(self, ticket: int) -> None:
        with self._changed:
            move = self.scheduler.leave(ticket)
        if move is not None:
            self.runner.move(move.source, move.target)

    def _drop(self, ticket: int, error: NightingaleError | None = None) -> None:
        """Forget a request and free all it holds."""
        if error is not None and ticket in self.scheduler.running:
            self.runner.wipe(self.scheduler.running.index(ticket))
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
            self._drop(ticket, _fault(error))


def _closed() -> EngineFault:
    return EngineFault(
        "the engine was closed",
        got="a request that was not finished",
        allowed="requests while it is open",
        fix="Open a new TTS.",
    )


def _fault(error: BaseException) -> EngineFault:
    fault = EngineFault(
        "the engine failed while speaking",
        got=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        allowed="no fault",
        fix="Try again; if it happens again, report it with the text and `nightingale doctor`.",
    )
    fault.__cause__ = error
    return fault
