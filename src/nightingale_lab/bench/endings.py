"""Runaways, cut-offs and holes of an utterance, found from its samples and the length of its text.

The expected length of speech is a linear function of the text, fitted to 650 clips of 137 voices (Kokoro at
speaking rates 0.92 to 1.1, and hibari), with the constant raised for one-word texts. Those clips lay between
0.66 and 1.56 of it, one whispering voice up to 1.83; the bounds were set around them. On 450 other Kokoro
clips (0.67 to 1.77) none was flagged. The bounds catch a lost half of a sentence or a doubled one, not a lost
word. For that, the end of a recognizer's transcript counts too, where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightingale.text.english import normalize
from nightingale.types import Samples
from nightingale_lab.bench.wer import Comparison

FRAME_SECONDS = 0.01
BASE_SECONDS, LETTER_SECONDS, PAUSE_SECONDS = 0.05, 0.062, 0.17
RUNAWAY_RATIO, RUNAWAY_SLACK_SECONDS = 1.8, 0.8
CUT_RATIO, CUT_SLACK_SECONDS = 0.65, 0.2
"""The slack is for one-word texts, whose length varies most."""
LONGEST_PAUSE_SECONDS = 1.6
"""The longest between two sentences in those clips was 1.5 s; the 99th percentile 1.0 s."""
LONGEST_TRAIL_SECONDS = 1.5
SPEECH_DB = -40.0
"""The level of speech, relative to the clip's loud frames (95th percentile)."""
ABRUPT_DB = -18.0
"""Speech fades before it ends; last 30 ms louder than this were cut."""
SILENT_RMS = 1e-4
EXTRA_WORDS = 2
"""Fewer added words at the end are usually invented by the recognizer ("Thank you")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Durations and levels of one clip."""

    seconds: float
    speech_seconds: float
    """From the first to the last frame of speech."""
    expected_seconds: float
    longest_pause_seconds: float
    """Between the first and the last frame of speech."""
    trailing_seconds: float
    """Silence after the last frame of speech."""
    final_db: float
    """Level of the last 30 ms, relative to the clip's loud frames."""
    silent: bool


def expected_seconds(text: str) -> float:
    """Return how long a person needs at an ordinary rate. Numerals count as the words they are read as."""
    letters = sum(map(str.isalpha, normalize(text)))
    pauses = len(re.findall(r"[.!?;:,—–…]+(?=\s|$)", text))
    return BASE_SECONDS + LETTER_SECONDS * letters + PAUSE_SECONDS * pauses


def levels_db(samples: Samples, rate_hz: int) -> NDArray[np.float64]:
    """Return the level of each 10 ms, relative to the 95th percentile of the clip."""
    size = round(FRAME_SECONDS * rate_hz)
    frames = samples[: len(samples) // size * size].reshape(-1, size).astype(np.float64)
    level = 10.0 * np.log10(np.mean(frames**2, axis=1) + 1e-12)
    return np.asarray(level - np.percentile(level, 95)) if len(level) else np.zeros(0)


def longest_run(flags: NDArray[np.bool_]) -> int:
    """Return the most consecutive true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0


def shape_of(samples: Samples, rate_hz: int, text: str) -> Shape:
    level = levels_db(samples, rate_hz)
    seconds = len(samples) / rate_hz
    silent = not len(level) or float(np.sqrt(np.mean(samples.astype(np.float64) ** 2))) < SILENT_RMS
    speech = np.flatnonzero(level > SPEECH_DB) if not silent else np.zeros(0, dtype=np.int64)
    first, last = (int(speech[0]), int(speech[-1]) + 1) if len(speech) else (0, 0)
    return Shape(
        seconds=seconds,
        speech_seconds=(last - first) * FRAME_SECONDS,
        expected_seconds=expected_seconds(text),
        longest_pause_seconds=longest_run(level[first:last] <= SPEECH_DB) * FRAME_SECONDS,
        trailing_seconds=max(0.0, seconds - last * FRAME_SECONDS),
        final_db=float(level[-3:].max()) if len(level) else -120.0,
        silent=silent,
    )


def defects(shape: Shape, transcripts: Sequence[Comparison] = ()) -> tuple[str, ...]:
    """Return the names of the defects: silent, runaway, cut-off, abrupt end, long pause, long trail.

    One recognizer proves nothing about an ending: lost or added words count only if all of them agree.
    """
    if shape.silent:
        return ("silent",)
    longest = RUNAWAY_RATIO * shape.expected_seconds + RUNAWAY_SLACK_SECONDS
    shortest = CUT_RATIO * shape.expected_seconds - CUT_SLACK_SECONDS
    checks = {
        "runaway": shape.speech_seconds > longest
        or (bool(transcripts) and all(result.extra_tail >= EXTRA_WORDS for result in transcripts)),
        "cut-off": shape.speech_seconds < shortest
        or (bool(transcripts) and all(result.lost_tail >= 1 for result in transcripts)),
        "abrupt end": shape.final_db > ABRUPT_DB,
        "long pause": shape.longest_pause_seconds > LONGEST_PAUSE_SECONDS,
        "long trail": shape.trailing_seconds > LONGEST_TRAIL_SECONDS,
    }
    return tuple(name for name, found in checks.items() if found)
