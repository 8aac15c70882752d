"""Rules for numbers that refer to something: labels, chapter and verse, telephone and serial numbers.

"no.", "art.", "sec." and "fig." may also end a sentence ("The answer is no. 2 days later he left"). The words
before them and after the number decide.
"""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
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


LABEL_RULES: Final[tuple[Rule, ...]] = (rule(rf"(?<![\w.])({any_of(LABELS)})(\s?)(?=[$£€]?\.?\d)", _label),)

BOOKS: Final = listed(
    "Genesis Exodus Leviticus Numbers Deuteronomy Joshua Judges Ruth Samuel Kings Chronicles Ezra Nehemiah "
    "Esther Job Psalm Psalms Proverbs Ecclesiastes Isaiah Jeremiah Lamentations Ezekiel Daniel Hosea Joel "
    "Amos Obadiah Jonah Micah Nahum Habakkuk Zephaniah Haggai Zechariah Malachi Matthew Mark Luke John Acts "
    "Romans Corinthians Galatians Ephesians Philippians Colossians Thessalonians Timothy Titus Philemon "
    "Hebrews James Peter Jude Revelation Surah Sura Quran"
)
SHORT_BOOKS: Final = {
    "Gen": "Genesis", "Exod": "Exodus", "Lev": "Leviticus", "Deut": "Deuteronomy", "Ps": "Psalm",
    "Prov": "Proverbs", "Eccl": "Ecclesiastes", "Isa": "Isaiah", "Jer": "Jeremiah", "Ezek": "Ezekiel",
    "Matt": "Matthew", "Rom": "Romans", "Cor": "Corinthians", "Gal": "Galatians", "Eph": "Ephesians",
    "Phil": "Philippians", "Heb": "Hebrews", "Rev": "Revelation",
}  # fmt: skip
BOOK_NUMBERS: Final = {"1": "First ", "2": "Second ", "3": "Third ", "": ""}
MAX_PLAIN_CHAPTER: Final = 20
"""Up to here two numbers in a row are understood without "verse": John three sixteen."""


def _verse(match: re.Match[str]) -> str:
    chapter = int(match["chapter"])
    between = " " if chapter <= MAX_PLAIN_CHAPTER else " verse "
    said = f"{words.cardinal(chapter)}{between}{words.cardinal(int(match['verse']))}"
    if match["last"]:
        said += f" to {words.cardinal(int(match['last']))}"
    book = match["book"].rstrip(".")
    book = SHORT_BOOKS.get(book, book)
    return f"{BOOK_NUMBERS[match['number'] or '']}{book} {said}"


VERSE_RULES: Final[tuple[Rule, ...]] = (
    rule(
        rf"(?:(?<![\w.,:])(?P<number>[123]) |\b)(?P<book>(?:{any_of(BOOKS)})|(?:{any_of(SHORT_BOOKS)})\b\.?) "
        r"(?P<chapter>[1-9]\d{0,2}):(?P<verse>[1-9]\d{0,2})(?:\s?[-–—]\s?(?P<last>[1-9]\d{0,2}))?"
        r"(?![\w:]|[.,]\d| ?[AaPp]\.?[Mm]\b)",
        _verse,
    ),
)


def _groups(figures: str) -> str:
    """Read each run of digits, with commas between the runs."""
    runs = re.findall(r"\d+", figures)
    said = ["eight hundred" if run == "800" else words.digits(run) for run in runs]
    return ("plus " if figures.lstrip().startswith("+") else "") + ", ".join(said)


_BEFORE: Final = r"(?<![\w.,+/:$-])"
_AFTER: Final = r"(?![\w/%]|[.,:-]\d)"

DIGIT_RULES: Final[tuple[Rule, ...]] = (
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
