"""Chunk gap statistics: every gap of a short request, a uniform sample of a long one."""

from __future__ import annotations

import pytest

from nightingale.engine.session import SAMPLE_SIZE, ChunkGapStats, Timing
from nightingale.types import Metrics


def test_every_gap_of_a_short_request_is_kept_in_order() -> None:
    gaps = ChunkGapStats()
    for gap_ms in (3.0, 1.0, 2.0):
        gaps.add(gap_ms)
    assert (gaps.sample_ms, gaps.count, gaps.sum_ms, gaps.longest_ms) == ([3.0, 1.0, 2.0], 3, 6.0, 3.0)


def test_a_uniform_sample_of_a_long_request_is_kept_and_all_gaps_are_counted() -> None:
    gaps = ChunkGapStats()
    for number in range(100_000):
        gaps.add(float(number))
    assert (gaps.count, gaps.longest_ms, len(gaps.sample_ms)) == (100_000, 99_999.0, SAMPLE_SIZE)
    assert gaps.sum_ms == sum(range(100_000))
    assert sum(gaps.sample_ms) / SAMPLE_SIZE == pytest.approx(50_000, rel=0.1)
    assert sum(gap < 25_000 for gap in gaps.sample_ms) == pytest.approx(SAMPLE_SIZE / 4, rel=0.2)
    metrics = Metrics(ttfa_ms=0, total_ms=0, audio_seconds=0, tokens=0, chunk_gaps_ms=tuple(gaps.sample_ms))
    assert metrics.chunk_gap_p95_ms == pytest.approx(95_000, abs=3_000)


def test_metrics_report_the_gaps_of_a_session() -> None:
    timing = Timing()
    for _ in range(4):
        timing.samples += 480
        timing.delivered()
    metrics = timing.metrics()
    assert metrics.chunk_gaps == len(metrics.chunk_gaps_ms) == 3
    assert metrics.chunk_gap_longest_ms == max(metrics.chunk_gaps_ms) == metrics.chunk_gap_p95_ms
    assert metrics.chunk_gap_mean_ms == pytest.approx(sum(metrics.chunk_gaps_ms) / 3)
    empty = Timing().metrics()
    assert (empty.chunk_gaps, empty.chunk_gap_p95_ms, empty.chunk_gap_mean_ms) == (0, 0.0, 0.0)
