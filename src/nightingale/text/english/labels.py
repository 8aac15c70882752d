"""Rules for labels before a number: No. 5, fig. 3, § 2, ~20.

"no.", "art.", "sec." and "fig." may also end a sentence ("The answer is no. 2 days later he left"). The words
before them and after the number decide.
"""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english.rule import Rule, any_of, listed, rule

LABELS: Final = {
    "No.": "number", "no.": "number", "Nos.": "numbers", "#": "number", "p.": "page", "pp.": "pages",
    "pg.": "page", "vol.": "volume", "Vol.": "Volume", "ch.": "chapter", "Ch.": "Chapter",
    "fig.": "figure", "Fig.": "Figure", "eq.": "equation", "Eq.": "Equation", "sec.": "section",
    "Sec.": "Section", "§": "section", "art.": "article", "Art.": "Article",
    "approx.": "approximately", "ca.": "circa", "c.": "circa", "~": "about", "≈": "approximately",
    "±": "plus or minus",
}  # fmt: skip

_REFERRING: Final = frozenset(listed("see also under per cf. compare both"))
_JOINING: Final = frozenset(listed("in and or to from by with"))
_NUMBERED: Final = frozenset(
    listed(
        "the our my his her its their your at under per see cf. versus ranked rated seeded number item order "
        "invoice ticket lot case exhibit model part serial patient question track volume issue platform gate "
        "seat table room apartment unit house building bus train tram flight line route channel player seed "
        "symphony sonata concerto quartet opus waltz prelude nocturne act bill law resolution decree patent "
        "convention account policy reference file job step rule point reason problem priority psalm page"
    )
)
LEADING: Final = {
    "no.": _NUMBERED,
    "fig.": _REFERRING | _JOINING,
    "sec.": _REFERRING | _JOINING,
    "art.": _REFERRING,
}
"""Labels that are also words, and the words before them that make them labels."""
LEADING_IF_NOT_COUNTED: Final = {"no.": frozenset({"a", "to", "from"}), "art.": _JOINING}
"""Words that make a label only if nothing is counted: "a no. 2 pencil", not "that's a no. 2 days later"."""
WORD_AFTER: Final = listed("a an one another the this that half")
"""After these, "fig" is the fruit and "sec" a second."""
NOT_COUNTED: Final = listed(
    "in is was has had will shall above below shows showed says states provides requires applies too again"
)
"""Words after the number that it does not count."""

_WINDOW_CHARS: Final = 32
_LAST_WORD: Final = re.compile(r"([A-Za-z']+\.?) $")
_FIGURE: Final = r"\d+(?:[.,]\d+)*(?:[A-Za-z](?!\w)|\([a-z0-9]{1,3}\))?"
# Atomic: in "2, 3 days" the comma after the 2 must not end the number.
_FIGURES: Final = rf"(?>{_FIGURE}(?:(?:\s?[-–,&]\s?| (?:and|or|to) ){_FIGURE})*)(?!\w)"
_COUNTS: Final = re.compile(rf"{_FIGURES} (?:[a-z]{{2,20}}s|more|people|men|women|children)\b")
_NOT_COUNTING: Final = re.compile(
    rf"{_FIGURES}(?=\s*$|[.;:!?)\]\"',]| [(\[]"
    r"| (?:and|or) (?:no|fig|sec|art)\.| of (?!them\b|us\b|you\b|these\b|those\b)"
    rf"| (?:{any_of(NOT_COUNTED)})\b)"
)


def _is_label(label: str, text: str, start: int, end: int) -> bool:
    """Return whether an ambiguous word from `start` to the number at `end` is a label."""
    before = text[max(0, start - _WINDOW_CHARS) : start]
    if label == "No.":
        # After a question it may be the answer.
        return not re.search(r"\?[\"' ]*$", before) or _NOT_COUNTING.match(text, end) is not None
    if not before.strip(" \"'") or re.search(r"(?:[(\[:;] ?|\d(?:,| and| or| to) )[\"']?$", before):
        return True
    last = _LAST_WORD.search(before)
    word = last[1].lower() if last else ""
    if label != "no." and word in WORD_AFTER:
        return False
    if word in LEADING[label] or word.endswith("'s"):
        return True
    if word in LEADING_IF_NOT_COUNTED.get(label, ()):
        return _COUNTS.match(text, end) is None
    return _NOT_COUNTING.match(text, end) is not None


def _label(match: re.Match[str]) -> str:
    label, gap = match[1], match[2]
    unsure = gap and (label in LEADING or label == "No.")
    if unsure and not _is_label(label, match.string, match.start(), match.end()):
        return match[0]
    return f"{LABELS[label]} "


RULES: Final[tuple[Rule, ...]] = (rule(rf"(?<![\w.])({any_of(LABELS)})(\s?)(?=[$£€]?\.?\d)", _label),)
