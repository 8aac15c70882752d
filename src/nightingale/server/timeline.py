"""When each piece of the text is said, from the chunks of sound as they pass.

The engine speaks a text piece by piece (a sentence, or a part of a long one) and knows the first and the last
sample of each. It does not know when a word within a piece is said, and nobody here guesses.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from nightingale.errors import ConfigError
from nightingale.types import AudioChunk, SegmentStart

Timestamps = Literal["none", "segment", "word"]


class Segment(BaseModel):
    """A piece of the text, and when it is said."""

    text: str
    """As it is spoken: numbers and signs are written out."""
    start: float
    end: float
    """In seconds from the beginning; the pause after it is not counted."""


class Timeline:
    """Of one utterance."""

    def __init__(self) -> None:
        self._samples, self._rate_hz = 0, 1
        self._open: tuple[SegmentStart, int] | None = None

    def heard(self, chunk: AudioChunk) -> list[Segment]:
        """Segments that have ended before this chunk."""
        self._rate_hz = chunk.sample_rate_hz
        ended = self.finish() if chunk.begins is not None else []
        if chunk.begins is not None and chunk.begins.text:
            self._open = (chunk.begins, self._samples)
        self._samples += len(chunk.samples)
        return ended

    def finish(self) -> list[Segment]:
        """The one that has ended with the last chunk."""
        if self._open is None:
            return []
        (begun, start), self._open = self._open, None
        end = max(start, self._samples - begun.pause_samples)
        at = (round(sample / self._rate_hz, 3) for sample in (start, end))
        return [Segment(text=" ".join(begun.text.split()), start=next(at), end=next(at))]


def check_timestamps(asked: Timestamps | None) -> None:
    if asked == "word":
        raise ConfigError(
            "word timestamps are not available",
            got='timestamps="word"',
            allowed='"segment", which times sentences and parts of long ones, or "none"',
            fix='Ask for "segment", or leave the field out.',
            param="timestamps",
        )


def srt(segments: list[Segment]) -> str:
    """Subtitles, as players read them."""
    blocks = [
        f"{number}\n{_clock(segment.start)} --> {_clock(segment.end)}\n{segment.text}\n"
        for number, segment in enumerate(segments, start=1)
    ]
    return "\n".join(blocks)


def _clock(seconds: float) -> str:
    whole_ms = round(1000 * seconds)
    minutes, ms = divmod(whole_ms, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{ms // 1000:02d},{ms % 1000:03d}"
