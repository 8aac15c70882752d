"""Planted defects in real speech, scored by real judges. Needs `make judges`, and recordings (`recordings`).

NIGHTINGALE_CLIPS=.wren/references python -m pytest -m judges tests/lab/bench/verify
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from nightingale.audio.read import read_audio
from nightingale.audio.samples import wav_bytes
from nightingale.types import Samples
from nightingale_lab.bench.quality import Clip, Quality, measure
from nightingale_lab.bench.verify.judged import JUDGES, find_judges, judged, with_references

pytestmark = pytest.mark.judges
SPEAKER, OTHER = "heart", "george"


@pytest.fixture(scope="module")
def recordings() -> Path:
    """A folder with `heart_*.wav` and `george_*.wav`: two speakers, a few sentences each."""
    folder = Path(os.environ.get("NIGHTINGALE_CLIPS", ".wren/references"))
    if len(list(folder.glob(f"{SPEAKER}_*.wav"))) < 3 or not list(folder.glob(f"{OTHER}_*.wav")):
        pytest.skip(f"no recordings of two speakers in {folder}; see NIGHTINGALE_CLIPS")
    return folder


def scored(wavs: list[Path], texts: list[str]) -> Quality:
    ask, absent = find_judges()
    if ask is None or absent:
        pytest.skip("the judges are not installed: make judges")
    clips = [Clip(wav=wav, text=text) for wav, text in zip(wavs, texts, strict=True)]
    return measure(with_references(clips), ask, JUDGES)


@pytest.fixture(scope="module")
def healthy(recordings: Path) -> Quality:
    """The texts are not known here: the transcripts of the first recognizer replace them."""
    wavs = sorted(recordings.glob(f"{SPEAKER}_*.wav"))[:3]
    first = scored(wavs, [""] * len(wavs))
    return scored(wavs, [clip.transcripts["tiny"] for clip in first.clips])


def damaged(clip: Path, folder: Path, change: object) -> Path:
    samples, rate_hz = read_audio(clip)
    folder.mkdir(exist_ok=True)
    path = folder / clip.name
    path.write_bytes(wav_bytes(change(samples), rate_hz))  # type: ignore[operator]
    return path


def failures(quality: Quality) -> set[str]:
    return {check.name for check in judged(quality, {}, own_references=False) if check.verdict == "fail"}


def test_untouched_recordings_pass(healthy: Quality) -> None:
    # The second recognizer may transcribe a name otherwise than the first.
    assert failures(healthy) <= {"word error rate, moonshine"}, healthy.summary()
    assert healthy.cosine is not None


def test_a_swapped_voice_is_detected_in_one_clip_of_four(healthy: Quality, recordings: Path) -> None:
    stranger = min(recordings.glob(f"{OTHER}_*.wav"))
    wavs = [*(clip.clip.wav for clip in healthy.clips), stranger]
    texts = [*(clip.clip.text for clip in healthy.clips), "anything"]
    quality = scored(wavs, texts)
    cosines = [clip.cosine for clip in quality.clips]
    assert "speaker cosine, worst" in failures(quality), cosines


def test_a_cut_last_word_is_missed_by_both_recognizers(healthy: Quality, tmp_path: Path) -> None:
    def cut(samples: Samples) -> Samples:
        kept = samples[: round(0.8 * len(samples))].copy()
        kept[-2400:] *= np.linspace(1, 0, 2400, dtype=np.float32)
        return kept

    clip = healthy.clips[0]
    quality = scored([damaged(clip.clip.wav, tmp_path / "cut", cut)], [clip.clip.text])
    words = quality.clips[0].words
    assert all(result.lost_tail >= 1 for result in words.values()), quality.clips[0].transcripts
    assert "cut-off" in quality.clips[0].defects


def test_noise_over_the_speech_costs_dnsmos(healthy: Quality, tmp_path: Path) -> None:
    def noisy(samples: Samples) -> Samples:
        loud = float(np.sqrt(np.mean(samples**2)))
        hiss = np.random.default_rng(1).standard_normal(len(samples)).astype(np.float32)
        return np.clip(samples + 0.5 * loud * hiss, -1, 1)

    wavs = [damaged(clip.clip.wav, tmp_path / "noisy", noisy) for clip in healthy.clips]
    quality = scored(wavs, [clip.clip.text for clip in healthy.clips])
    assert {"DNSMOS overall, mean", "DNSMOS overall, worst"} <= failures(quality), quality.mos()


def test_backwards_speech_is_not_understood(healthy: Quality, tmp_path: Path) -> None:
    wavs = [damaged(clip.clip.wav, tmp_path / "back", lambda x: x[::-1].copy()) for clip in healthy.clips]
    quality = scored(wavs, [clip.clip.text for clip in healthy.clips])
    assert "clips not understood" in failures(quality)
