"""Wren's own words: its alignment head follows the text, on the default backend."""

from __future__ import annotations

import pytest

from nightingale import TTS
from nightingale.engine.load import default_model

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(default_model() != "wren", reason="this copy has no weights of wren")

TEXT = "They paid $5.50 for it, and moved to a quiet town in the south of France."


def test_words_of_wren_have_plausible_times() -> None:
    with TTS() as tts:
        audio = tts.say(TEXT, seed=1, timestamps=True)
    assert [word.word for word in audio.words] == TEXT.split()
    lengths = [word.end_s - word.start_s for word in audio.words]
    assert all(
        0.03 < length < 0.7 for word, length in zip(audio.words, lengths, strict=True) if word.word != "$5.50"
    )
    spoken = dict(zip(TEXT.split(), lengths, strict=True))
    assert spoken["$5.50"] > 1.0  # five dollars and fifty cents
    assert spoken["a"] < 0.2 < spoken["France."]
    # Nothing but a short silence is left out, before, between and after the words.
    assert audio.seconds - 0.25 - sum(lengths) < 1.0
