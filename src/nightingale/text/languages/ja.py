"""Japanese: words written with kanji are replaced by their reading in hiragana."""

from __future__ import annotations

from unicodedata import normalize

from nightingale.text.languages.language import LanguageFiles, Step, open_package

KANJI_FIRST, KANJI_LAST = "\u4e00", "\u9fff"
PARTICLE_LOOKALIKES = ("は", "へ")
"""A reading that begins with one of these would be taken for a particle of the word before it."""


def open_step(_files: LanguageFiles) -> Step:
    package = open_package("pykakasi", language="Japanese", package="pykakasi", source="nightingale-tts[ja]")
    kakasi = package.kakasi()

    def to_hiragana(text: str) -> str:
        segments = kakasi.convert(text)
        converted = "".join(reading(segment["orig"], segment["hira"]) for segment in segments)
        # The vocabulary has voiced kana only as kana + mark, and pykakasi composes them.
        return normalize("NFKD", converted)

    return to_hiragana


def reading(written: str, hiragana: str) -> str:
    """Return one segment for the vocabulary: kanji as hiragana, everything else as written."""
    if not any(KANJI_FIRST <= character <= KANJI_LAST for character in written):
        return written
    # PARITY: the separating space is upstream's and becomes a text id.
    #         tests/text/test_languages.py::test_a_japanese_reading_like_a_particle_gets_a_space
    return f" {hiragana}" if hiragana.startswith(PARTICLE_LOOKALIKES) else hiragana
