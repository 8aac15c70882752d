"""Check for audible chunk boundaries, and that the joined stream is the whole utterance."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from nightingale.types import Samples
from nightingale_lab.bench.seams import seam_report
from nightingale_lab.bench.shifts import shift_report
from nightingale_lab.bench.verify.check import Check
from nightingale_lab.bench.verify.spectrum import DIGITAL_SILENCE
from nightingale_lab.bench.verify.subject import RecordedUtterance, RenderedTwice, Subject

check = partial(Check, "streaming")
SEED = 21
ALLOWED_SHARE = 0.02
"""The share of boundaries that may be called audible. In untouched speech it is 3 of 8,590
(docs/streaming.md). One boundary is always allowed."""
SPECTRAL_LIMIT_DB = 6.0
"""Bound of the mean difference of two log spectra. Wren in blocks differs from wren in one piece by 2 dB;
two different sentences differ by 19 dB."""
BANDS = 40
END_SAMPLES = 1920
ALTERNATE_DB, CHUNK_DB, END_DB = 0.15, 0.6, 3.0
"""Bounds of level differences. Wren in int8 and float16 differs from float32 by 0.05 dB (standard deviation), 0.15 at
most, and by 0.07 at the end, with 35 chunks; 3 % is 0.26 dB."""


def seams(clips: Sequence[RecordedUtterance]) -> list[Check]:
    """Check for clicks and holes at the chunk boundaries."""
    reports = [seam_report(clip.samples, clip.boundaries, clip.rate_hz) for clip in clips if clip.boundaries]
    boundaries = sum(len(report.boundaries) for report in reports)
    found = sum(len(report.seams) for report in reports)
    often = sum(not report.clean and not report.seams for report in reports)
    allowed = float(max(1, int(ALLOWED_SHARE * boundaries))) if boundaries else 0.0
    note = f"of {boundaries} in {len(clips)} clips"
    return [
        check("audible chunk boundaries", float(found), high=allowed, detail=note),
        check("clips with a fault at every boundary", float(often), high=0),
    ]


def chunk_levels(subject: Subject, clips: Sequence[RecordedUtterance]) -> list[Check]:
    """Compare the levels of chunks and of the end with the reference renderer's, for the same blocks of tokens."""
    chunks, alternate, ends = list[float](), list[float](), list[float]()
    for clip in clips:
        reference = subject.render_again(clip)
        samples = clip.samples[: len(reference)]
        edges = [0, *(place for place in clip.boundaries if place < len(reference)), len(reference)]
        levels = [_gain_db(samples[a:b], reference[a:b]) for a, b in pairwise(edges)]
        chunks += levels
        alternate += [level if number % 2 else -level for number, level in enumerate(levels)]
        end = int(np.flatnonzero(np.abs(reference) > DIGITAL_SILENCE).max(initial=END_SAMPLES)) + 1
        ends.append(_gain_db(samples[end - END_SAMPLES : end], reference[end - END_SAMPLES : end]))
    balance, note = 2 * float(np.mean(alternate)), f"{len(chunks)} chunks, against the reference renderer"
    return [
        check(
            "level of every other chunk",
            balance,
            low=-ALTERNATE_DB,
            high=ALTERNATE_DB,
            unit="dB",
            detail=note,
        ),
        check("level of a chunk, worst", max(map(abs, chunks)), high=CHUNK_DB, unit="dB", detail=note),
        check("level of the last 80 ms, lowest", min(ends), low=-END_DB, unit="dB", detail=note),
    ]


def _gain_db(samples: Samples, reference: Samples) -> float:
    power = [
        float(np.sum(part.astype(np.float64) ** 2)) / len(reference) + 1e-12 for part in (samples, reference)
    ]
    return 10.0 * float(np.log10(power[0] / power[1]))


def stream_is_whole(subject: Subject, texts: Sequence[str]) -> list[Check]:
    """Check that the joined stream equals `say`, and that blocks lie where they lie in the whole."""
    text = texts[0]
    streamed, whole = subject.say(text, seed=SEED), subject.whole(text, seed=SEED)
    same = len(streamed.samples) == len(whole) and bool(np.array_equal(streamed.samples, whole))
    pairs = [subject.render_twice(text, seed=SEED + i) for i, text in enumerate(texts)]
    return [
        check("joined stream differs from say", float(not same), high=0),
        *blocks_lie_in_place(pairs),
    ]


def blocks_lie_in_place(pairs: Sequence[RenderedTwice]) -> list[Check]:
    reports = [shift_report(pair.stream, pair.boundaries, pair.at_once) for pair in pairs]
    apart = [log_spectral_distance_db(pair.stream, pair.whole) for pair in pairs]
    lost = max((abs(report.missing) for report in reports), default=0)
    slips, blocks = (
        sum(map(len, part)) for part in zip(*((r.slips, r.boundaries) for r in reports), strict=True)
    )
    worst, note = max(apart, default=float("nan")), "mean difference of log spectra"
    return [
        check("samples lost or repeated in blocks", float(lost), high=0, unit="samples"),
        check("blocks out of place", float(slips), high=0, detail=f"of {blocks}"),
        check("blocks against whole, worst", worst, high=SPECTRAL_LIMIT_DB, unit="dB", detail=note),
    ]


def log_spectral_distance_db(left: Samples, right: Samples) -> float:
    """Return the mean difference of 20 ms frames in 40 bands, within 50 dB of the loudest, without phase."""
    count = min(len(left), len(right))
    spectra = [_bands_db(samples[:count]) for samples in (left, right)]
    if not len(spectra[0]):
        return float("nan")
    loud = spectra[1] > spectra[1].max() - 50.0
    return float(np.abs(spectra[0] - spectra[1])[loud].mean())


def _bands_db(samples: Samples) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    size = 480
    if len(samples) < size:
        return np.zeros((0, BANDS))
    frames = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), size)[:: size // 2]
    power = np.abs(np.fft.rfft(frames * np.hanning(size), axis=1))[:, : 6 * BANDS] ** 2
    return np.asarray(10 * np.log10(power.reshape(len(power), BANDS, -1).mean(axis=2) + 1e-9))
