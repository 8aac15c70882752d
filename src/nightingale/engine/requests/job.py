"""A request inside the worker: its session, its text, and the segment that is being synthesized."""

from __future__ import annotations

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
from nightingale.engine.snapshot import StreamSnapshot
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
    in_flight_tokens: int = 0
    """Tokens whose audio is being rendered."""
    held: list[Samples] = field(default_factory=list)
    """First audio that is kept until the next block can follow it in time."""
    held_until_s: float = 0.0
    parked: bool = False
    """Neither queued nor in a slot: it waits for more text, or for its listener."""
    _known: StreamSnapshot | None = None
    """The last snapshot; None if it has changed since."""

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

    @property
    def spoken_chars(self) -> float | None:
        """Characters that take as long at speed 1 as its text at its own; None while the text arrives."""
        return None if self.chars is None else self.chars / self.session.request.speed

    @property
    def is_new(self) -> bool:
        """True until its first block was given to the renderer."""
        return self.session.timing.tokens == 0

    @property
    def is_stalled(self) -> bool:
        """True if it waits for its listener, who has audio to read."""
        return self.parked and self.segment is not None

    def snapshot(self) -> StreamSnapshot:
        """Return the request as it is now. Any thread may call this."""
        known = self._known
        if known is None or known.plays != self.session.plays or known.is_parked != self.parked:
            known = self._known = self._take_snapshot()
        return known

    def changed(self) -> None:
        """Let the next snapshot be taken anew. Before it is admitted, `snapshot` notices what can change."""
        if self.session.timing.admitted_s is not None:
            self._known = None

    def _take_snapshot(self) -> StreamSnapshot:
        session = self.session
        timing = session.timing
        utterance: Utterance | None = None
        is_decoding = is_rendering = needs_more = False
        next_block_s = 0.0
        surplus_tokens = 0
        if utterances := tuple(self.utterances):  # in one step: the worker may remove one meanwhile
            utterance = utterances[-1]
            is_decoding = not utterance.decoding.finished
            if not utterances[0].rendered:
                utterance = utterances[0]
            is_rendering = not utterance.rendered
            is_open = is_rendering or self.segment is not None or not self.segments.closed
            needs_more = session.plays and timing.tokens > 0 and not self.parked and is_open
            next_block_s = utterance.least_block_tokens / CLOCKS.token_rate_hz
            surplus_tokens = utterance.surplus_tokens
        held_s = self.held_s if self.held else 0.0
        return StreamSnapshot(
            plays=session.plays,
            has_started=self.started > 0,
            is_new=timing.tokens == 0,
            is_parked=self.parked,
            is_decoding=is_decoding,
            has_utterance=utterance is not None,
            is_rendering=is_rendering,
            needs_more=needs_more,
            opened_s=timing.opened_s,
            admitted_s=timing.admitted_s,
            has_audio=timing.first_audio_s is not None,
            plays_until_s=timing.deadline_s,
            in_flight_s=self.in_flight_tokens / CLOCKS.token_rate_hz,
            held_s=held_s,
            held_until_s=self.held_until_s,
            next_block_s=next_block_s,
            surplus_tokens=surplus_tokens,
            made_s=timing.samples / CLOCKS.sample_rate_hz + held_s,
            chars=self.spoken_chars,
        )

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
        self.started += 1
        self.segment = None
        return utterance

    def feed(self, segment: RecordedSegment, model: Model, profile: Profile, renderer: Renderer) -> None:
        """Add the speech tokens of a recording to its utterance, or begin one."""
        if not self.is_decoding:
            self.begin(segment, model, profile, renderer)
        self.segment = None
        self.utterances[-1].feed(segment)

    def hold(self, audio: Samples, until_s: float) -> None:
        """Keep the first audio until a time."""
        self.held.append(audio)
        self.held_until_s = until_s

    def flush(self) -> None:
        """Hand out the audio that was kept."""
        held = self.held
        self.held = []
        for audio in held:
            self.session.put(audio)

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
