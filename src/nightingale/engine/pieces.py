"""A request's text to the pieces that are spoken one after another: one for most models, breaths for wren."""

from __future__ import annotations

from dataclasses import dataclass

from nightingale.clocks import CLOCKS
from nightingale.text.frontend import Frontend
from nightingale.text.sentences import ends_sentence, split

SENTENCE_PAUSE_MS = 120
CLAUSE_PAUSE_MS = 60
"""Both on top of the quiet that the model itself leaves at its ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    text_ids: list[int]
    pause_samples: int
    """Silence after it; none after the last."""


def cut(frontend: Frontend, text: str, language: str | None, *, split_chars: int | None) -> list[Piece]:
    """At least one piece, in order. The whole text is checked and written out before it is cut."""
    spoken = frontend.prepare(text)
    texts = [spoken] if split_chars is None else split(spoken, split_chars)
    return [
        Piece(
            text_ids=frontend.tokenizer.encode(piece, language),
            pause_samples=0 if number == len(texts) else _pause_samples(piece),
        )
        for number, piece in enumerate(texts, start=1)
    ]


def _pause_samples(piece: str) -> int:
    pause_ms = SENTENCE_PAUSE_MS if ends_sentence(piece) else CLAUSE_PAUSE_MS
    return pause_ms * CLOCKS.sample_rate_hz // 1000
