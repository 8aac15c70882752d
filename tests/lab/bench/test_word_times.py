"""The measurement of word times: the author's words from an aligner's, and the summary of errors."""

from __future__ import annotations

from typing import Any

import pytest

from nightingale.engine.load import Model
from nightingale.text.english import read
from nightingale.text.frontend import Frontend
from nightingale_lab.bench.judges.aligner import spoken_words
from nightingale_lab.bench.word_times import JudgedWord, Spoken, judged_words, summary, with_all_heads


def test_words_of_the_aligner_become_those_of_the_author(noise_model: Model) -> None:
    text = "It's $5.50, twenty-five times."
    spoken = read(text)
    assert spoken_words("It's twenty-five!") == ["it's", "twenty", "five"]
    words = [(word, float(at), at + 0.5) for at, word in enumerate(spoken_words(spoken))]
    nothing: Any = None
    one = Spoken(text, spoken, nothing, nothing, "")
    model: Any = type("Model", (), {"frontend": Frontend(tokenizer=nothing, spell_out=read)})
    assert judged_words(one, words, model) == [
        JudgedWord(0, 0.0, 0.5),
        JudgedWord(1, 1.0, 5.5),  # five dollars and fifty cents
        JudgedWord(6, 6.0, 7.5),  # a hyphen makes two words for the aligner
        JudgedWord(7, 8.0, 8.5),
    ]
    assert len(with_all_heads(noise_model).info.preset.t3.traced_heads) == 4


def test_errors_are_summarized_in_milliseconds() -> None:
    errors = [0.01] * 94 + [-0.2] * 6
    assert summary(errors) == {"median_ms": 10.0, "p95_ms": 200.0, "max_ms": 200.0, "bias_ms": 10.0}
    assert summary([0.02])["bias_ms"] == pytest.approx(20.0)
