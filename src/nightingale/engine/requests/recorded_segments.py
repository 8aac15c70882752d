"""The speech tokens of a recording that is converted, as segments for the worker, and where they are split.

Where the engine renders in blocks, the tokens are one utterance, fed in parts. Where it renders whole segments,
a long recording is split at its quietest places, because the flow's time grows with the square of the length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nightingale.backends.base import Recorded
from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS
from nightingale.engine.requests.segments import TextSegment
from nightingale.types import Samples

TOKEN_SAMPLES: Final = ANALYSIS_RATE_HZ // CLOCKS.token_rate_hz
"""Samples of a token, at the rate that the speech tokenizer reads."""
PART_TOKENS: Final = 250
"""Tokens that are fed at once (10 s), so that a listener who stalls stops the work."""
WHOLE_TOKENS: Final = 750
"""The longest utterance of a recording that is known as a whole (30 s). A shorter one is rendered as upstream does."""
LIVE_TOKENS: Final = 200
"""The longest utterance of a recording that still arrives (8 s)."""
LEAST_TOKENS: Final = 25
"""The shortest utterance that is split off (1 s)."""
PAUSE_TOKENS: Final = 5
"""Quiet tokens in a row that are a pause (200 ms)."""
QUIET_SHARE: Final = 0.05
"""The level of a quiet token, relative to the loudest one so far: -26 dB."""

Levels = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSegment(TextSegment):
    """Speech tokens of a recording. They continue the utterance before them, unless that has ended."""

    pause_samples: int = 0
    speech_tokens: list[int] = field(default_factory=list)
    recorded: Recorded | None = None
    """The mel of these tokens, for models that render a recording with it."""
    ends_utterance: bool
    live: bool = False
    """True if the recording still arrives: then blocks stay small, so that the delay does not grow."""

    @property
    def is_pause(self) -> bool:
        return False


def token_levels(samples_16k: Samples, tokens: int) -> Levels:
    """Return the level (root mean square) of each token's samples."""
    padded = np.zeros(tokens * TOKEN_SAMPLES, np.float32)
    known = samples_16k[: len(padded)]
    padded[: len(known)] = known
    levels: Levels = np.sqrt(np.square(padded).reshape(tokens, TOKEN_SAMPLES).mean(axis=1))
    return levels


def whole_segments(
    tokens: Sequence[int], levels: Levels, *, in_blocks: bool, recorded: Recorded | None = None
) -> Iterator[RecordedSegment]:
    """Yield the segments of a recording that is known as a whole. recorded: the mel of all its tokens."""
    if in_blocks:
        parts = [list(tokens[start : start + PART_TOKENS]) for start in range(0, len(tokens), PART_TOKENS)]
    else:
        parts = list(PauseSplitter(WHOLE_TOKENS, at_every_pause=False).push(tokens, levels, final=True))
    start = 0
    for part in parts:
        end = start + len(part)
        yield RecordedSegment(
            speech_tokens=part,
            recorded=None if recorded is None else recorded.part(start, end),
            ends_utterance=not in_blocks or end == len(tokens),
        )
        start = end


class PauseSplitter:
    """Split the tokens of a recording into utterances of at most `most_tokens`, at its quietest places."""

    def __init__(self, most_tokens: int, *, at_every_pause: bool) -> None:
        """at_every_pause: end an utterance as soon as a pause is known, so that its audio comes sooner."""
        self._most = most_tokens
        self._at_every_pause = at_every_pause
        self._tokens: list[int] = []
        self._levels: list[float] = []
        self._loudest = 0.0

    def push(self, tokens: Sequence[int], levels: Levels, *, final: bool) -> Iterator[list[int]]:
        """Add tokens and yield the utterances that are complete."""
        for token, level in zip(tokens, levels.tolist(), strict=True):
            self._tokens.append(token)
            self._levels.append(level)
            self._loudest = max(self._loudest, level)
            if len(self._tokens) > self._most:
                yield self._split_off(self._quietest())
            elif self._at_every_pause and self._is_at_pause():
                yield self._split_off(len(self._tokens))
        if final and self._tokens:
            yield self._split_off(len(self._tokens))

    def _is_at_pause(self) -> bool:
        recent = self._levels[-PAUSE_TOKENS:]
        return len(self._tokens) >= LEAST_TOKENS and max(recent) < QUIET_SHARE * self._loudest

    def _quietest(self) -> int:
        """Return the place of the quietest three tokens in the later half; the last such place if several are."""
        levels = np.convolve(self._levels, np.ones(3), mode="same")
        first = max(LEAST_TOKENS, self._most // 2)
        return self._most - int(np.argmin(levels[first : self._most][::-1]))

    def _split_off(self, count: int) -> list[int]:
        utterance = self._tokens[:count]
        self._tokens = self._tokens[count:]
        del self._levels[:count]
        return utterance
