"""The requests of an engine at one moment, from which admission and pacing decide.

The worker owns every request and is the only one that changes it. It takes a snapshot, asks for a decision, and
carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class StreamSnapshot(NamedTuple):
    """A request at one moment: a tuple, because one is made for each stream of a full GPU in every step, and a frozen
    dataclass takes seven times as long to make."""

    plays: bool
    """False if its audio is wanted as a whole."""
    has_started: bool
    is_new: bool
    """True until its first block was given to the renderer."""
    is_parked: bool
    """True while it waits for text or for its listener, without a slot."""
    is_decoding: bool
    has_utterance: bool
    is_rendering: bool
    """True if that segment will still have blocks to render."""
    needs_more: bool
    """True if its listener plays and not all of its audio was given to the renderer."""
    opened_s: float
    admitted_s: float | None
    has_audio: bool
    """True if its listener was given audio."""
    plays_until_s: float
    """The time at which its listener has played the audio that it was given."""
    in_flight_s: float
    """Audio that is being rendered."""
    held_s: float
    """First audio that is kept until the next block can follow it in time."""
    held_until_s: float
    next_block_s: float
    """Audio of the smallest block that it may have next; 0 without a segment."""
    surplus_tokens: int
    """Tokens beyond those of its next block."""
    made_s: float
    """Audio that was made, with the audio that is kept."""
    chars: float | None
    """Characters that take as long at speed 1 as its text at its own; None while the text arrives."""

    def deadline_s(self, now_s: float) -> float:
        """Return when the listener runs out of audio, including the audio that is being rendered."""
        coming_s = self.in_flight_s + self.held_s
        if not self.has_audio and coming_s:
            return max(self.plays_until_s, now_s, self.held_until_s) + coming_s
        return self.plays_until_s + coming_s


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """All requests at one moment, by their numbers."""

    now_s: float
    streams: Mapping[int, StreamSnapshot]
    waiting: tuple[int, ...]
    """Requests that wait for a slot."""
    running: tuple[int, ...]
    """The request in each slot that is taken."""
    slots: int

    @property
    def has_free_slot(self) -> bool:
        """True if a request could be given a slot."""
        return len(self.running) < self.slots

    @property
    def is_concurrent(self) -> bool:
        """True if several requests are served."""
        return sum(not stream.is_parked for stream in self.streams.values()) > 1

    def deadline_s(self, request: int) -> float:
        """Return when the listener of a request runs out of audio."""
        return self.streams[request].deadline_s(self.now_s)

    @property
    def in_flight_s(self) -> float:
        """Audio that is being rendered."""
        return sum(stream.in_flight_s for stream in self.streams.values())
