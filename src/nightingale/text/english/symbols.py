"""Rules for operators and for all symbols that no other rule replaced."""

from __future__ import annotations

from typing import Final

from nightingale.text.english.rule import SPACES, Rule, any_of
from nightingale.text.normalized_text import Match

COMPARISON_WORDS: Final = {"<": "less than", ">": "greater than"}


def _compared(match: Match) -> str:
    """Read "x<5" with a verb, and "<5%" without."""
    before = match.string[max(0, match.start() - 1) : match.start()]
    return f"{' is' if before.isalnum() or before in tuple(')%°') else ''} {COMPARISON_WORDS[match[1]]} "


# Before numbers become words.
COMPARISONS: Final = (
    Rule(r"\b([Ii]) <3 (?=(?!and\b|or\b|then\b)[A-Za-z])", "{1} love ", needs="<"),
    Rule(rf"\b((?i:{any_of('affectionate')}))([.,!]?) ?<3+(?![\d%]|\.\d| [a-z])", "{1}{2} ", needs="<"),
    Rule(r"(?<![<>=-])([<>])(?=[$£€+-]?\.?\d)", _compared),
    Rule(r"(?<![<>=-])(?<![\w)%°\]\"'] )([<>]) (?=[$£€+-]?\.?\d)", _compared),
)

RULES: Final = (
    Rule(r"°F\b", " degrees Fahrenheit "),
    Rule(r"°C\b", " degrees Celsius "),
    Rule(r"(?:°| degrees) ?([NSEW])(?!\w)", " degrees {1:compass}"),
    Rule(rf"\b({any_of('keys')}) ?[+-] ?(?=[A-Z0-9]\b|[A-Z][a-z])", "{1:keys} ", needs="+-"),
    Rule(r"\b([Cc])\+\+", "{1} plus plus", needs="+"),
    Rule(r"\b([CFGAD])#", "{1} sharp", needs="#"),
    Rule(r"(?:<=|=<)", " at most "),
    Rule(r">=", " at least "),
    Rule(r"(?:!=|<>)", " is not equal to "),
    Rule(r"[-=]{1,2}>|→|⇒", ", ", needs=">→⇒"),
    Rule(r"<-{1,2}(?= )", ", "),
    Rule(r"(?<=[A-Za-z)])( ?)<\1(?=[A-Za-z(])", " is less than ", needs="<"),
    Rule(r"(?<=[A-Za-z)])( ?)>\1(?=[A-Za-z(])", " is greater than ", needs=">"),
    Rule(r"(?<![A-Za-z])([A-Za-z])( ?)\*\2(?=[A-Za-z](?![A-Za-z]))", "{1} times ", needs="*"),
    Rule(r"(?<=[A-Za-z)])\^(?=[A-Za-z(])|(?<=\b[A-Za-z]) \^ (?=[A-Za-z(])", " to the power of ", needs="^"),
    Rule(r"(?<=[a-z])/(?=[a-z])", " or ", needs="/"),
    Rule(r"[/\\_^*~|]", " "),
    Rule(r"[\[{]", "("),
    Rule(r"[\]}]", ")"),
    Rule(any_of("symbols"), " {0:symbols} "),
    # A dash between words sounds like a comma; inside a word it stays.
    Rule(SPACES, " "),
    Rule(r" ?(?:—|–|--+) ?", ", ", needs="—–-"),
    Rule(r" -+(?= |$)|(?<= )-+ ?|^-+ ?", ", ", needs="-"),
    Rule(r"-+(?![A-Za-z])", ""),
    Rule(r"(?<![A-Za-z])-+", " ", needs="-"),
    # Spaces, and marks that are left without a word between them.
    Rule(r"[^A-Za-z.,!?;:'\"()-]+", " "),
    Rule(r"\(\s*[.,!?;:'\"\s-]*\)", " "),
    Rule(r"\(\s+", "("),
    Rule(r" (?=[.,!?;:)])", ""),
    Rule(r"[,;:](?:\s*[,;:])+", ","),
    Rule(r"[,;:]+(?=[.!?])", ""),
    Rule(r"(?<=[.!?])\s*[,;:]+", ""),
    Rule(r"(?<=[.!?,;:])(?=[A-Za-z(])", " "),
    Rule(r"\.{4,}", "..."),
    Rule(r"([!?]{3})[!?]+", "{1}"),
    Rule(SPACES, " "),
    Rule(r"^[\s.,!?;:)-]+", ""),
)
