"""Intonation by punctuation: which contour a sentence gets, and what it does to the pitch and energy curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nightingale_lab.train.synthesize import SpeakerMix, assign_speakers, order_lines
from nightingale_lab.train.teachers.intonation import (
    FINAL_STRETCH,
    MAX_SEMITONES,
    PRIMARY_STRESS,
    Contour,
    apply_contours,
    contours_of,
    duration_factors,
    has_edits,
)
from nightingale_lab.train.teachers.kokoro_net import Kokoro
from nightingale_lab.train.teachers.kokoro_parts import Kernels

RISE, FALL, STATEMENT, EXCLAMATION = Contour.RISE, Contour.FALL, Contour.STATEMENT, Contour.EXCLAMATION
VOWEL, T, SPACE = 60, 62, 16
MARKS = {".": 4, "!": 5, "?": 6}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("She bought it.", (STATEMENT,)),
        ("She bought it?", (RISE,)),
        ("Did you see her?", (RISE,)),
        ("What?", (RISE,)),
        ("Where did she go?", (FALL,)),
        ("And to whom did she go?", (FALL,)),
        ("Tea or coffee?", (FALL,)),
        ("Are you coming or not?", (RISE,)),
        ('"Stop!" he cried. Why?', (EXCLAMATION, STATEMENT, RISE)),
    ],
)
def test_the_contour_follows_from_the_mark_and_the_question_word(
    text: str, wanted: tuple[Contour, ...]
) -> None:
    assert contours_of(text) == wanted


def sentence(mark: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ids, ends, f0 and energy of a sentence with a falling pitch, whose last sound has none."""
    ids = [0, VOWEL, SPACE, VOWEL, SPACE, PRIMARY_STRESS, VOWEL, VOWEL, T, MARKS[mark], 0]
    ends = torch.cumsum(torch.full((1, len(ids)), 10), 1)
    frames = 2 * 10 * len(ids)
    f0 = torch.linspace(220.0, 180.0, frames)[None].clone()
    f0[:, 160:] = 0.0  # the last sound and what follows
    return torch.tensor([ids]), ends, f0, torch.full((1, frames), 2.0)


def semitones(f0: Tensor, reference: Tensor) -> np.ndarray:
    voiced = reference[0] > 0
    return (12 * torch.log2(f0[0, voiced] / reference[0, voiced].median())).numpy()


def edited(mark: str, contour: Contour) -> tuple[np.ndarray, Tensor, Tensor]:
    ids, ends, f0, energy = sentence(mark)
    new_f0, new_energy = apply_contours(ids, ends, f0, energy, [(contour,)])
    assert torch.equal(f0, sentence(mark)[2]), "the input is unchanged"
    assert (new_f0[f0 == 0] == 0).all()
    curve = semitones(new_f0, f0)
    assert np.abs(curve).max() <= MAX_SEMITONES + 0.01
    return curve, new_f0, new_energy


def test_a_yes_no_question_rises_at_its_end_and_only_there() -> None:
    curve, new_f0, _ = edited("?", RISE)
    assert curve[-1] > 7.0
    assert (np.diff(curve[-30:]) >= 0).all()
    assert torch.allclose(new_f0[:, :80], sentence("?")[2][:, :80]), "the words before the last stress"


def test_a_question_with_a_question_word_starts_higher_and_falls() -> None:
    curve, _, _ = edited("?", FALL)
    plain = semitones(sentence("?")[2], sentence("?")[2])
    assert curve[25] > plain[25] + 2.0  # the first phoneme is padding
    assert curve[-1] < plain[-1] - 1.5


def test_an_exclamation_has_a_wider_range_and_more_energy() -> None:
    curve, _, energy = edited("!", EXCLAMATION)
    plain = semitones(sentence("!")[2], sentence("!")[2])
    assert np.ptp(curve) > 2 * np.ptp(plain)
    assert (energy[0, 40:160] > 2.1).all()


def test_a_statement_is_unchanged() -> None:
    ids, ends, f0, energy = sentence(".")
    assert not has_edits([(STATEMENT,), ()])
    same_f0, same_energy = apply_contours(ids, ends, f0, energy, [(STATEMENT,)])
    assert torch.equal(same_f0, f0)
    assert torch.equal(same_energy, energy)


def test_without_a_contour_for_every_sentence_the_marks_decide() -> None:
    ids, ends, f0, energy = sentence("?")
    by_mark, _ = apply_contours(ids, ends, f0, energy, [(STATEMENT, FALL)])
    assert torch.equal(by_mark, apply_contours(ids, ends, f0, energy, [(RISE,)])[0])


def test_only_the_end_of_a_rising_sentence_takes_longer() -> None:
    ids = sentence("?")[0]
    factors = duration_factors(ids, [(RISE,)])[0].tolist()
    stretched = {i for i, factor in enumerate(factors) if factor == pytest.approx(FINAL_STRETCH)}
    assert stretched == {5, 6, 7}
    assert set(duration_factors(ids, [(FALL,)])[0].tolist()) == {1.0}


def test_lines_are_requested_with_their_contours() -> None:
    readings = [{"american": np.array([VOWEL, 6], np.uint8), "british": np.zeros(0, np.uint8)}]
    mix = SpeakerMix(shares={"af_heart": 1.0}, pool=["af_heart", "am_puck", "bf_emma"], blends=1)
    (request,) = assign_speakers([3], ["Really?"], readings, mix, seed=0)
    assert request.line.contours == (RISE,)


def test_the_lines_that_are_synthesized_first_have_the_share_of_questions() -> None:
    texts = [f"Line {i}{'?' if i % 10 == 0 else '.'}" for i in range(1000)]
    order = order_lines(texts, 100, seed=0)
    assert sorted(order.tolist()) == list(range(1000))
    assert sum(texts[i].endswith("?") for i in order[:100]) == 42


class ConstantPitch:
    """Stands for the networks of Kokoro: ten ticks per phoneme, 200 Hz, and samples that are the pitch curve."""

    def __init__(self) -> None:
        self.predictor = self.decoder = self.asr_res = self
        self.weight = torch.zeros(1)

    def bert(self, ids: Tensor, mask: Tensor) -> Tensor:
        return torch.zeros(*ids.shape, 8)

    def bert_encoder(self, encoded: Tensor) -> Tensor:
        return encoded

    def encode(self, encoded: Tensor, manner: Tensor, lengths: Tensor) -> Tensor:
        return encoded

    def text_encoder(self, ids: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
        return torch.zeros(*ids.shape, 512)

    def durations(self, encoded: Tensor, lengths: Tensor, speed: Tensor) -> Tensor:
        return torch.full(encoded.shape[:2], 10)

    def pitch_and_energy(self, stretched: Tensor, *_: object) -> tuple[Tensor, Tensor, None]:
        curve = torch.full((len(stretched), 1, 1, 2 * stretched.shape[1]), 200.0)
        return curve, torch.ones_like(curve), None

    def __call__(self, text: Tensor, f0: Tensor, *_: object) -> Tensor:
        return f0[:, 0, 0]


def test_the_decoder_of_the_teacher_gets_the_edited_curves() -> None:
    ids = sentence("?")[0]

    def speak(contours: tuple[Contour, ...]) -> Tensor:
        lengths, style = torch.tensor([ids.shape[1]]), torch.zeros(1, 256)
        teacher: Any = ConstantPitch()
        return Kokoro.aligned(
            teacher, ids, lengths, style, torch.ones(1), Kernels(), None, 1, [contours]
        ).samples

    plain, question = speak(()), speak((RISE,))
    assert set(plain[0].tolist()) == {200.0}
    assert float(question.max()) > 300.0
    assert question.shape[1] > plain.shape[1]
