"""The finished narration as a timeline: chapters, the passages in them, and the sample that each begins with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nightingale.book.acx import LevelMeter
from nightingale.book.passages import Passage

HEAD_MS: Final = 750
"""Silence before a chapter; ACX allows 0.5 to 1 s."""
TAIL_MS: Final = 1500
"""Silence after a chapter, besides the pause of its last paragraph; ACX allows 1 to 5 s."""


class TimedPassage(NamedTuple):
    """A passage and when it is spoken."""

    passage: Passage
    key: str
    """Its key in the cache."""
    start: int
    """Its first sample, from the beginning of the chapter."""
    samples: int
    pause: int
    """Samples of silence after it."""
    retries: int
    warnings: tuple[str, ...]


@dataclass(slots=True)
class SpokenChapter:
    """A chapter with audio."""

    number: int
    """From 1."""
    title: str
    rate_hz: int
    meter: LevelMeter
    passages: list[TimedPassage] = field(default_factory=list)
    failed: list[tuple[Passage, str]] = field(default_factory=list)
    """Passages without audio, and why."""
    samples: int = 0
    """Its whole length, with the silence before and after it."""

    @classmethod
    def empty(cls, number: int, title: str, rate_hz: int) -> SpokenChapter:
        """Return a chapter that has only the silence before its first passage."""
        chapter = cls(number, title, rate_hz, LevelMeter(rate_hz))
        chapter._wait(HEAD_MS)
        return chapter

    def add(self, passage: Passage, key: str, samples: int, retries: int, warnings: tuple[str, ...]) -> None:
        """Add a passage, whose audio the meter has measured, and the pause after it."""
        start = self.samples
        self.samples += samples
        pause = self._wait(passage.pause_ms)
        self.passages.append(TimedPassage(passage, key, start, samples, pause, retries, warnings))

    def finish(self) -> None:
        """Add the silence after the last passage."""
        self._wait(TAIL_MS)

    @property
    def head(self) -> int:
        """Samples of silence before the first passage."""
        return HEAD_MS * self.rate_hz // 1000

    @property
    def tail(self) -> int:
        """Samples of silence after the last pause."""
        return TAIL_MS * self.rate_hz // 1000

    def _wait(self, pause_ms: int) -> int:
        samples = pause_ms * self.rate_hz // 1000
        self.samples += samples
        self.meter.add_silence(samples)
        return samples


def with_starts(chapters: Sequence[SpokenChapter]) -> Iterator[tuple[int, SpokenChapter]]:
    """Yield each chapter with its first sample in the book."""
    start = 0
    for chapter in chapters:
        yield start, chapter
        start += chapter.samples
