"""A request inside the worker: its session, its text, and the segment that is being synthesized."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nightingale.backends.base import Block, Renderer, RenderFuture
from nightingale.backends.profiles import Profile
from nightingale.clocks import CLOCKS
from nightingale.decoding.philox import nth_seed
from nightingale.engine.faults import check_finite
from nightingale.engine.load import Model
from nightingale.engine.rendering.utterance import Utterance
from nightingale.engine.requests.recorded_segments import RecordedSegment
from nightingale.engine.requests.segments import SegmentQueue, TextSegment
from nightingale.engine.session import Request, Session
from nightingale.errors import EngineFault
from nightingale.types import Samples


class BlockRow(NamedTuple):
    """A block, and the request and utterance that it belongs to."""

    request: int
    utterance: Utterance
    block: Block


@dataclass(slots=True)
class Job:
    """A request inside the worker."""

    session: Session
    segments: SegmentQueue
    chars: int | None = None
    """Characters of its text; None while the text still arrives."""
    started: int = 0
    """Segments that were started."""
    segment: TextSegment | None = None
    """The next segment."""
    utterances: deque[Utterance] = field(default_factory=deque)
    """The segments that are being synthesized, in order: the last one may still be decoded."""
    in_flight_s: float = 0.0
    """Audio that is being rendered."""
    held: list[Samples] = field(default_factory=list)
    """First audio that is kept until the next block can follow it in time."""
    held_until_s: float = 0.0
    parked: bool = False
    """Neither queued nor in a slot: it waits for more text, or for its listener."""

    @property
    def utterance(self) -> Utterance | None:
        """The segment whose blocks are rendered next; None if none is being synthesized."""
        unrendered = (one for one in self.utterances if not one.rendered)
        return next(unrendered, self.utterances[-1] if self.utterances else None)

    @property
    def is_decoding(self) -> bool:
        """True while a segment is being decoded."""
        return bool(self.utterances) and not self.utterances[-1].decoding.finished

    @property
    def held_s(self) -> float:
        """Seconds of the audio that is kept."""
        return sum(map(len, self.held)) / CLOCKS.sample_rate_hz

    @property
    def is_silent(self) -> bool:
        """True until the first audio was rendered."""
        return self.session.timing.first_audio_s is None and not self.held

    @property
    def is_at_silence(self) -> bool:
        """True if the next segment is a pause and nothing else."""
        return self.segment is not None and self.segment.is_pause

    def prepare_segment(self) -> bool:
        """Take the next segment, if there is one already; return False if there will be none."""
        closed = (
            self.segments.closed
        )  # read first: text that is added just before the end belongs to the request
        self.segment = self.segment or self.segments.next()
        return self.segment is not None or not closed

    def request_for(self, segment: TextSegment | None) -> Request:
        """Return the request with the voice and speed of a segment, where it has its own."""
        asked = self.session.request
        if segment is None or (segment.voice is None and segment.speed is None):
            return asked
        return replace(asked, voice=segment.voice or asked.voice, speed=segment.speed or asked.speed)

    def begin(self, segment: TextSegment, model: Model, profile: Profile, renderer: Renderer) -> Utterance:
        """Begin a segment and return its utterance."""
        asked = self.request_for(segment)
        seed = nth_seed(asked.seed, self.started)
        stream = renderer.open(asked.voice, seed=seed)
        utterance = Utterance(model, profile, segment, asked, seed=seed, stream=stream)
        self.utterances.append(utterance)
        self.started, self.segment = self.started + 1, None
        return utterance

    def feed(self, segment: RecordedSegment, model: Model, profile: Profile, renderer: Renderer) -> None:
        """Add the speech tokens of a recording to its utterance, or begin one."""
        if not self.is_decoding:
            self.begin(segment, model, profile, renderer)
        self.segment = None
        self.utterances[-1].feed(segment)

    def hold(self, audio: Samples, seconds: float) -> None:
        """Keep the first audio for a while."""
        self.held.append(audio)
        self.held_until_s = time.perf_counter() + seconds
        if seconds <= 0:
            self.flush()

    def flush(self) -> None:
        """Hand out the audio that was kept."""
        held, self.held = self.held, []
        for audio in held:
            self.session.put(audio)

    @property
    def is_new(self) -> bool:
        """True until its first block was given to the renderer."""
        return self.session.timing.tokens == 0

    @property
    def may_resume(self) -> bool:
        """True if a parked job can continue: its listener caught up, or its text changed."""
        can_continue = self.segments.waiting if self.segment is None else not self.session.is_ahead
        return self.parked and can_continue and not self.has_backlog

    @property
    def has_backlog(self) -> bool:
        """True if a recording has tokens beyond the next block: more of them can wait."""
        return self.is_decoding and self.utterances[-1].surplus_tokens > 0


def results_of(future: RenderFuture, blocks: int) -> list[Samples | Exception]:
    """Return the samples of each block, or for each the error that rendering them raised."""
    try:
        return [_checked(samples) for samples in future.result()]
    except Exception as error:
        return [error] * blocks


def _checked(samples: Samples) -> Samples | Exception:
    try:
        return check_finite(samples, "renderer")
    except EngineFault as fault:
        return fault
