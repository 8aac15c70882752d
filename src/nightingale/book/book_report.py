"""The report of a book: one line of JSON for each passage, spoken, sampled again or failed; and a summary."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nightingale.book.document import Book
from nightingale.book.making import FinishedBook
from nightingale.book.timeline import SpokenChapter, with_starts
from nightingale.files import whole_file

MAX_SHOWN_CHARS = 40
SPOKEN, DRAWN_AGAIN, FAILED = "spoken", "drawn again", "failed"


def write_report(path: Path, chapters: Sequence[SpokenChapter]) -> None:
    """Write the passages in the order of the book, and then those that failed."""
    with whole_file(path) as file:
        for start, chapter in with_starts([one for one in chapters if one.passages]):
            for timed in chapter.passages:
                line: dict[str, Any] = {
                    "chapter": chapter.number,
                    "status": DRAWN_AGAIN if timed.retries else SPOKEN,
                    "start_s": round((start + timed.start) / chapter.rate_hz, 3),
                    "chapter_start_s": round(timed.start / chapter.rate_hz, 3),
                    "seconds": round(timed.samples / chapter.rate_hz, 3),
                    "text": timed.passage.text,
                    "voice": timed.passage.voice or "default",
                    "retries": timed.retries,
                    "file": f"{timed.key}.flac",
                }
                if timed.warnings:
                    line["warnings"] = list(timed.warnings)
                file.write(_encoded(line))
        for chapter in chapters:
            for passage, error in chapter.failed:
                voice = passage.voice or "default"
                line = {"chapter": chapter.number, "status": FAILED, "text": passage.text, "voice": voice}
                file.write(_encoded({**line, "error": error}))


def count_passages(chapters: Sequence[SpokenChapter]) -> dict[str, int]:
    """Return how many passages were spoken, sampled again, and failed."""
    timed = [one for chapter in chapters for one in chapter.passages]
    drawn_again = sum(1 for one in timed if one.retries)
    return {
        SPOKEN: len(timed) - drawn_again,
        DRAWN_AGAIN: drawn_again,
        FAILED: sum(len(chapter.failed) for chapter in chapters),
    }


def warnings_of(chapters: Sequence[SpokenChapter]) -> list[str]:
    """Return a line for each sentence of which a part was not spoken."""
    return [
        f"chapter {chapter.number}, {timed.passage.text[:MAX_SHOWN_CHARS]!r}: {'; '.join(timed.warnings)}"
        for chapter in chapters
        for timed in chapter.passages
        if timed.warnings
    ]


def summary_of(book: Book, chapters: Sequence[SpokenChapter], done: FinishedBook) -> dict[str, Any]:
    """Return what was written, as a value of JSON."""
    levels = {"rms": done.levels.rms_db, "peak": done.levels.peak_db, "noise_floor": done.levels.noise_db}
    return {
        "title": book.title,
        "author": book.author,
        "files": [str(path) for path in done.files],
        "audio_seconds": round(done.seconds, 3),
        "chapters": [
            {"title": chapter.title, "start_s": round(start / chapter.rate_hz, 3)}
            for start, chapter in with_starts([one for one in chapters if one.passages])
        ],
        "sentences": count_passages(chapters),
        "warnings": warnings_of(chapters),
        "gain_db": round(done.gain_db, 2),
        "levels_db": {name: round(db, 2) if math.isfinite(db) else None for name, db in levels.items()},
        "acx_problems": list(done.problems),
    }


def _encoded(line: dict[str, Any]) -> bytes:
    return (json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "replace")
