"""Defects that only a comparison reveals: with the stored voice, the reference renderer, or sentences one by one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import BOUNDARIES, RATE_HZ, TEXT, PlantedJudges, PlantedSubject

from nightingale.types import Samples
from nightingale_lab.bench.verify.judged import JUDGES
from nightingale_lab.bench.verify.verification import Panel, verify
from nightingale_lab.bench.verify.voice_reference import NUMBERS, read_references, write_references

TEXTS = [TEXT] * 3


def failures(subject: PlantedSubject, folder: Path, judges: PlantedJudges | None = None) -> set[str]:
    panel = Panel(ask=judges, absent={}, names=JUDGES if judges else ())
    return {check.name for check in verify(subject, TEXTS, folder, panel=panel).failed}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a healthy run has stored its voice."""
    folder = tmp_path_factory.mktemp("healthy")
    assert failures(PlantedSubject(), folder) == set()
    assert failures(PlantedSubject(), folder) == set()
    return folder


@pytest.fixture
def stored(healthy: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    for path in healthy.glob("*.jsonl"):
        shutil.copy(path, tmp_path)
    return tmp_path


def higher(samples: Samples) -> Samples:
    """Raise the pitch by 3 %."""
    at = np.arange(round(len(samples) / 1.03)) * 1.03
    return np.interp(at, np.arange(len(samples)), samples).astype(np.float32)


def without_highs(samples: Samples) -> Samples:
    """Remove all above 6 kHz."""
    spectrum = np.fft.rfft(samples)
    spectrum[np.fft.rfftfreq(len(samples), 1 / RATE_HZ) > 6000] = 0
    return np.fft.irfft(spectrum, len(samples)).astype(np.float32)


def of_another_speaker(samples: Samples) -> Samples:
    """Change the timbre: less of the low and more of the high frequencies."""
    spectrum = np.fft.rfft(samples) * (0.5 + np.fft.rfftfreq(len(samples), 1 / RATE_HZ) / 3000)
    return np.fft.irfft(spectrum, len(samples)).astype(np.float32)


def unequal_chunks(samples: Samples) -> Samples:
    """Make every other chunk 3 % louder."""
    samples = samples.copy()
    samples[BOUNDARIES[0] : BOUNDARIES[1]] *= np.float32(1.03)
    samples[BOUNDARIES[2] :] *= np.float32(1.03)
    return samples


def muted_end(samples: Samples) -> Samples:
    """Mute the last 80 ms of the sound."""
    samples = samples.copy()
    end = np.flatnonzero(samples)[-1] + 1
    samples[end - 1920 : end] = 0
    return samples


@pytest.mark.parametrize(
    ("damage", "caught"),
    [
        (higher, "pitch, ratio"),
        (without_highs, "spectrum, mean difference of bands"),
        (of_another_speaker, "spectrum, mean difference of bands"),
        (lambda samples: samples * np.float32(0.25), "loudness"),
        (unequal_chunks, "level of every other chunk"),
        (muted_end, "level of the last 80 ms, lowest"),
    ],
    ids=["pitch", "low-pass", "other voice", "volume", "unequal chunks", "muted end"],
)
def test_a_changed_sound_is_caught(damage: Callable[[Samples], Samples], caught: str, stored: Path) -> None:
    assert caught in failures(PlantedSubject(damage=damage), stored)


@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        ({"likelihood": -1.5}, {"likelihood of the tokens", "likelihood of the stored tokens"}),
        ({"t3_noise": 0.05}, {"likelihood of the stored tokens"}),
        ({"same_tokens": True}, {"other seed, same tokens"}),
        ({"drops_sentence": 2}, {"four sentences, ratio to one by one"}),
        ({"misreads": "4"}, {"text ids of digits and letters that differ"}),
    ],
    ids=["temperature", "noise in T3", "seed", "dropped sentence", "misread number"],
)
def test_a_fault_of_decoding_or_text_is_caught_and_nothing_else(
    fault: dict[str, Any], caught: set[str], stored: Path
) -> None:
    assert failures(PlantedSubject(**fault), stored) == caught


def test_a_number_that_no_recognizer_understands_is_caught(tmp_path: Path) -> None:
    def caught(transcript: str, *, by_one: bool = False) -> bool:
        judges = PlantedJudges(words={0: transcript}, profile="balanced-numbers", only_one_misses=by_one)
        return "numbers in no transcript" in failures(PlantedSubject(), tmp_path, judges)

    assert not caught(NUMBERS)
    assert not caught("On May third nineteen eighty four the FBI paid forty two dollars for seventeen copies "
                      "of file B six in room two hundred and five.")  # fmt: skip
    assert caught(NUMBERS.replace("17", "70"))
    assert not caught(NUMBERS.replace("17", "70"), by_one=True)


def test_a_voice_is_compared_with_its_own_reference_only(stored: Path) -> None:
    own = stored / "voice_references.jsonl"
    (reference,) = read_references(own)
    assert failures(PlantedSubject(voice="other", likelihood=-1.5), stored) == set(), "it is stored"
    assert {one.voice for one in read_references(own)} == {"default", "other"}
    write_references(own, [reference])
    assert read_references(own) == [reference]
    assert "likelihood of the tokens" in failures(PlantedSubject(likelihood=-1.5), stored)
