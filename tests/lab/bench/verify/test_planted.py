"""Each check of `nightingale verify` detects its defect, and none where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import BOUNDARIES, RATE_HZ, TEXT, PlantedJudges, PlantedSubject, sound

from nightingale.types import Samples
from nightingale_lab.bench.verify.against import same_length_and_spectrum
from nightingale_lab.bench.verify.check import Check, VerifyReport, missing
from nightingale_lab.bench.verify.ending_checks import endings
from nightingale_lab.bench.verify.judged import JUDGES, find_judges, judged
from nightingale_lab.bench.verify.subject import RecordedUtterance
from nightingale_lab.bench.verify.verification import FIRST_SEED, Panel, quality_of, record, sentences, verify

TEXTS = [TEXT] * 6


def report_on(
    subject: PlantedSubject, folder: Path, judges: PlantedJudges | None = None, clips: int = 2, **more: Any
) -> VerifyReport:
    names = JUDGES if judges else ()
    absent = {} if judges else dict.fromkeys(JUDGES, "make judges")
    return verify(subject, TEXTS[:clips], folder, panel=Panel(ask=judges, absent=absent, names=names), **more)


def failures(report: VerifyReport) -> set[str]:
    return {check.name for check in report.failed}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[RecordedUtterance], list[Path]]:
    """Six healthy clips, recorded once for all tests of the judges."""
    return record(PlantedSubject(), TEXTS, tmp_path_factory.mktemp("said") / "balanced", lambda *_: None)


def caught_by(judges: PlantedJudges, said: tuple[list[RecordedUtterance], list[Path]]) -> set[str]:
    """Return the failed checks among those that depend on judges."""
    clips, wavs = said
    quality = quality_of(TEXTS, wavs, Panel(ask=judges, absent={}, names=JUDGES), lambda *_: None)
    words = [list(clip.words.values()) for clip in quality.clips]
    checks = judged(quality, {}, own_references=False)
    checks += endings(clips, [str(wav) for wav in wavs], words)[0]
    return {check.name for check in checks if check.verdict == "fail"}


def test_a_healthy_subject_passes_every_check(tmp_path: Path) -> None:
    first = report_on(PlantedSubject(), tmp_path, PlantedJudges(), clips=6)
    assert [check.group for check in first.absent] == ["baseline", "voice"], "a first run stores them"
    report = report_on(PlantedSubject(), tmp_path, PlantedJudges(), clips=6)
    assert failures(report) == set(), [c for c in report.checks if c.verdict == "fail"]
    assert not report.absent
    assert report.ok
    assert {check.group for check in report.checks} == {
        "baseline", "determinism", "spectrum", "voice", "streaming", "texts", "judges", "endings", "languages",
    }  # fmt: skip


def test_other_tokens_than_the_stored_ones_are_caught(tmp_path: Path) -> None:
    report_on(PlantedSubject(), tmp_path)
    changed = failures(report_on(PlantedSubject(token_slip=1), tmp_path))
    assert {"tokens", "tokens, other sha256"} <= changed
    assert failures(report_on(PlantedSubject(nondeterministic=True, _said=5), tmp_path)) >= {
        "WAV file, other sha256"
    }


def tone(samples: Samples) -> Samples:
    """4.9 kHz, 48 dB below the voice."""
    level = 10 ** (-48 / 20) * float(np.sqrt(np.mean(samples**2))) * np.sqrt(2)
    t = np.arange(len(samples)) / RATE_HZ
    return samples + (level * np.sin(2 * np.pi * 4900 * t)).astype(np.float32)


def click(samples: Samples) -> Samples:
    """Two samples at each chunk boundary."""
    samples = samples.copy()
    for place in BOUNDARIES:
        samples[place] += 0.2
        samples[place + 1] -= 0.2
    return samples


def dull(samples: Samples) -> Samples:
    spectrum = np.fft.rfft(samples)
    spectrum[np.fft.rfftfreq(len(samples), 1 / RATE_HZ) > 3500] = 0
    return np.fft.irfft(spectrum, len(samples)).astype(np.float32)


def hissing(samples: Samples) -> Samples:
    return samples + 0.01 * np.random.default_rng(0).standard_normal(len(samples)).astype(np.float32)


def not_a_number(samples: Samples) -> Samples:
    samples = samples.copy()
    samples[100] = np.nan
    return samples


@pytest.mark.parametrize(
    ("damage", "caught"),
    [
        (tone, "tone near 4.9 kHz"),
        (click, "audible chunk boundaries"),
        (dull, "energy below 4 kHz, median"),
        (hissing, "noise floor in pauses, median"),
        (lambda x: x + np.float32(0.02), "DC offset, worst"),
        (lambda x: np.clip(20 * x, -0.99, 0.99), "samples at full scale, worst"),
    ],
    ids=["tone", "click", "dull", "hiss", "offset", "clipping"],
)
def test_a_planted_fault_of_the_sound_is_caught(
    damage: Callable[[Samples], Samples], caught: str, tmp_path: Path
) -> None:
    assert caught in failures(report_on(PlantedSubject(damage=damage), tmp_path))


def test_a_click_and_a_tone_are_told_apart(tmp_path: Path) -> None:
    clicked = failures(report_on(PlantedSubject(damage=click), tmp_path / "click"))
    toned = failures(report_on(PlantedSubject(damage=tone), tmp_path / "tone"))
    assert clicked == {"audible chunk boundaries"}
    assert toned == {"tone near 4.9 kHz"}


@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        ({"nondeterministic": True}, {"same seed, other sha256", "joined stream differs from say"}),
        ({"forgets_seed": True}, {"other seed, same sha256"}),
        ({"greedy_slips": 1}, {"tokens that differ at temperature 0.0001"}),
        ({"token_slip": 1}, {"samples off 960 × tokens"}),
        ({"says_other": True}, {"joined stream differs from say"}),
        ({"lost_samples": 1}, {"samples lost or repeated in blocks", "blocks out of place"}),
        ({"other_whole": True}, {"blocks against whole, worst"}),
        ({"unknown": 2}, {"en: unknown text ids"}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_planted_fault_of_the_engine_is_caught_and_nothing_else(
    fault: dict[str, Any], caught: set[str], tmp_path: Path
) -> None:
    assert failures(report_on(PlantedSubject(**fault), tmp_path)) == caught


def test_nan_samples_are_detected_before_they_are_written() -> None:
    from nightingale_lab.bench.verify.spectrum import spectrum

    clip = PlantedSubject(damage=not_a_number).say(TEXT, seed=1)
    assert "samples that are no numbers" in {c.name for c in spectrum([clip]) if c.verdict == "fail"}


def cut_in_half(samples: Samples) -> Samples:
    half = samples[: len(samples) // 3].copy()
    return half * np.clip((len(half) - np.arange(len(half))) / 3600, 0, 1).astype(np.float32) ** 2


def stopped_while_speaking(samples: Samples) -> Samples:
    level = [np.abs(samples[n - 720 : n]).max() for n in range(60_000, 69_000, 240)]
    return samples[: 60_000 + 240 * int(np.argmax(level))]


@pytest.mark.parametrize(
    ("damage", "caught"),
    [
        (lambda x: np.concatenate([x, x, x]), "runaway"),
        (cut_in_half, "cut-off"),
        (stopped_while_speaking, "abrupt end"),
        (lambda x: np.insert(x, 36_000, np.zeros(48_000, np.float32)), "long pause"),
        (lambda x: np.concatenate([x, np.zeros(48_000, np.float32)]), "long trail"),
        (lambda x: x * np.float32(1e-6), "silent"),
    ],
    ids=["runaway", "half", "stopped", "hole", "trail", "silent"],
)
def test_a_bad_ending_of_one_clip_is_caught_and_the_clip_is_named(
    damage: Callable[[Samples], Samples], caught: str, tmp_path: Path
) -> None:
    report = report_on(PlantedSubject(damage_to={FIRST_SEED + 2: damage}), tmp_path, clips=3)
    assert caught in failures(report)
    named = [clip for clip in report.worst if caught in clip.why]
    assert [Path(clip.wav).name for clip in named] == ["002.wav"]
    assert Path(named[0].wav).is_file()


def test_a_language_that_comes_out_silent_is_caught(tmp_path: Path) -> None:
    subject = PlantedSubject(damage_to={31: lambda x: x * np.float32(1e-6)})
    assert failures(report_on(subject, tmp_path)) == {"en: seconds of sound"}


LAST_WORD_CUT = TEXT.removesuffix(" home.")


@pytest.mark.parametrize(
    ("judges", "caught"),
    [
        (PlantedJudges(words={3: "who knows what that was"}), "clips not understood"),
        (
            PlantedJudges(words=dict.fromkeys(range(6), TEXT.replace("village", "garage"))),
            "word error rate, tiny",
        ),
        (PlantedJudges(words={1: LAST_WORD_CUT}), "cut-off"),
        (PlantedJudges(words={1: TEXT + " and home and home"}), "runaway"),
        (PlantedJudges(cosines={4: 0.55}), "speaker cosine, worst"),
        (PlantedJudges(cosines=dict.fromkeys(range(6), 0.75)), "speaker cosine, mean"),
        (PlantedJudges(dnsmos={2: 1.9}), "DNSMOS overall, worst"),
        (PlantedJudges(dnsmos=dict.fromkeys(range(6), 2.7)), "DNSMOS overall, mean"),
        (PlantedJudges(distill_mos={2: 2.0}), "Distill-MOS, lowest tenth"),
        (PlantedJudges(distill_mos=dict.fromkeys(range(6), 3.9)), "Distill-MOS, mean"),
    ],
    ids=[
        "babble",
        "wrong word",
        "cut word",
        "added words",
        "swapped voice",
        "other voice",
        "one bad",
        "all bad",
        "one unnatural",
        "all unnatural",
    ],
)
def test_scores_of_the_judges_are_compared_with_their_bounds(
    judges: PlantedJudges, caught: str, said: tuple[list[RecordedUtterance], list[Path]]
) -> None:
    assert caught in caught_by(judges, said)


def test_good_scores_of_the_judges_fail_nothing(said: tuple[list[RecordedUtterance], list[Path]]) -> None:
    assert caught_by(PlantedJudges(), said) == set()


def test_a_cut_word_that_only_one_recognizer_misses_is_no_cut_off(
    said: tuple[list[RecordedUtterance], list[Path]],
) -> None:
    assert caught_by(PlantedJudges(words={1: LAST_WORD_CUT}, only_one_misses=True), said) == set()


def test_without_judges_the_other_checks_run_and_the_missing_are_named(tmp_path: Path) -> None:
    ask, absent = find_judges(tmp_path / "nowhere")
    assert ask is None
    report = verify(PlantedSubject(), TEXTS[:2], tmp_path, panel=Panel(ask=ask, absent=absent))
    assert report.ok
    absent = [check for check in report.absent if check.group not in ("baseline", "voice")]
    assert {check.name for check in absent} == {
        "word error rate, tiny", "word error rate, moonshine", "Distill-MOS", "DNSMOS overall", "speaker cosine",
        "numbers in no transcript",
    }  # fmt: skip
    assert all("make judges" in check.detail for check in absent)


def recorded(subject: PlantedSubject) -> list[RecordedUtterance]:
    return [subject.say(TEXT, seed=seed) for seed in range(4)]


def test_a_profile_of_other_lengths_or_another_sound_is_caught() -> None:
    def failed(subject: PlantedSubject) -> list[str]:
        checks = same_length_and_spectrum(recorded(subject), recorded(PlantedSubject()))
        return [check.name for check in checks if check.verdict == "fail"]

    assert failed(PlantedSubject()) == []
    assert failed(PlantedSubject(token_slip=2)) == []
    assert failed(PlantedSubject(token_slip=3)) == ["tokens, mean difference"]
    assert failed(PlantedSubject(token_slip=-3)) == ["tokens, mean difference"]
    assert failed(PlantedSubject(damage=dull)) == ["spectrum, mean difference"]


def test_two_equal_profiles_pass_the_comparison(tmp_path: Path) -> None:
    other = PlantedSubject(profile="exact")
    report = report_on(PlantedSubject(), tmp_path, PlantedJudges(), other=other)
    assert report.ok, failures(report)
    assert report.against == "exact"
    assert "against" in {check.group for check in report.checks}


def slower(samples: Samples) -> Samples:
    """A tenth longer and lower, as a tape that runs too slowly."""
    at = np.arange(round(1.1 * len(samples))) / 1.1
    return np.interp(at, np.arange(len(samples)), samples).astype(np.float32)


def test_a_slower_and_lower_profile_is_caught_against_the_reference(tmp_path: Path) -> None:
    report = report_on(PlantedSubject(damage=slower), tmp_path, other=PlantedSubject(profile="exact"))
    assert {"duration, mean ratio", "pitch, median ratio"} <= failures(report)


@pytest.mark.parametrize(
    ("judges", "caught"),
    [
        (
            PlantedJudges(
                profile="balanced", words=dict.fromkeys(range(6), TEXT.replace("apples", "maples"))
            ),
            "word error rate, tiny: rise",
        ),
        (PlantedJudges(profile="balanced", words={1: "nothing of the kind"}), "more clips not understood"),
        (PlantedJudges(profile="balanced", dnsmos=dict.fromkeys(range(6), 3.1)), "DNSMOS overall: fall"),
        (PlantedJudges(profile="balanced", distill_mos=dict.fromkeys(range(6), 4.1)), "Distill-MOS: fall"),
        (
            PlantedJudges(profile="balanced", cosines=dict.fromkeys(range(6), 0.6)),
            "speaker cosine to the same clip",
        ),
    ],
    ids=["words", "lost clip", "distortion", "naturalness", "voice"],
)
def test_a_profile_that_got_worse_is_caught_against_the_reference(
    judges: PlantedJudges, caught: str, tmp_path: Path
) -> None:
    report = report_on(PlantedSubject(), tmp_path, judges, other=PlantedSubject(profile="exact"))
    assert caught in failures(report)


def test_a_value_on_its_bound_passes_and_one_that_is_no_number_never_does() -> None:
    assert Check("g", "n", 1.0, high=1.0).verdict == "pass"
    assert Check("g", "n", 1.01, high=1.0).verdict == "fail"
    assert Check("g", "n", 0.99, low=1.0).verdict == "fail"
    assert Check("g", "n", float("nan"), high=1.0).verdict == "fail"
    assert missing("g", "n", "why").verdict == "missing"


def test_the_planted_subject_is_deterministic() -> None:
    assert np.array_equal(sound(3), sound(3))
    assert not np.array_equal(sound(3), sound(4))


def test_sentences_are_as_many_as_asked_for_and_all_different() -> None:
    assert len(set(sentences(10))) == 10
    assert len(sentences(100_000)) == 200
