"""Clones of people: the similarity to their references and the pitch, and the voice encoder beside its teacher.

A folder of readers has one subfolder of recordings for each of them, such as LibriSpeech's test-other. A clone is
made from one recording of 5 to 10 seconds and speaks some sentences; the judge is Resemblyzer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightingale.errors import ConfigError
from nightingale_lab.bench.pitch import track_hz
from nightingale_lab.bench.quality import Ask

SUFFIXES = (".flac", ".wav")
REFERENCE_SECONDS = (5.0, 10.0)
CLIPS_PER_READER = 4
"""Recordings of each reader for the voice encoder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneReport:
    """The similarity of clones to readers."""

    cosines: Mapping[str, Mapping[str, float]]
    """The mean cosine of each reader's clone to the reference of every reader."""
    semitones: Mapping[str, float]
    """The median pitch of each reader's clone above that of the reference."""

    @property
    def pitch_semitones(self) -> float:
        """The mean distance of the median pitch of a clone from that of its reference."""
        return statistics.fmean(abs(each) for each in self.semitones.values())

    @property
    def cosine(self) -> float:
        """The mean cosine of a clone to its own reference."""
        return statistics.fmean(row[name] for name, row in self.cosines.items())

    @property
    def nearest(self) -> int:
        """The number of clones whose own reader is the nearest."""
        return sum(max(row, key=row.__getitem__) == name for name, row in self.cosines.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderReport:
    """The voice encoder on recordings of people."""

    cosine: float
    """The mean cosine to its teacher's vector of the same recording."""
    equal_error_percent: float
    teacher_equal_error_percent: float


def readers_in(folder: Path) -> dict[str, list[Path]]:
    """Return the recordings of each reader.

    Raises:
        ConfigError: there are fewer than two readers.
    """
    found = {
        path.name: sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES)
        for path in sorted(folder.iterdir())
        if path.is_dir()
    }
    readers = {name: paths for name, paths in found.items() if paths}
    if len(readers) < 2:
        raise ConfigError(
            "there are too few readers",
            got=f"{len(readers)} in {folder}",
            allowed="a folder with one subfolder of recordings for each of at least two readers",
        )
    return readers


def reference_of(paths: Sequence[Path]) -> Path:
    """Return the first recording of 5 to 10 seconds, or else the one that is nearest to that."""
    import soundfile

    low, high = REFERENCE_SECONDS

    def misses_s(path: Path) -> float:
        seconds = float(soundfile.info(path).duration)
        return max(low - seconds, seconds - high, 0.0)

    return min(paths, key=misses_s)


def compare_clones(
    speak: Callable[[str, Path], Iterable[Path]], readers: Mapping[str, Sequence[Path]], ask: Ask
) -> CloneReport:
    """Clone every reader and compare. speak: makes recordings, given a name and a reference."""
    references = {name: reference_of(paths) for name, paths in readers.items()}
    speakers = {name: [str(path)] for name, path in references.items()}
    spoken = {name: list(speak(name, reference)) for name, reference in references.items()}
    owner = {str(wav): name for name, wavs in spoken.items() for wav in wavs}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in readers}
    for answer in ask([{"wav": wav, "speakers": speakers} for wav in owner], ["speaker"]):
        rows[owner[answer["wav"]]].append(answer["speaker"]["cosines"])
    return CloneReport(
        cosines={
            name: {other: statistics.fmean(row[other] for row in found) for other in readers}
            for name, found in rows.items()
        },
        semitones={
            name: 12 * math.log2(median_pitch_hz(wavs) / median_pitch_hz([references[name]]))
            for name, wavs in spoken.items()
        },
    )


def median_pitch_hz(paths: Iterable[Path]) -> float:
    """Return the median pitch of all voiced frames of some recordings."""
    import soundfile

    tracks = [track_hz(*soundfile.read(path, dtype="float32")) for path in paths]
    voiced = np.concatenate([track[track > 0] for track in tracks])
    return float(np.median(voiced)) if len(voiced) else math.nan


def compare_encoder(
    embed: Callable[[Path], NDArray[np.float32]], readers: Mapping[str, Sequence[Path]], ask: Ask
) -> EncoderReport:
    """Compare a voice encoder with its teacher. embed: returns the unit vector of a recording."""
    owner = {str(path): name for name, paths in readers.items() for path in paths[:CLIPS_PER_READER]}
    answers = ask([{"wav": wav, "vector": True} for wav in owner], ["speaker"])
    teacher = {a["wav"]: np.asarray(a["speaker"]["vector"], np.float32) for a in answers}
    own = {wav: embed(Path(wav)) for wav in owner}
    return EncoderReport(
        cosine=statistics.fmean(float(own[wav] @ teacher[wav]) for wav in owner),
        equal_error_percent=100 * equal_error_rate(own, owner),
        teacher_equal_error_percent=100 * equal_error_rate(teacher, owner),
    )


def equal_error_rate(vectors: Mapping[str, NDArray[np.float32]], owner: Mapping[str, str]) -> float:
    """Return the error rate at the threshold where as many same as different pairs are judged wrongly."""
    pairs = list(combinations(vectors, 2))
    score = np.array([float(vectors[a] @ vectors[b]) for a, b in pairs])
    same = np.array([owner[a] == owner[b] for a, b in pairs])
    thresholds = np.sort(score)
    missed = np.array([(score[same] < t).mean() for t in thresholds])
    accepted = np.array([(score[~same] >= t).mean() for t in thresholds])
    at = int(np.argmin(np.abs(missed - accepted)))
    return float((missed[at] + accepted[at]) / 2)


def summary(clones: CloneReport | None, encoder: EncoderReport | None) -> dict[str, Any]:
    """Return both reports for a results file."""
    result: dict[str, Any] = {}
    if clones:
        result["cosines"] = {
            name: {other: round(value, 3) for other, value in row.items()}
            for name, row in clones.cosines.items()
        }
        result["semitones"] = {name: round(value, 2) for name, value in clones.semitones.items()}
        result["pitch_semitones"] = clones.pitch_semitones
    if encoder:
        result["encoder"] = {
            "cosine": encoder.cosine,
            "equal_error_percent": encoder.equal_error_percent,
            "teacher_equal_error_percent": encoder.teacher_equal_error_percent,
        }
    return result
