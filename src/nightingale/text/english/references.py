"""Rules for numbers that refer to something: labels, chapter and verse, telephone and serial numbers.

"no.", "art.", "sec." and "fig." may also end a sentence ("The answer is no. 2 days later he left"). The words
before them and after the number decide.
"""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
from nightingale.text.english.rule import Rule, any_of, fill
from nightingale.text.normalized_text import Match, Part, fill_groups
from nightingale.text.tables import word_list

_REFERRING: Final = word_list("referring")
_JOINING: Final = word_list("joining")
LEADING: Final = {
    "no.": word_list("numbered_things"),
    "fig.": _REFERRING + _JOINING,
    "sec.": _REFERRING + _JOINING,
    "art.": _REFERRING,
}
"""Labels that are also words, and the words before them that make them labels."""
LEADING_IF_NOT_COUNTED: Final = {"no.": ("a", "to", "from"), "art.": _JOINING}
"""Words that make a label only if nothing is counted: "a no. 2 pencil", not "that's a no. 2 days later"."""
MAX_PLAIN_CHAPTER: Final = 20
"""Up to here two numbers in a row are understood without "verse": John three sixteen."""

_WINDOW_CHARS: Final = 32
_FIGURE: Final = r"\d+(?:[.,]\d+)*(?:[A-Za-z](?!\w)|\([a-z0-9]{1,3}\))?"
# Atomic: in "2, 3 days" the comma after the 2 must not end the number.
_FIGURES: Final = rf"(?>{_FIGURE}(?:(?:\s?[-–,&]\s?| (?:and|or|to) ){_FIGURE})*)(?!\w)"
_COUNTS: Final = rf"{_FIGURES} (?:[a-z]{{2,20}}s|more|people|men|women|children)\b"
_NOT_COUNTING: Final = (
    rf"{_FIGURES}(?=\s*$|[.;:!?)\]\"',]| [(\[]"
    r"| (?:and|or) (?:no|fig|sec|art)\.| of (?!them\b|us\b|you\b|these\b|those\b)"
    rf"| (?:{any_of('not_counted_after_label')})\b)"
)


def _is_label(label: str, before: str, after: str) -> bool:
    """Return whether an ambiguous word between a text and a number is a label."""
    if label == "No.":
        # After a question it may be the answer.
        return not re.search(r"\?[\"' ]*$", before) or re.match(_NOT_COUNTING, after) is not None
    if not before.strip(" \"'") or re.search(r"(?:[(\[:;] ?|\d(?:,| and| or| to) )[\"']?$", before):
        return True
    last = re.search(r"([A-Za-z']+\.?) $", before)
    word = last[1].lower() if last else ""
    if label != "no." and word in word_list("word_before_fruit"):
        return False
    if word in LEADING[label] or word.endswith("'s"):
        return True
    if word in LEADING_IF_NOT_COUNTED.get(label, ()):
        return re.match(_COUNTS, after) is None
    return re.match(_NOT_COUNTING, after) is not None


def _label(match: Match) -> str:
    label, text, start = match[1], match.string, match.start()
    if match[2] and (label in LEADING or label == "No."):
        before = text[max(0, start - _WINDOW_CHARS) : start]
        if not _is_label(label, before, text[match.end() :]):
            return match[0]
    return fill("{1:labels} ", match)


def _verse(match: Match) -> str:
    number = f"{words.ordinal(match['number']).capitalize()} " if match["number"] else ""
    between = " " if int(match["chapter"]) <= MAX_PLAIN_CHAPTER else " verse "
    return fill(
        "{number}{book}{short:short_books} {chapter:cardinal}"
        + between
        + "{verse:cardinal}{last: to cardinal}",
        match,
        number=number,
    )


def _groups(match: Match) -> str:
    """Read each run of digits, with commas between the runs."""
    parts = list[Part]()
    for run in re.compile(r"\d+").finditer(match.string, *match.span()):
        parts += [(None, ", "), (run.span(), "eight hundred" if run[0] == "800" else words.digits(run[0]))]
    return fill_groups(match, [(None, "plus " if match[0].startswith("+") else ""), *parts[1:]])


_BEFORE: Final = r"(?<![\w.,+/:$-])"
_AFTER: Final = r"(?![\w/%]|[.,:-]\d)"

LABEL_RULES: Final = (
    Rule(rf"(?<![\w.])({any_of('labels')})(\s?)(?=[$£€]?\.?\d)", _label),
    Rule(
        rf"(?:(?<![\w.,:])(?P<number>[123]) |\b)"
        rf"(?:(?P<book>{any_of('books')})|(?P<short>{any_of('short_books')})\b\.?) "
        r"(?P<chapter>[1-9]\d{0,2}):(?P<verse>[1-9]\d{0,2})(?:\s?[-–—]\s?(?P<last>[1-9]\d{0,2}))?"
        r"(?![\w:]|[.,]\d| ?[AaPp]\.?[Mm]\b)",
        _verse,
    ),
)

DIGIT_RULES: Final = (
    Rule(
        rf"{_BEFORE}\d{{1,3}}(?:\.\d{{1,3}}){{3}}{_AFTER}",
        lambda m: " dot ".join(map(words.digits, m[0].split("."))),
    ),
    *(
        Rule(_BEFORE + pattern + _AFTER, _groups)
        for pattern in (
            r"(?:\+?1[-. ]?)?(?:\(\d{3}\) ?|\d{3}[-. ])\d{3}[-. ]\d{4}",
            r"\+\d{1,3}(?:[-. ]?\(?\d{1,5}\)?){2,5}",
            r"\d{3}-\d{4}",
            r"\d{4}(?:[ -]\d{4}){3}",
            # Dates with a month in the middle are replaced before this rule.
            r"\d{1,6}(?:-\d{1,7}){2,6}",
        )
    ),
    Rule(
        r"\b(PIN|ZIP(?: code)?|[Zz]ip code|[Cc]ode|[Pp]asscode|[Cc]all|[Dd]ial) (\d{3,8})\b"
        r"(?!,\d| [a-z]+s\b)",
        "{1} {2:digits}",
    ),
    Rule(r"\b[Ee]xt(?:\.|ension)? (\d{1,8})\b", "extension {1:digits}"),
)
