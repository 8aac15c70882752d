"""Text for training: raw public-domain text is turned into clean lines.

Wren reads what the English normalizer emits: letters, spaces and nine punctuation marks, never a digit
or a symbol. A raw line is either turned into that form here or dropped; an ambiguous line is dropped,
because there is more free text than training time. Case is kept, since the teachers' phonemizer uses it
("Polish", "F B I"); wren itself sees the lower-cased line.

Sources: Common Voice sentence lists (CC0), Standard Ebooks (US public domain, edition CC0) and our own
templates (`nightingale_lab.train.templates`). The test sentences are excluded from all of them.
"""

from __future__ import annotations

import html
import random
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator

MAX_WORDS = 60

_ALLOWED = re.compile(r"[A-Za-z .,!?;:'\"-]+")
_QUOTES = str.maketrans("“”„«»’ʼ", '"""""\'\'', "\u2060\u00ad")
_TITLES = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miss", "Dr": "Doctor", "St": "Saint", "Prof": "Professor",
    "Capt": "Captain", "Col": "Colonel", "Gen": "General", "Lt": "Lieutenant", "Sgt": "Sergeant",
    "Rev": "Reverend", "Hon": "Honorable", "Gov": "Governor", "Sen": "Senator", "Messrs": "Messers",
    "Jr": "Junior", "Sr": "Senior", "No": "Number", "vs": "versus", "etc": "et cetera",
}  # fmt: skip
_TITLE = re.compile(r"\b(" + "|".join(_TITLES) + r")\.(?=\s+[A-Z]|\s*$|,)")
_NOT_TITLE = re.compile(r"\bNo\.(?!\s+[A-Z]?\d)")  # "No." alone is an answer, not "number"
_DASH = re.compile(r"\s*(?:[—–―‒]|-{2,}|\s-\s)\s*")
_ELLIPSIS = re.compile(r"\s*(?:…|\.\s?\.\s?\.)\s*")
_ELISIONS = {"em", "tis", "twas", "twill", "til", "cause", "bout", "round"}
_SENTENCE_END = re.compile(r"(?<=[.!?])(?P<close>[\"']?)\s+(?=[\"']?[A-Z])")
_ACRONYM = re.compile(r"\b[A-Z]{2,5}s?\b")
_CAPITALS = re.compile(r"\b[A-Z]{2,}(?=s?\b)")
_SAID_AS_WORD = frozenset({"NASA", "NATO", "UNESCO", "UNICEF", "OPEC", "AIDS", "FIFA", "NAFTA"})
_SPELLED = frozenset({
    "US", "IT", "AM", "PM", "UN", "EU", "UK", "AI", "IQ", "ID", "IRS", "AD", "VIP", "CEO", "USA", "FBI",
    "CIA", "UFO", "USB", "API", "CPU", "GPU", "URL", "IBM", "ATM", "DNA", "RNA", "ESPN", "HIV", "UCLA", "NYU",
    "MIT", "OK", "IOU", "LA", "EP", "GI", "YMCA", "UV", "SUV", "EST", "PHD",
})  # fmt: skip
# Slurs and strong language of old novels are left out.
_UNWANTED = re.compile(
    r"\b(?:nigg\w*|darkies|darky|chinam[ae]n|chinks?|kikes?|coons?|squaws?|wops?|dagos?|faggots?|fuck\w*"
    r"|shit\w*|cunts?|bitch\w*|whores?|rap(?:e|ed|ist)|bastards?|sluts?|porn\w*|wank\w*)\b",
    re.IGNORECASE,
)


def key(text: str) -> str:
    """Return the lower-cased letters of a sentence, which identify it whatever its punctuation."""
    return " ".join(re.sub(r"[^a-z]+", " ", text.lower().replace("'", "")).split())


def clean(raw: str, *, max_words: int = MAX_WORDS) -> str | None:
    """Return `raw` in the alphabet that wren reads, or None when that would be ambiguous."""
    text = html.unescape(raw).translate(_QUOTES)
    text = _single_quotes(text)
    text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    text = _titles(text)
    text = text.replace("&", " and ").replace("%", " percent ")
    text = re.sub(r"[(\[]([^)\]]*)[)\]]", r", \1, ", text)
    text = _ELLIPSIS.sub(lambda m: ". " if not text[m.end() :].strip(" \"'") else ", ", text)
    text = _DASH.sub(", ", text)
    text = _tidy_marks(text)
    if not text or not _ALLOWED.fullmatch(text) or _UNWANTED.search(text):
        return None
    if re.search(r"[A-Za-z]\.[A-Za-z]|\b[A-Z]\.|\.\s+[a-z]|[a-z][A-Z]", text):
        return None  # initials, abbreviations, CamelCase: their reading is ambiguous
    spelled = _acronyms(text)
    if spelled is None:
        return None
    text = spelled
    words = text.split()
    if text.count('"') % 2:
        text = text.replace('"', "")
    if not 1 <= len(words) <= max_words or max(map(len, words)) > 24 or not re.search("[A-Za-z]", text):
        return None
    if text[-1].isalpha():
        text += "."
    return text[0].upper() + text[1:] if text[0].islower() else text


def _titles(text: str) -> str:
    return _TITLE.sub(lambda m: m[0] if _NOT_TITLE.match(m[0]) else _TITLES[m[1]], text)


def _single_quotes(text: str) -> str:
    """Single quotation marks become double ones; apostrophes stay only inside or after a word."""
    if "‘" in text:
        text = re.sub(r"‘([^‘]*?[.,!?;:])'", r'"\1"', text)
        text = re.sub(r"‘([^‘']*)'(?![A-Za-z])", r'"\1"', text).replace("‘", "'")

    def keep(match: re.Match[str]) -> str:
        before = text[match.start() - 1] if match.start() else " "
        after = text[match.end() :]
        if before.isalpha() and after[:1].isalpha():
            return "'"
        if before in "sS" and (not after or not after[0].isalpha()):
            return "'"
        leading = re.match(r"[a-z]+", after.lower())
        return "'" if leading and leading[0] in _ELISIONS and not before.isalpha() else ""

    return re.sub("'", keep, text)


def _tidy_marks(text: str) -> str:
    text = re.sub(r"(?<![A-Za-z])-|-(?![A-Za-z])", " ", text)
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"\s+([.,!?;:])", r"\1", text)
    text = re.sub(r"[,;:]+(?=[.,!?;:])|(?<=[.!?])[,;:]+", "", text)
    text = re.sub(r"([.,;:])\1+", r"\1", text)
    text = re.sub(r"([!?])[.!?]+", r"\1", text)
    text = re.sub(r"([,;:])(?=[A-Za-z])", r"\1 ", text)
    text = re.sub(r'""|" "(?=$)', "", text)
    return text.strip(" ,;:-")


def _acronyms(text: str) -> str | None:
    """Spell out acronyms that are read letter by letter; return None where the reading is ambiguous."""
    if any(
        word not in _SAID_AS_WORD | _SPELLED and re.search("[AEIOUY]", word)
        for word in _CAPITALS.findall(text)
    ):
        return None

    def spell(match: re.Match[str]) -> str:
        word, plural = (match[0][:-1], "'s") if match[0].endswith("s") else (match[0], "")
        return match[0] if word in _SAID_AS_WORD else " ".join(word) + plural

    return _ACRONYM.sub(spell, text)


def sentences(paragraph: str) -> list[str]:
    """Split a paragraph into raw sentences; the full stop of a title does not end one."""
    guarded = _TITLE.sub(
        lambda m: m[0] if _NOT_TITLE.match(m[0]) else _TITLES[m[1]], paragraph.translate(_QUOTES)
    )
    parts, start = [], 0
    for match in _SENTENCE_END.finditer(guarded):
        parts.append(guarded[start : match.start()] + match["close"])
        start = match.end()
    return [p.strip() for p in [*parts, guarded[start:]] if p.strip()]


def paragraphs(xhtml: str) -> Iterator[str]:
    """Yield the text of the `<p>` elements of a Standard Ebooks chapter, without notes and markup."""
    body = re.sub(r"<a [^>]*noteref[^>]*>.*?</a>", "", xhtml, flags=re.DOTALL)
    for match in re.finditer(r"<p(?:\s[^>]*)?>(.*?)</p>", body, flags=re.DOTALL):
        text = re.sub(r"<br\s*/?>", " ", match[1])
        yield " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split())


def book_lines(xhtml: str, rng: random.Random, *, run_share: float = 0.2) -> Iterator[str]:
    """Yield clean lines of a chapter: mostly single sentences, and runs of consecutive ones up to 60 words.

    Runs have pauses between sentences, and lengths without training data cause runaways.
    """
    for paragraph in paragraphs(xhtml):
        parts = [c for c in map(clean, sentences(paragraph)) if c]
        index = 0
        while index < len(parts):
            take, target = 1, 0
            if rng.random() < run_share:
                target = rng.choice((15, 25, 40, MAX_WORDS))
            count = len(parts[index].split())
            while index + take < len(parts) and count + len(parts[index + take].split()) <= target:
                count += len(parts[index + take].split())
                take += 1
            yield " ".join(parts[index : index + take])
            index += take


class Exclusion:
    """Detects lines that contain a test sentence, as a whole or inside a longer line."""

    def __init__(self, held_out: Iterable[str]) -> None:
        whole: set[str] = set()
        inner: set[tuple[str, ...]] = set()
        for text in held_out:
            for part in [text, *sentences(text)]:
                whole.add(key(part))
                words = tuple(key(part).split())
                if len(words) >= 4:
                    inner.add(words)
        self._whole, self._inner = whole, inner
        self._heads = {words[:4] for words in inner}
        self._lengths = sorted({len(words) for words in inner})

    def hits(self, text: str) -> bool:
        if key(text) in self._whole:
            return True
        words = tuple(key(text).split())
        for at in range(len(words) - 3):
            if words[at : at + 4] in self._heads and any(
                words[at : at + n] in self._inner for n in self._lengths
            ):
                return True
        return False


def unique(lines: Iterable[str], *, excluded: Exclusion, seen: set[str] | None = None) -> Iterator[str]:
    """Yield `lines` without repeats and without held-out sentences, in order."""
    known = set() if seen is None else seen
    for line in lines:
        identity = key(line)
        if identity and identity not in known and not excluded.hits(line):
            known.add(identity)
            yield line


def vocabulary(lines: Iterable[str]) -> dict[str, int]:
    """Return the number of occurrences of each lower-cased word."""
    counts: dict[str, int] = {}
    for line in lines:
        for word in re.findall(r"[a-z]+(?:'[a-z]+)*", line.lower()):
            counts[word] = counts.get(word, 0) + 1
    return counts


def missing_words(counts: Collection[str], wanted: Iterable[str]) -> list[str]:
    """Return the words of `wanted` that no line contains."""
    return [word for word in wanted if word.lower() not in counts]
