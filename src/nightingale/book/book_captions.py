"""Captions of a book: each passage as one SubRip cue, or several if it is long.

Only the times of passages are known here, so the parts of a passage share its time by their length.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

from nightingale.book.timeline import TimedPassage

LINE_CHARS: Final = 42
CUE_LINES: Final = 2


def srt_cues(passages: Iterable[tuple[int, TimedPassage]], rate_hz: int) -> Iterator[str]:
    """Yield cues for passages that begin at the given samples of a file."""
    number = 0
    for start, passage in passages:
        lines = textwrap.wrap(passage.passage.text, LINE_CHARS) or [""]
        cues = [lines[at : at + CUE_LINES] for at in range(0, len(lines), CUE_LINES)]
        whole = sum(len(line) for line in lines) or 1
        done = 0
        for cue in cues:
            begin = start + passage.samples * done // whole
            done += sum(map(len, cue))
            end = start + passage.samples * done // whole
            number += 1
            yield f"{number}\n{_clock(begin, rate_hz)} --> {_clock(end, rate_hz)}\n" + "\n".join(cue) + "\n\n"


def _clock(sample: int, rate_hz: int) -> str:
    minutes, ms = divmod(round(1000 * sample / rate_hz), 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{ms // 1000:02d},{ms % 1000:03d}"
