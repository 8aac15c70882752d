"""The 23 languages of the multilingual models. To add one, write a module here and a row in the table."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from nightingale.errors import UnsupportedLanguage
from nightingale.text.languages import he, ja, ko, ru, zh
from nightingale.text.languages.language import Language

LANGUAGES: Final[dict[str, Language]] = {
    "ar": Language(code="ar", name="Arabic"),
    "da": Language(code="da", name="Danish"),
    "de": Language(code="de", name="German"),
    "el": Language(code="el", name="Greek"),
    "en": Language(code="en", name="English"),
    "es": Language(code="es", name="Spanish"),
    "fi": Language(code="fi", name="Finnish"),
    "fr": Language(code="fr", name="French"),
    "he": Language(code="he", name="Hebrew", open_step=he.open_step),
    "hi": Language(code="hi", name="Hindi"),
    "it": Language(code="it", name="Italian"),
    "ja": Language(code="ja", name="Japanese", open_step=ja.open_step),
    "ko": Language(code="ko", name="Korean", open_step=ko.open_step),
    "ms": Language(code="ms", name="Malay"),
    "nl": Language(code="nl", name="Dutch"),
    "no": Language(code="no", name="Norwegian"),
    "pl": Language(code="pl", name="Polish"),
    "pt": Language(code="pt", name="Portuguese"),
    "ru": Language(code="ru", name="Russian", open_step=ru.open_step),
    "sv": Language(code="sv", name="Swedish"),
    "sw": Language(code="sw", name="Swahili"),
    "tr": Language(code="tr", name="Turkish"),
    "zh": Language(code="zh", name="Chinese", open_step=zh.open_step),
}


def check_language(code: str, known: Iterable[str] = tuple(LANGUAGES)) -> str:
    """Return the code in lower case, or raise `UnsupportedLanguage` if it is not one of `known`."""
    allowed = sorted(known)
    if code.lower() in allowed:
        return code.lower()
    hint = _nearest(code, allowed)
    raise UnsupportedLanguage(
        "this model does not support that language",
        got=repr(code),
        allowed=", ".join(allowed),
        fix=f"Did you mean {hint!r}?" if hint else "Choose one of these codes.",
    )


def _nearest(code: str, allowed: list[str]) -> str | None:
    """Return the code closest to a regional tag (pt-BR), a name (French) or a misspelling (fre)."""
    base = code.lower().replace("_", "-").split("-")[0].strip()
    names = {LANGUAGES[known].name.lower(): known for known in allowed if known in LANGUAGES}
    found = get_close_matches(base, [*allowed, *names], n=1, cutoff=0.6)
    return names.get(found[0], found[0]) if found else None
