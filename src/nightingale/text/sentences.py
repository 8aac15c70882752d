"""Long text to pieces that can be spoken in one breath.

A small model has heard utterances of some twenty seconds at most; beyond that it loses its place. So text is
cut where a reader would pause: after sentences first; inside a long sentence after a semicolon or colon, then
after a comma, then between words; and only where there is nothing else, inside a word. Very short sentences
join their neighbours, because a lone word gives a model little to hold on to.
"""

from __future__ import annotations

import math
import re
from typing import Final

SHORT_CHARS: Final = 24
"""A sentence shorter than this joins the next one, if both fit."""
ABBREVIATIONS: Final = frozenset({
    "mr", "mrs", "ms", "dr", "prof", "rev", "hon", "st", "sr", "jr", "gen", "col", "capt", "lt", "sgt", "gov",
    "sen", "rep", "pres", "messrs", "mme", "mlle", "vs", "e.g", "i.e", "cf", "approx", "dept", "est", "fig",
    "inc", "ltd", "co", "corp", "ave", "blvd", "rd", "mt", "ft", "vol", "ch", "pp",
    "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec",
})  # fmt: skip
"""Words whose full stop does not end a sentence. In spoken form most are written out already."""

_CLOSERS: Final = "\"'”’)]»"
_MARK: Final = re.compile(rf"[.!?…]+[{re.escape(_CLOSERS)}]*(?=\s)")
_PARAGRAPH: Final = re.compile(r"\n\s*\n")
_OPENERS: Final = "\"'“‘([«¿¡-–— "
_CUTS: Final = (
    _MARK,
    re.compile(rf"[;:][{re.escape(_CLOSERS)}]*(?=\s)|\s[-–—](?=\s)|—"),
    re.compile(rf",[{re.escape(_CLOSERS)}]*(?=\s)"),
    re.compile(r"(?=\s)"),
)
"""Where a long sentence may be cut, best first; the cut is at the end of the match."""


def split(text: str, max_chars: int) -> list[str]:
    """`text` in pieces of at most `max_chars` and one comma, each with something to say."""
    pieces: list[str] = []
    for paragraph in _PARAGRAPH.split(text):
        sentences = [
            part for whole in _sentences(" ".join(paragraph.split())) for part in _fit(whole, max_chars)
        ]
        pieces += _joined(sentences, max_chars)
    return pieces


def ends_sentence(piece: str) -> bool:
    """Whether a reader would drop the voice at the end of it."""
    return piece.rstrip(_CLOSERS).endswith((".", "!", "?", "…"))


def _sentences(text: str) -> list[str]:
    cuts = [match.end() for match in _MARK.finditer(text) if _is_end(text, match)]
    found = [text[a:b].strip() for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [sentence for sentence in found if sentence]


def _is_end(text: str, match: re.Match[str]) -> bool:
    following = text[match.end() :].lstrip(_OPENERS)[:1]
    # `"Really?" he asked.`, `approx. five`, `well... maybe`: the sentence goes on.
    return not following.islower() and not _is_abbreviation(text, match)


def _is_abbreviation(text: str, match: re.Match[str]) -> bool:
    if match[0].rstrip(_CLOSERS) != ".":
        return False
    word = text[: match.start()].rsplit(None, 1)[-1:]
    bare = word[0].lstrip(_OPENERS).lower() if word else ""
    # Initials (`J.`, `U.S.`) end in a single letter behind nothing or behind another stop; `I.` does end.
    initials = re.fullmatch(r"(?:\w\.)*[^\W\d_]", bare) is not None and bare != "i"
    return bare in ABBREVIATIONS or initials


def _fit(sentence: str, max_chars: int) -> list[str]:
    """A sentence in parts of about equal length, none longer than `max_chars`."""
    parts: list[str] = []
    while len(sentence) > max_chars:
        at = _cut(sentence, max_chars)
        head, sentence = sentence[:at].strip(), sentence[at:].strip()
        # Without a mark the voice would fall as at the end of a sentence.
        parts.append(head + "," if head[-1:].isalnum() else head)
    return [*parts, sentence] if sentence else parts


def _cut(sentence: str, max_chars: int) -> int:
    ideal = len(sentence) / math.ceil(len(sentence) / max_chars)
    for pattern in _CUTS:
        found = [
            match.end()
            for match in pattern.finditer(sentence)
            if max_chars // 4 < match.end() <= max_chars
            and not (pattern is _MARK and _is_abbreviation(sentence, match))
        ]
        if found:
            return min(found, key=lambda end: abs(end - ideal))
    return max_chars


def _joined(sentences: list[str], max_chars: int) -> list[str]:
    """Short sentences with their neighbours, and none without a letter or digit."""
    pieces: list[str] = []
    for sentence in sentences:
        alone = not any(c.isalnum() for c in sentence)
        short = pieces and min(len(pieces[-1]), len(sentence)) < SHORT_CHARS
        if pieces and (alone or (short and len(pieces[-1]) + 1 + len(sentence) <= max_chars)):
            pieces[-1] += " " + sentence if not alone else ""
        elif not alone:
            pieces.append(sentence)
    return pieces
