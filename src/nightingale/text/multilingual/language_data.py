"""Access to the tables of the languages, one TOML file each in `data/`. `data/README.md` explains their keys."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

WRITTEN_FORMS: Final = ("currencies", "units", "scales", "abbreviations")
"""Tables whose keys may be several written forms: "€|EUR"."""
_DATA: Final = Path(__file__).with_name("data")


@cache
def language_table(code: str) -> dict[str, Any] | None:
    """Return the table of a language; None if it has none."""
    path = _DATA / f"{code.lower()}.toml"
    if not (code.isalpha() and path.is_file()):
        return None
    import tomllib  # late, since English needs no table

    table = tomllib.loads(path.read_text(encoding="utf-8"))
    for name in WRITTEN_FORMS:
        table[name] = {written: said for forms, said in table[name].items() for written in forms.split("|")}
    return table


@cache
def continuing_abbreviations(code: str) -> frozenset[str]:
    """Return the words whose full stop does not end a sentence, in lower case and without the full stop."""
    table = language_table(code) or {}
    written = [
        *table.get("abbreviations", {}),
        *table.get("scales", {}),
        *table.get("never_last", "").split(),
    ]
    last = table.get("may_end_sentence", "").split("|")
    kept = [one for one in written if one not in last]
    words = [word for one in kept for word in (*one.split(), "".join(one.split())) if word.endswith(".")]
    return frozenset(word[:-1].lower() for word in words)
