"""English text normalization: digits, symbols and abbreviations become words.

Wren is trained on text that this code normalized, and speaks text that it normalizes.
"""

from __future__ import annotations

from nightingale.text.english.normalizer import normalize

__all__ = ["normalize"]
