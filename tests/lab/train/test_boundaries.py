"""The stage `boundaries`: which tokens are taught, and that the others are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from tiny_wren import TINY
from torch import Tensor

from nightingale.errors import ConfigError
from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer
from nightingale.models.chatterbox.t3.model import T3
from nightingale_lab.train.boundaries import (
    BoundaryTraining,
    SpokenLine,
    choose_lines,
    speak_sentences,
    train_boundaries,
)
from nightingale_lab.train.prepare import MARK_PHONEMES
from nightingale_lab.train.t3 import FINAL_TOKENS
from nightingale_lab.train.teachers.hibari_durations import TICK_SAMPLES

PAD, PERIOD, SPACE, D, T, A, EYE = 0, 4, 16, 46, 62, 24, 25
WITH_BOUNDARY = (PAD, A, D, SPACE, T, EYE, D, PERIOD, PAD)
WITHOUT_BOUNDARY = (PAD, A, T, SPACE, D, EYE, D, PERIOD, PAD)


class Noise:
    """Noise of two ticks per phoneme, or as long as it is told."""

    def __init__(self) -> None:
        self.spoken: list[list[int]] = []

    def durations(self, ids: Sequence[int], *, speed: float = 1.0) -> NDArray[np.int64]:
        del speed
        return np.array([2] * len(ids))

    def speak(
        self, ids: Sequence[int], durations: NDArray[np.int64], *, speed: float = 1.0, seed: int = 0
    ) -> Tensor:
        del ids, speed
        self.spoken.append(durations.tolist())
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(int(durations.sum()) * TICK_SAMPLES, generator=generator) * 0.1


def spoken(teacher: Noise, sentences: Sequence[tuple[int, ...]]) -> list[SpokenLine]:
    torch.manual_seed(0)
    net = SpeechTokenizer(TINY.speech_tokenizer).eval()
    return list(speak_sentences(teacher, net, [([5], ids) for ids in sentences], budget_s=60))


def test_the_tokens_around_a_longer_phoneme_are_marked() -> None:
    teacher = Noise()
    (line,) = spoken(teacher, [WITH_BOUNDARY])
    assert teacher.spoken == [[2, 2, 3, 3, 2, 2, 2, 2, 2]]
    # The edited phonemes are from 100 to 250 ms, which is token 2 to 6, and two tokens more on both sides.
    assert np.flatnonzero(line.edited).tolist() == list(range(9))
    assert len(line.tokens) == len(line.edited) > 9


def test_most_lines_have_a_boundary() -> None:
    teacher = Noise()
    found = spoken(teacher, [WITHOUT_BOUNDARY] * 9 + [WITH_BOUNDARY] * 4 + [WITHOUT_BOUNDARY] * 9)
    assert [bool(line.edited.any()) for line in found] == [False] + [True] * 4 + [False] * 2


def test_the_end_of_a_question_is_not_learned() -> None:
    statement, question = (*WITH_BOUNDARY[:1], *WITH_BOUNDARY[1:-2] * 4), MARK_PHONEMES["?"]
    asked, told = spoken(Noise(), [(*statement, question, PAD), (*statement, PERIOD, PAD)])
    assert asked.edited.any()
    assert not asked.edited[-FINAL_TOKENS:].any()
    assert told.edited[-FINAL_TOKENS:].any()


def test_every_third_line_has_a_final_d_before_a_stop_and_every_third_one_is_another_question() -> None:
    texts = ["They'd tried.", "I saw it.", "He'd do it!", "We'd died?", "A b.", "", "No?", "Is it?", "Oh!"]
    lines = choose_lines(texts, [np.full(len(text), 9, np.uint8) for text in texts], seed=0).tolist()
    assert {texts[i] for i in lines[::3]} == {"They'd tried.", "We'd died?"}
    assert {texts[i] for i in lines[1::3]} == {"No?", "Is it?"}
    assert {texts[i] for i in lines[2::3]} == {"I saw it.", "A b."}


def test_statements_go_on_when_there_are_no_other_lines() -> None:
    texts = ["They'd tried.", "I saw it.", "A b.", "Oh."]
    assert len(choose_lines(texts, [np.full(3, 9, np.uint8)] * 4, seed=0)) == 4


def training(lines: Sequence[SpokenLine]) -> BoundaryTraining:
    torch.manual_seed(1)
    weights = {name: value.clone() for name, value in T3(TINY.t3).state_dict().items()}
    return BoundaryTraining(weights, TINY.t3, lines, torch.randn(3, 256), peak_lr=3e-3)


def made_lines(count: int) -> list[SpokenLine]:
    edited = np.zeros(20, np.bool_)
    edited[5:9] = True
    tokens = np.random.default_rng(0).integers(6561, size=20).astype(np.int16)
    none = np.zeros(20, np.bool_)
    return [SpokenLine(text=[5, 6], tokens=tokens, edited=edited if i % 3 else none) for i in range(count)]


def test_boundaries_are_learned_and_the_rest_is_kept(tmp_path: Path) -> None:
    made = training(made_lines(30))
    before = made.validate()
    assert before["validation_divergence"] == pytest.approx(0, abs=1e-5)
    for _ in range(60):
        made.step(0.0)
    made.ema.reset()
    after = made.validate()
    assert after["validation_boundaries"] < 0.5 * before["validation_boundaries"]
    assert after["validation_divergence"] < 0.5
    train_boundaries(made, tmp_path, budget_s=0.1)
    stored = load_file(tmp_path / "t3.safetensors")
    assert stored.keys() == dict(made.net.named_parameters()).keys()


def test_too_little_speech_is_refused() -> None:
    with pytest.raises(ConfigError, match="too little"):
        training(made_lines(4))


def test_a_row_has_its_loss_at_speech_only() -> None:
    made = training(made_lines(10))
    batch = made.batch(made_lines(3)[:2], np.array([0, 2]))
    framed = len(TINY.t3.frame_text([5, 6]))
    speech = batch.at_boundary | batch.elsewhere
    assert not (batch.at_boundary & batch.elsewhere).any()
    assert torch.equal(speech.sum(1), torch.tensor([21, 21]))  # the stop token too
    assert not speech[:, : framed + 1].any()
    assert batch.at_boundary.sum(1).tolist() == [0, 4]
