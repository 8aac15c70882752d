"""The 23 languages of the multilingual models."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from nightingale.errors import UnsupportedLanguage

LANGUAGES: Final = {
    "ar": "Arabic", "da": "Danish", "de": "German", "el": "Greek", "en": "English", "es": "Spanish",
    "fi": "Finnish", "fr": "French", "he": "Hebrew", "hi": "Hindi", "it": "Italian", "ja": "Japanese",
    "ko": "Korean", "ms": "Malay", "nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese",
    "ru": "Russian", "sv": "Swedish", "sw": "Swahili", "tr": "Turkish", "zh": "Chinese",
}  # fmt: skip
"""Code -> English name. `language_steps.STEPS` has the languages that need a step before the vocabulary."""


def check_language(code: str, known: Iterable[str] = tuple(LANGUAGES)) -> str:
    """Return the code in lower case without a region (pt-BR is pt), or raise UnsupportedLanguage."""
    allowed = sorted(known)
    base = code.lower().replace("_", "-").split("-")[0].strip()
    if base in allowed:
        return base
    # The closest code to a name (French) or a misspelling (fre).
    names = {LANGUAGES[known].lower(): known for known in allowed if known in LANGUAGES}
    found = get_close_matches(base, [*allowed, *names], n=1, cutoff=0.6)
    raise UnsupportedLanguage(
        "this model does not support that language",
        got=repr(code),
        allowed=", ".join(allowed),
        fix=f"Did you mean {names.get(found[0], found[0])!r}?" if found else "Choose one of these codes.",
    )
