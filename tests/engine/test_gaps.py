"""Gaps between chunks: all of a short request, a fair sample of a long one, in bounded memory."""

from __future__ import annotations

import pytest

from nightingale.engine.rendering.gaps import KEPT, Gaps
from nightingale.engine.session import Timing
from nightingale.types import Metrics


def test_of_a_short_request_every_gap_is_kept_in_order() -> None:
    gaps = Gaps()
    for gap_ms in (3.0, 1.0, 2.0):
        gaps.add(gap_ms)
    assert (gaps.kept_ms, gaps.count, gaps.sum_ms, gaps.longest_ms) == ([3.0, 1.0, 2.0], 3, 6.0, 3.0)


def test_of_a_book_a_fair_sample_is_kept_and_nothing_is_miscounted() -> None:
    gaps = Gaps()
    for number in range(100_000):
        gaps.add(float(number))
    assert (gaps.count, gaps.longest_ms, len(gaps.kept_ms)) == (100_000, 99_999.0, KEPT)
    assert gaps.sum_ms == sum(range(100_000))
    assert sum(gaps.kept_ms) / KEPT == pytest.approx(50_000, rel=0.1)
    assert sum(gap < 25_000 for gap in gaps.kept_ms) == pytest.approx(KEPT / 4, rel=0.2)
    told = Metrics(ttfa_ms=0, total_ms=0, audio_seconds=0, tokens=0, chunk_gaps_ms=tuple(gaps.kept_ms))
    assert told.chunk_gap_p95_ms == pytest.approx(95_000, abs=3_000)


def test_what_is_told_of_them() -> None:
    timing = Timing()
    for _ in range(4):
        timing.heard(480)
    told = timing.metrics()
    assert told.chunk_gaps == len(told.chunk_gaps_ms) == 3
    assert told.chunk_gap_longest_ms == max(told.chunk_gaps_ms) == told.chunk_gap_p95_ms
    assert told.chunk_gap_mean_ms == pytest.approx(sum(told.chunk_gaps_ms) / 3)
    nothing = Timing().metrics()
    assert (nothing.chunk_gaps, nothing.chunk_gap_p95_ms, nothing.chunk_gap_mean_ms) == (0, 0.0, 0.0)
