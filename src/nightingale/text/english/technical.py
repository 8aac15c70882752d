"""Rules for technical notation: algebra, versions, network addresses, codes, formulas and hexadecimal numbers."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
from nightingale.text.english.rule import Rule, any_of, fill
from nightingale.text.normalized_text import Match

_VARIABLE: Final = "[abcknptxyz]"
"""Letters that usually are variables."""
_OPERAND: Final = rf"(?=[\d(]|{_VARIABLE}(?!['\w]))"
_IPV4: Final = r"\d{1,3}(?:\.\d{1,3}){3}"
_ELEMENT: Final = any_of("elements")


def port(figures: str) -> str:
    """Read the number of a port: 8080 is "eighty eighty"."""
    if len(figures) == 5:
        return words.digits(figures)
    return words.whole(figures) if figures.endswith("000") else words.paired(figures)


def _address(match: Match) -> str:
    said = " dot ".join(map(words.digits, match[1].split(".")))
    if match["size"]:
        said += f" slash {words.cardinal(match['size'])}"
    return said + (f" port {port(match['port'])}" if match["port"] else "")


def _over(match: Match) -> str:
    """Read a blood pressure, whose numbers have a range of their own."""
    above, below = int(match[1]), int(match[2])
    is_pressure = 70 <= above <= 250 and 40 <= below <= 150 and above > below
    return f"{match[1]} over {match[2]}" if is_pressure and below != 100 else match[0]


def _formula(match: Match) -> str:
    """Spell a chemical formula: H2SO4 is "H two S O four"."""
    if not re.search(r"\d", match[0]):
        return match[0]
    return " ".join(
        words.whole(part) if part.isdigit() else part.upper()
        for part in re.findall(r"\d+|[A-Za-z]", match[0])
    )


def _hexadecimal(match: Match) -> str:
    return "zero x " + spell_code(match[1])


def spell_code(code: str) -> str:
    """Spell letters and digits one by one."""
    return " ".join(words.SMALL[int(one)] if one.isdigit() else one.upper() for one in code)


def _release(match: Match) -> str:
    version = "version " if match["v"] else ""
    number = f" {match['number']}" if match["number"] else ""
    return f"{version}{match['figures']} " + fill("{mark:release_marks}", match) + number


ALGEBRA: Final = (
    Rule(r"\b([fgh])\(([a-z])\)(?= ?=)", "{1} of {2}", needs="="),
    # A number before a variable is its factor if an operator follows or precedes.
    Rule(rf"(?<![\w.,])(\d{{1,9}})({_VARIABLE})(?= ?[-+=^−] ?[\w(]|\*\*)", "{1} {2}"),
    Rule(rf"(?<=[-+=/] )(\d{{1,9}})({_VARIABLE})(?!['\w])", "{1} {2}"),
    Rule(
        rf"(?<![\w'])(-?{_VARIABLE}|\d{{1,9}} {_VARIABLE}) / (?=\d|{_VARIABLE}(?!['\w]))",
        "{1} over ",
        needs="/",
    ),
    Rule(r"(?<=\d) / (?=\d)", " divided by ", needs="/"),
    # The article "a" needs an equation around it.
    Rule(rf"(?<![\w'])([bcknptxyz]|\d {_VARIABLE}|\)) - {_OPERAND}", "{1} minus ", needs="-"),
    Rule(r"(?<![\w'])(a) - (?=[\w ()+*-]{1,30}=)", "{1} minus ", needs="="),
    Rule(rf"(?<== )({_VARIABLE}) - {_OPERAND}", "{1} minus ", needs="="),
    Rule(rf"(?:(?<=squared)|(?<=cubed)) {{1,3}}- {_OPERAND}", " minus ", needs="-"),
    Rule(rf"(?:(?<=[=(+*])|(?<=[ =(]))-({_VARIABLE})(?!['\w-])", "minus {1}", needs="-"),
    Rule(r"(?<=\d) ?[x×] ?(?=\d[\d.,]{0,20} ?=)", " times ", needs="="),
    Rule(r" ?&& ?", " and ", needs="&"),
)

CODES: Final = (
    Rule(
        rf"(?<![\w.])({_IPV4})(?:/(?P<size>\d{{1,2}}))?(?::(?P<port>\d{{2,5}}))?(?![\w/]|[.:-]\d)", _address
    ),
    Rule(
        r"(?<![\w.])802\.(\d{1,2})([a-z]{0,2})\b",
        lambda m: f"eight oh two dot {words.whole(m[1])} {' '.join(m[2])}",
    ),
    Rule(r"\b(localhost):(\d{2,5})\b", lambda m: f"{m[1]} port {port(m[2])}"),
    Rule(r"(?<![\w.])0x([0-9A-Fa-f]{1,32})\b", _hexadecimal),
    Rule(
        r"(?<![\w.])(?P<v>v(?:er)?\.? ?)?(?P<figures>\d{1,9}(?:\.\d{1,9}){1,5})[-.]?"
        rf"(?P<mark>{any_of('release_marks')})(?:(?<![-\d.][ab])|(?=\d))[-.]?(?P<number>\d{{1,9}})?(?![\w])",
        _release,
    ),
    Rule(rf"(?<![\w.-])(?:(?:{_ELEMENT})\d{{0,3}}){{2,12}}(?![\w-])", _formula),
    Rule(r"(?<![\w/.,])(\d{2,3})/(\d{2,3})(?![\w/]|[.,]\d)", _over),
    Rule(r"(?<![\w.])([Nn])o\. (?=[A-Z]{1,4}-?\d)", "{1}umber "),
    Rule(
        r"(?<![\w-])([A-Z]{1,5})-(\d{3,4})-(?:(\d{1,6})|([A-Z]{1,3}))(?![\w-])",
        "{1} {2:paired}{3: digits}{4: }",
    ),
    Rule(r"(?<![\w.])(\d{1,4})([A-Z]{2,4})(\d{1,4})(?!\w)", lambda m: spell_code(m[0])),
    Rule(rf"\b({any_of('coded')})(\.?) (\d{{1,4}})([A-Z])(?!\w)", "{1}{2} {3:paired} {4}"),
    Rule(r"\b([Ff]light [A-Z]{2}) ?(\d{4})(?!\w)", "{1} {2:paired}"),
    Rule(r"\b([QH])([1-4]),? (?=20\d\d\b)(\d{4})", "{1} {2:cardinal} {3:year}"),
    Rule(
        rf"(?<=, )({any_of('states')}) (\d{{5}})(?:-(\d{{4}}))?(?![\w-])", "{1:states} {2:digits}{3:, digits}"
    ),
    Rule(r"\b((?:[Zz]ip|ZIP)(?: [Cc]ode)?(?::| is| was)) (\d{5})(?![\w,-])", "{1} {2:digits}"),
    Rule(
        rf"\b((?:{any_of('record_cues')}) )([1-9]\d?)-(\d|[1-9]\d)-(\d|1\d)(?![\w-])",
        "{1}{2:cardinal}, {3:cardinal} and {4:cardinal}",
    ),
    # Ratings: with a decimal, with a word before or after, or of a number that no fraction has.
    Rule(r"(?<![\w/.,])(\d{1,3}\.\d)/(5|10|20|100)(?![\w/]|[.,]\d)", "{1:number} out of {2:cardinal}"),
    Rule(rf"(?<![\w/.,])(\d{{1,3}})/(\d{{1,3}})(?= (?:{any_of('rated')})\b)", "{1:whole} out of {2:whole}"),
    Rule(
        rf"\b((?:{any_of('rating_cues')}):? )"
        r"(\d{1,3})/(5|10|20|50|100)(?![\w/]|[.,]\d| of\b)",
        "{1}{2:whole} out of {3:whole}",
    ),
)
