"""Making of an audiobook: speak every passage through the cache, measure, then write files with one gain.

The two steps read the audio passage by passage, so memory does not grow with the book.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Final

import numpy as np

from nightingale.audio.encoders.streaming import Encoder
from nightingale.book.acx import (
    LevelMeter,
    Levels,
    acx_problems,
    book_gain_db,
    joined_levels,
    limit_peaks,
)
from nightingale.book.book_files import ChapterMark, book_file, feed_silence
from nightingale.book.document import Book
from nightingale.book.narration import Narrator
from nightingale.book.passages import Passage, passages_of
from nightingale.book.read_along import write_read_along
from nightingale.book.timeline import SpokenChapter, TimedPassage, with_starts
from nightingale.engine.captions import format_srt, spread_words
from nightingale.errors import OutputError, TextError
from nightingale.files import remove_unfinished, whole_file

MAX_TITLE_BYTES: Final = 120
READ_ALONG: Final = ".read-along.epub"
"""The end of the name of a read-along EPUB. A name with .epub alone may be the book itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookProgress:
    """The progress of the narration."""

    chars: int
    """Characters of the book."""
    done_chars: int
    new_chars: int
    """Those of them that were spoken in this run."""
    audio_seconds: float
    """Audio of this run."""
    chapter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BookOutput:
    """The files to write."""

    path: Path
    """An M4B file, or with `chapter_format` the folder of the chapters."""
    chapter_format: str | None = None
    """The format of separate chapters, such as mp3; None for one file."""
    rate_hz: int
    bit_rate: int | None = None
    srt: bool = False
    """Write captions beside each audio file."""
    read_along: bool = False
    """Write an EPUB that highlights the sentence being spoken."""
    level: bool = True
    """Apply the gain that ACX's levels need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedBook:
    """The files that were written, and their levels."""

    files: tuple[Path, ...]
    seconds: float
    gain_db: float
    levels: Levels
    """Levels of what was written."""
    problems: tuple[str, ...]
    """Levels that ACX would refuse, of the whole book and of single chapters."""


def plan_passages(
    book: Book, *, language: str | None = None, dialogue_voice: str | None = None
) -> list[list[Passage]]:
    """Return the passages of each chapter. Raise TextError for a pause or a voice that is not spelled right."""
    return [passages_of(one, language=language, dialogue_voice=dialogue_voice) for one in book.chapters]


def narrate(
    book: Book,
    plans: Sequence[Sequence[Passage]],
    narrator: Narrator,
    *,
    on_progress: Callable[[BookProgress], None] | None = None,
) -> list[SpokenChapter]:
    """Speak what is not in the cache yet, and return the chapters that have audio.

    Args:
        book: The book.
        plans: The passages of its chapters.
        narrator: The engine with its voices.
        on_progress: Called after each passage.

    Raises:
        TextError: Nothing of the book can be spoken.
    """
    chars = sum(len(passage.text) for plan in plans for passage in plan)
    chapters: list[SpokenChapter] = []
    done = new = 0
    audio_seconds = 0.0
    for source, plan in zip(book.chapters, plans, strict=True):
        chapter = SpokenChapter.empty(len(chapters) + 1, source.title, narrator.rate_hz)
        for passage in plan:
            result = narrator.speak(passage)
            sentence = result.sentence
            if sentence is None:
                chapter.failed.append((passage, result.error))
            else:
                chapter.meter.add(sentence.samples)
                chapter.add(passage, result.key, len(sentence.samples), sentence.retries, sentence.warnings)
            done += len(passage.text)
            if result.is_new:
                new += len(passage.text)
                audio_seconds += len(sentence.samples) / narrator.rate_hz if sentence is not None else 0.0
            if on_progress is not None:
                on_progress(
                    BookProgress(
                        chars=chars,
                        done_chars=done,
                        new_chars=new,
                        audio_seconds=audio_seconds,
                        chapter=source.title,
                    )
                )
        chapter.finish()
        chapters.append(chapter)
    if not any(chapter.passages for chapter in chapters):
        reasons = [reason for chapter in chapters for _, reason in chapter.failed]
        raise TextError(
            "nothing of the book can be spoken", got=next(iter(reasons), "no text"), fix="Try another model."
        )
    return chapters


def write_book(
    book: Book, chapters: Sequence[SpokenChapter], narrator: Narrator, output: BookOutput
) -> FinishedBook:
    """Write the audio files, and captions if they are asked for."""
    spoken = [chapter for chapter in chapters if chapter.passages]
    gain_db = book_gain_db(joined_levels(chapter.meter for chapter in spoken)) if output.level else 0.0
    writer = _Writer(book, narrator, output, gain_db)
    files = writer.write_chapters(spoken) if output.chapter_format else writer.write_whole(spoken)
    levels = joined_levels(writer.meters.values())
    problems = acx_problems(levels)
    for number, meter in writer.meters.items():
        problems += [f"chapter {number}: {problem}" for problem in acx_problems(meter.levels())]
    if output.read_along:
        files.append(writer.write_read_along(spoken))
    return FinishedBook(
        files=tuple(files),
        seconds=sum(chapter.samples for chapter in spoken) / narrator.rate_hz,
        gain_db=gain_db,
        levels=levels,
        problems=tuple(problems),
    )


class _Writer:
    """Writes the files of one book."""

    def __init__(self, book: Book, narrator: Narrator, output: BookOutput, gain_db: float) -> None:
        self._book, self._narrator, self._output = book, narrator, output
        self._gain = np.float32(10 ** (gain_db / 20))
        self._zeros = np.zeros(narrator.rate_hz, np.float32)
        self.meters: dict[int, LevelMeter] = {}
        """Levels of the chapters that were written, by number."""
        common = {"album": book.title, "artist": book.author, "album_artist": book.author, "date": book.date}
        common |= {"genre": "Audiobook", "publisher": book.publisher, "language": book.language}
        self._tags = {name: value for name, value in common.items() if value}

    def write_whole(self, chapters: Sequence[SpokenChapter]) -> list[Path]:
        """Write one file with chapter marks."""
        path, rate_hz = self._output.path, self._narrator.rate_hz
        remove_unfinished(path.parent, escape(path.name))
        marks = [
            ChapterMark(
                title=chapter.title,
                start_ms=round(1000 * start / rate_hz),
                end_ms=round(1000 * (start + chapter.samples) / rate_hz),
            )
            for start, chapter in with_starts(chapters)
        ]
        # media_type 2 is what iTunes calls an audiobook.
        tags = {**self._tags, "title": self._book.title, "media_type": "2"}
        if self._book.description:
            tags["description"] = self._book.description
        with self._open(path, tags, marks) as encoder:
            for chapter in chapters:
                self._feed(encoder, chapter)
        timed = (
            (start + one.start, one) for start, chapter in with_starts(chapters) for one in chapter.passages
        )
        return [path, *self._captions(path, timed)]

    def write_chapters(self, chapters: Sequence[SpokenChapter]) -> list[Path]:
        """Write a file for each chapter."""
        folder = self._output.path
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            got = f"{folder}: {error.strerror or error}"
            raise OutputError("the folder of the chapters cannot be made", got=got) from error
        remove_unfinished(folder, f"[0-9]*.{self._output.chapter_format}")
        digits = max(2, len(str(len(chapters))))
        files: list[Path] = []
        for number, chapter in enumerate(chapters, start=1):
            name = f"{number:0{digits}} {file_title(chapter.title)}".strip()
            path = folder / f"{name}.{self._output.chapter_format}"
            tags = {**self._tags, "title": chapter.title, "track": f"{number}/{len(chapters)}"}
            with self._open(path, tags, ()) as encoder:
                self._feed(encoder, chapter)
            timed = ((one.start, one) for one in chapter.passages)
            files += [path, *self._captions(path, timed)]
        return files

    def write_read_along(self, chapters: Sequence[SpokenChapter]) -> Path:
        """Write the EPUB beside the book."""
        path = self._output.path.with_name(f"{self._output.path.stem}{READ_ALONG}")

        def write_audio(target: Path, chapter: SpokenChapter) -> None:
            with self._open(target, {**self._tags, "title": chapter.title}, ()) as encoder:
                self._feed(encoder, chapter)

        write_read_along(path, self._book, chapters, write_audio)
        return path

    def _open(
        self, path: Path, tags: dict[str, str], marks: Sequence[ChapterMark]
    ) -> AbstractContextManager[Encoder]:
        output = self._output
        return book_file(
            path,
            rate_hz=output.rate_hz,
            bit_rate=output.bit_rate,
            tags=tags,
            marks=marks,
            cover=self._book.cover,
        )

    def _feed(self, encoder: Encoder, chapter: SpokenChapter) -> None:
        meter = self.meters[chapter.number] = LevelMeter(chapter.rate_hz)
        feed_silence(encoder, chapter.head, self._zeros)
        for one in chapter.passages:
            samples = self._narrator.read(one.key).samples * self._gain
            samples = limit_peaks(samples) if self._output.level else samples
            meter.add(samples)
            encoder.feed(samples)
            feed_silence(encoder, one.pause, self._zeros)
        feed_silence(encoder, chapter.tail, self._zeros)
        meter.add_silence(chapter.samples - meter.samples)

    def _captions(self, audio: Path, passages: Iterator[tuple[int, TimedPassage]]) -> list[Path]:
        if not self._output.srt:
            return []
        path, rate_hz = audio.with_suffix(".srt"), self._narrator.rate_hz
        # Only the times of passages are known, so their words share them by length.
        words = (
            word
            for start, timed in passages
            for word in spread_words(timed.passage.text, start / rate_hz, (start + timed.samples) / rate_hz)
        )
        with whole_file(path) as file:
            file.write(format_srt(words).encode())
        return [path]


def file_title(title: str) -> str:
    """Return a chapter's title without characters that a file name cannot have everywhere."""
    kept = " ".join(re.sub(r"[^\w\s,.'()&+-]", " ", title).split())
    # In bytes, since a name of 255 bytes is the limit of most file systems.
    return kept.encode()[:MAX_TITLE_BYTES].decode(errors="ignore").strip(" .")
