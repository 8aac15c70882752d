"""Rules for chapter and verse: "Psalm 23:4" is neither a time nor a ratio."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
from nightingale.text.english.rule import Rule, any_of, listed, rule

BOOKS: Final = listed(
    "Genesis Exodus Leviticus Numbers Deuteronomy Joshua Judges Ruth Samuel Kings Chronicles Ezra Nehemiah "
    "Esther Job Psalm Psalms Proverbs Ecclesiastes Isaiah Jeremiah Lamentations Ezekiel Daniel Hosea Joel "
    "Amos Obadiah Jonah Micah Nahum Habakkuk Zephaniah Haggai Zechariah Malachi Matthew Mark Luke John Acts "
    "Romans Corinthians Galatians Ephesians Philippians Colossians Thessalonians Timothy Titus Philemon "
    "Hebrews James Peter Jude Revelation Surah Sura Quran"
)
SHORT: Final = {
    "Gen": "Genesis", "Exod": "Exodus", "Lev": "Leviticus", "Deut": "Deuteronomy", "Ps": "Psalm",
    "Prov": "Proverbs", "Eccl": "Ecclesiastes", "Isa": "Isaiah", "Jer": "Jeremiah", "Ezek": "Ezekiel",
    "Matt": "Matthew", "Rom": "Romans", "Cor": "Corinthians", "Gal": "Galatians", "Eph": "Ephesians",
    "Phil": "Philippians", "Heb": "Hebrews", "Rev": "Revelation",
}  # fmt: skip
ORDINALS: Final = {"1": "First ", "2": "Second ", "3": "Third ", "": ""}
MAX_PLAIN_CHAPTER: Final = 20
"""Up to here two numbers in a row are understood without "verse": John three sixteen."""


def _verse(match: re.Match[str]) -> str:
    chapter = int(match["chapter"])
    between = " " if chapter <= MAX_PLAIN_CHAPTER else " verse "
    said = f"{words.cardinal(chapter)}{between}{words.cardinal(int(match['verse']))}"
    if match["last"]:
        said += f" to {words.cardinal(int(match['last']))}"
    book = match["book"].rstrip(".")
    book = SHORT.get(book, book)
    return f"{ORDINALS[match['number'] or '']}{book} {said}"


RULES: Final[tuple[Rule, ...]] = (
    rule(
        rf"(?:(?<![\w.,:])(?P<number>[123]) |\b)(?P<book>(?:{any_of(BOOKS)})|(?:{any_of(SHORT)})\b\.?) "
        r"(?P<chapter>[1-9]\d{0,2}):(?P<verse>[1-9]\d{0,2})(?:\s?[-–—]\s?(?P<last>[1-9]\d{0,2}))?"
        r"(?![\w:]|[.,]\d| ?[AaPp]\.?[Mm]\b)",
        _verse,
    ),
)
