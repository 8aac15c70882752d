"""Rules for telephone, network address, card and serial numbers, which are read digit by digit."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
from nightingale.text.english.rule import Rule, rule


def _groups(figures: str) -> str:
    """Read each run of digits, with commas between the runs."""
    runs = re.findall(r"\d+", figures)
    said = ["eight hundred" if run == "800" else words.digits(run) for run in runs]
    return ("plus " if figures.lstrip().startswith("+") else "") + ", ".join(said)


_BEFORE: Final = r"(?<![\w.,+/:$-])"
_AFTER: Final = r"(?![\w/%]|[.,:-]\d)"

RULES: Final[tuple[Rule, ...]] = (
    rule(
        rf"{_BEFORE}\d{{1,3}}(?:\.\d{{1,3}}){{3}}{_AFTER}",
        lambda m: " dot ".join(words.digits(part) for part in m[0].split(".")),
    ),
    rule(
        rf"{_BEFORE}(?:\+?1[-. ]?)?(?:\(\d{{3}}\) ?|\d{{3}}[-. ])\d{{3}}[-. ]\d{{4}}{_AFTER}",
        lambda m: _groups(m[0]),
    ),
    rule(rf"{_BEFORE}\+\d{{1,3}}(?:[-. ]?\(?\d{{1,5}}\)?){{2,5}}{_AFTER}", lambda m: _groups(m[0])),
    rule(rf"{_BEFORE}\d{{3}}-\d{{4}}{_AFTER}", lambda m: _groups(m[0])),
    rule(rf"{_BEFORE}\d{{4}}(?:[ -]\d{{4}}){{3}}{_AFTER}", lambda m: _groups(m[0])),
    # Dates with a month in the middle are replaced before this rule.
    rule(rf"{_BEFORE}\d{{1,6}}(?:-\d{{1,7}}){{2,6}}{_AFTER}", lambda m: _groups(m[0])),
    rule(
        r"\b(PIN|ZIP(?: code)?|[Zz]ip code|[Cc]ode|[Pp]asscode|[Cc]all|[Dd]ial) (\d{3,8})\b"
        r"(?!,\d| [a-z]+s\b)",
        lambda m: f"{m[1]} {words.digits(m[2])}",
    ),
    rule(r"\b[Ee]xt(?:\.|ension)? (\d{1,8})\b", lambda m: f"extension {words.digits(m[1])}"),
)
