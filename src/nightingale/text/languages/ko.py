"""Korean: Hangul syllables become Jamo, the letters of which the vocabulary is made."""

from __future__ import annotations

from unicodedata import normalize

from nightingale.text.languages.base import LanguageFiles, Step


def open_step(_files: LanguageFiles) -> Step:
    return to_jamo


def to_jamo(text: str) -> str:
    """Each syllable as its two or three Jamo. Compatible decomposition is the Hangul formula."""
    return normalize("NFKD", text).strip()
