"""English written out as a person would read it aloud: digits, symbols and abbreviations become words.

Wren is trained on text that passed through here and speaks text that passed through here, by the same code.
"""

from __future__ import annotations

from nightingale.text.english.normalizer import normalize

__all__ = ["normalize"]
