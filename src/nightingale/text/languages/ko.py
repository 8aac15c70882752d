"""Korean: Hangul syllables become Jamo, the letters of the vocabulary."""

from __future__ import annotations

from unicodedata import normalize

from nightingale.text.languages.language import LanguageFiles, Step


def open_step(_files: LanguageFiles) -> Step:
    return to_jamo


def to_jamo(text: str) -> str:
    """Split each syllable into its two or three Jamo, which is what NFKD does."""
    return normalize("NFKD", text).strip()
