"""Can one hear where the stream was cut, and is it the whole?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nightingale_lab.bench.seams import seam_report
from nightingale_lab.bench.shifts import shift_report
from nightingale_lab.bench.verify.check import Check
from nightingale_lab.bench.verify.subject import BothWays, Spoken, Subject
from nightingale.types import Samples

GROUP = "streaming"
SEED = 21
ALLOWED_SHARE = 0.02
"""Of boundaries put into untouched speech 3 in 8,590 are called seams (docs/streaming.md); one in fifty is no
chance any more, unless there are so few that one is more."""
SPECTRAL_LIMIT_DB = 6.0
"""Mean difference of the two log spectra. Wren in blocks is 2 dB from wren in one piece; two sentences are 19
from each other."""
BANDS = 40


def seams(clips: Sequence[Spoken]) -> list[Check]:
    """Clicks and holes at the boundaries of what the listener got."""
    reports = [seam_report(clip.samples, clip.boundaries, clip.rate_hz) for clip in clips if clip.boundaries]
    boundaries = sum(len(report.boundaries) for report in reports)
    found = sum(len(report.seams) for report in reports)
    often = sum(not report.clean and not report.seams for report in reports)
    return [
        Check(
            group=GROUP,
            name="audible chunk boundaries",
            value=float(found),
            high=float(max(1, int(ALLOWED_SHARE * boundaries))) if boundaries else 0.0,
            detail=f"of {boundaries} in {len(clips)} clips",
        ),
        Check(group=GROUP, name="clips with a fault at every boundary", value=float(often), high=0),
    ]


def stream_is_whole(subject: Subject, texts: Sequence[str]) -> list[Check]:
    """The stream joined must be what `say` gives; blocks must lie where they lie in the whole."""
    text = texts[0]
    streamed, said = subject.say(text, seed=SEED), subject.whole(text, seed=SEED)
    same = len(streamed.samples) == len(said) and bool(np.array_equal(streamed.samples, said))
    pairs = [subject.both_ways(text, seed=SEED + i) for i, text in enumerate(texts)]
    return [
        Check(group=GROUP, name="joined stream differs from say", value=float(not same), high=0),
        *blocks_lie_in_place(pairs),
    ]


def blocks_lie_in_place(pairs: Sequence[BothWays]) -> list[Check]:
    reports = [shift_report(pair.stream, pair.boundaries, pair.at_once) for pair in pairs]
    apart = [log_spectral_distance_db(pair.stream, pair.whole) for pair in pairs]
    return [
        Check(
            group=GROUP,
            name="samples lost or repeated in blocks",
            value=float(max((abs(report.missing) for report in reports), default=0)),
            high=0,
            unit="samples",
        ),
        Check(
            group=GROUP,
            name="blocks out of place",
            value=float(sum(len(report.slips) for report in reports)),
            high=0,
            detail=f"of {sum(len(report.boundaries) for report in reports)}",
        ),
        Check(
            group=GROUP,
            name="blocks against whole, worst",
            value=max(apart, default=float("nan")),
            high=SPECTRAL_LIMIT_DB,
            unit="dB",
            detail="mean difference of log spectra",
        ),
    ]


def log_spectral_distance_db(left: Samples, right: Samples) -> float:
    """Of frames of 20 ms in 40 bands, over those within 50 dB of the loudest; phase does not count."""
    count = min(len(left), len(right))
    pictures = [_bands_db(samples[:count]) for samples in (left, right)]
    if not len(pictures[0]):
        return float("nan")
    loud = pictures[1] > pictures[1].max() - 50.0
    return float(np.abs(pictures[0] - pictures[1])[loud].mean())


def _bands_db(samples: Samples) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    size = 480
    if len(samples) < size:
        return np.zeros((0, BANDS))
    frames = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), size)[:: size // 2]
    power = np.abs(np.fft.rfft(frames * np.hanning(size), axis=1))[:, : 6 * BANDS] ** 2
    return np.asarray(10 * np.log10(power.reshape(len(power), BANDS, -1).mean(axis=2) + 1e-9))
