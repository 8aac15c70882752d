"""Timestamps of the segments of a text, computed from the chunks of audio as they pass.

The engine knows the first and last sample of each segment (a sentence, or a part of a long one). It does not
know when a word within a segment is said, so word timestamps are refused.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from nightingale.errors import ConfigError
from nightingale.types import AudioChunk, SegmentStart

Timestamps = Literal["none", "segment", "word"]


class TimedSegment(BaseModel):
    """A segment of the text and when it is said."""

    text: str
    """The text as spoken: numbers and symbols are written out."""
    start: float
    end: float
    """Both are seconds from the beginning, without the pause after the segment."""


class SegmentTimer:
    """Computes the segments of one utterance; none if it is not enabled."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._samples, self._rate_hz = 0, 1
        self._current: tuple[SegmentStart, int] | None = None

    def add(self, chunk: AudioChunk) -> list[TimedSegment]:
        """Return the segments that ended before this chunk."""
        self._rate_hz = chunk.sample_rate_hz
        ended = self.finish() if chunk.begins is not None else []
        if self._enabled and chunk.begins is not None and chunk.begins.text:
            self._current = (chunk.begins, self._samples)
        self._samples += len(chunk.samples)
        return ended

    def finish(self) -> list[TimedSegment]:
        """Return the segment that ends with the last chunk."""
        if self._current is None:
            return []
        (segment, start), self._current = self._current, None
        end = max(start, self._samples - segment.pause_samples)
        text = " ".join(segment.text.split())
        return [TimedSegment(text=text, start=self._seconds(start), end=self._seconds(end))]

    def _seconds(self, samples: int) -> float:
        return round(samples / self._rate_hz, 3)


def check_timestamps(timestamps: Timestamps | None) -> None:
    if timestamps == "word":
        raise ConfigError(
            "word timestamps are not available",
            got='timestamps="word"',
            allowed='"segment", which times sentences and parts of long ones, or "none"',
            param="timestamps",
        )


def format_srt(segments: list[TimedSegment]) -> str:
    """Format the segments as SubRip subtitles."""
    return "\n".join(
        f"{number}\n{_clock(segment.start)} --> {_clock(segment.end)}\n{segment.text}\n"
        for number, segment in enumerate(segments, start=1)
    )


def _clock(seconds: float) -> str:
    minutes, ms = divmod(round(1000 * seconds), 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{ms // 1000:02d},{ms % 1000:03d}"
