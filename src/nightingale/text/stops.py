"""Detection of sentence ends with bounded lookahead.

A full stop ends a sentence, a title (`Dr.`), an initial or a German ordinal, or is part of a number, a file
name or an address. The word before it and the letter after it decide, so while text still arrives the answer
may be undecided. A decision never changes.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from nightingale.text.multilingual.language_data import continuing_abbreviations
from nightingale.text.tables import word_list

STOPS: Final = ".!?…‽؟۔։።፧။។"
"""Marks that end a sentence if a space follows."""
WIDE_STOPS: Final = "。！？｡।॥"
"""Marks that always end a sentence."""
CLOSERS: Final = "\"'”’)]»›」』）】》〉"
LOOKAHEAD_CHARS: Final = 128
"""No decision depends on a character further after its mark than this, except for links."""
TAG: Final = re.compile(r"\[[^\[\]\n]{1,32}\]")
"""[laugh], [clear throat], [pause:500ms]: never split, and never the beginning of a sentence."""
TAG_CHARS: Final = 34
"""The largest length of a tag."""
_ADDRESS: Final = r"(?:[^()\s]|\([^()\s]{0,99}\)){0,500}"
LINK: Final = re.compile(
    rf"!?\[(?P<label>[^\[\]\n]{{0,300}})\]\({_ADDRESS}(?:[ \t]{{1,3}}\"[^\"\n]{{0,100}}\")?\)"
)
"""A Markdown link. Its address is not spoken, so a link must not be split."""
LINK_CHARS: Final = 1024
"""The largest length of a link."""
_OPEN_LINK: Final = re.compile(
    r"\[[^\[\]\n]{0,300}"
    rf"(?:\](?:\({_ADDRESS}(?:\([^()\s]{{0,99}}|[ \t]{{1,3}}(?:\"[^\"\n]{{0,100}}\"?)?)?)?)?\Z"
)
BREAK: Final = re.compile(r"\n[^\S\n]{0,32}\n")
"""A break between paragraphs."""

ORDINALS: Final = frozenset({"da", "de", "fi", "no", "pl", "tr"})
"""Languages in which `3.` means `third`."""

_OPENERS: Final = "\"'“‘„([«‹¿¡-–—*#>•「『（【《〈"
_FILLER: Final = re.compile(rf"(?:{TAG.pattern}|[\s{re.escape(_OPENERS)}])*")
_OPEN_TAG: Final = re.compile(r"\[[^\[\]\n]{0,32}$")
_INITIALS: Final = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]|[^\W\d_]")
_SPELLED: Final = re.compile(r"(?:^|[^\w.])[A-Z] [A-Z]\Z")
"""The end of `6 P M` or `the U S`: spaced letters have no full stops of their own."""
# `re` compiles these at first use: it takes 12 ms for such large character classes.
_NO_SPACES: Final = "[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
"""Scripts without spaces between sentences: Thai, kana, Han."""
_HAN: Final = "[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_SYLLABLES: Final = "[\u3040-\u30ff\uac00-\ud7a3]"
_WORD_CHARS: Final = 32
_LETTER: Final = re.compile(r"[^\W_]")


def has_words(text: str) -> bool:
    return _LETTER.search(text) is not None


def first_letter(text: str, start: int = 0) -> int | None:
    """Return the position of the first letter or digit from `start`; None if there is none."""
    found = _LETTER.search(text, start)
    return None if found is None else found.start()


def spoken_length(text: str) -> int:
    """Return the length of a text in letters of equal speaking time.

    A second is about 15 letters, 7 kana or Korean syllables, or 5 Chinese characters.
    """
    if text.isascii():
        return len(text)
    return len(text) + 2 * len(re.findall(_HAN, text)) + len(re.findall(_SYLLABLES, text))


def strip_link_addresses(text: str) -> str:
    """Replace links by their labels. What is longer than a link may be is none."""
    if "](" not in text or ")" not in text:
        return text
    return LINK.sub(lambda link: link["label"] if len(link[0]) <= LINK_CHARS else link[0], text)


def match_link(text: str, opened: int) -> re.Match[str] | None:
    """Return the link whose bracket opens at a position."""
    # A search for the last character costs little, while the pattern tries every length of an address.
    is_closed = text.find(")", opened, opened + LINK_CHARS) >= 0
    return LINK.match(text, opened, opened + LINK_CHARS) if is_closed else None


def may_become_link(text: str, opened: int) -> bool:
    """Return whether text that follows may complete a link whose bracket opens at a position."""
    return len(text) - opened < LINK_CHARS and _OPEN_LINK.match(text, opened) is not None


def skip_chars(text: str, at: int, chars: int) -> int:
    """Return the position after so many characters, not counting the addresses of links."""
    for link in LINK.finditer(text, at):
        if link.start() - at >= chars:
            break
        if len(link[0]) > LINK_CHARS:
            continue
        chars -= link.start() - at + len(link["label"])
        at = link.end()
        if chars <= 0:
            return at
    return at + chars


def inside_link(text: str, at: int, *, final: bool) -> bool | None:
    """Return whether a split at `at` would be inside a link; None while later text may complete one."""
    begin = max(0, at - LINK_CHARS)
    middle = text.rfind("](", begin, at)
    # In its label, or in its address, which may contain brackets too.
    for opened in (text.rfind("[", begin, at), text.rfind("[", begin, middle) if middle >= 0 else -1):
        if opened < 0:
            continue
        if link := match_link(text, opened):
            if at < link.end():
                return True
        elif not final and may_become_link(text, opened):
            return None
    return False


def find_sentence_end(
    text: str,
    start: int = 0,
    *,
    final: bool,
    language: str | None = None,
    earliest: int | None = None,
    lines: bool = False,
) -> tuple[int | None, int]:
    """Return the end of the first sentence from `start`, and the position up to which that is decided.

    The end is None if no sentence ends in the decided part. When more text has arrived, the search can go on from
    there.

    Args:
        text: The text so far.
        start: The position to start from.
        final: No text will follow.
        language: A language code, for its abbreviations.
        earliest: Skip ends before this position; by default, those before the first letter.
        lines: A line break ends a sentence too, unless a lower-case letter follows.
    """
    if earliest is None:
        letter = first_letter(text, start)
        earliest = len(text) + 1 if letter is None else letter + 1
    for match in _candidates(language, lines).finditer(text, start):
        if match.end() < earliest:
            if match.end() == len(text) and not final:
                return None, match.start()  # the mark may become longer
            continue
        ends = _ends(text, match, final, language)
        in_link = inside_link(text, match.end(), final=final) if ends else False
        if ends is None or in_link is None:
            return None, match.start()
        if ends and not in_link:
            end = match.start() if match[0][0] == "\n" else match.end()
            return end, end
    return None, len(text)


@cache
def _candidates(language: str | None, lines: bool) -> re.Pattern[str]:
    # In Greek a semicolon is a question mark.
    stops = re.escape(STOPS + WIDE_STOPS + (";" if language == "el" else ""))
    ends = rf"{BREAK.pattern}|\n" if lines else BREAK.pattern
    return re.compile(rf"[{stops}]{{1,16}}[{re.escape(CLOSERS)}]{{0,8}}|{ends}")


def _ends(text: str, match: re.Match[str], final: bool, language: str | None) -> bool | None:
    mark, end = match[0], match.end()
    if mark[0] == "\n" and len(mark) > 1:
        return True
    if end == len(text):
        return True if final else None
    after = text[end]
    if mark.rstrip(CLOSERS)[-1:] in WIDE_STOPS and mark[0] != "\n":
        # A Japanese quotation continues with `と` (said).
        return not (mark[-1] in CLOSERS and after in "とっ、")
    if not (after.isspace() or mark[0] == "\n"):
        return mark[0] != "." and re.match(_NO_SPACES, after) is not None
    window = text[end : end + LOOKAHEAD_CHARS - 32]
    complete = final or len(window) == LOOKAHEAD_CHARS - 32
    filler = _FILLER.match(window)
    assert filler is not None  # the pattern matches an empty string
    if BREAK.search(filler[0]):
        return True
    if not complete and (filler.end() == len(window) or _OPEN_TAG.search(window)):
        return None
    following = window[filler.end() : filler.end() + 1]
    # `"Really?" he asked.`, `approx. five`, `well . . . maybe`: the sentence continues.
    if following and (following.islower() or following in STOPS):
        return False
    return mark[0] == "\n" or not is_abbreviation(text, match, language, following)


def is_abbreviation(text: str, match: re.Match[str], language: str | None, following: str = "") -> bool:
    """Return whether the mark belongs to the word before it."""
    if match[0].rstrip(CLOSERS) != ".":
        return False
    before = text[max(0, match.start() - _WORD_CHARS) : match.start()].rsplit(None, 1)
    word = before[-1].lstrip(_OPENERS) if before and not text[match.start() - 1].isspace() else ""
    bare = word.lower()
    if bare in _abbreviations(language):
        return True
    if bare.isdecimal():
        return language in ORDINALS and len(bare) <= 2
    if following.isdecimal() and bare in word_list("abbreviations_before_numbers"):
        return True
    if _SPELLED.search(text[max(0, match.start() - 4) : match.start()]):
        return False
    # `J.`, `U.S.`; but `I.` and `p.m.` may end a sentence.
    if bare in ("a.m", "p.m") or word == "I" or not ("." in word or word.isupper()):
        return False
    return _INITIALS.fullmatch(word) is not None


@cache
def _abbreviations(language: str | None) -> frozenset[str]:
    return frozenset((*word_list("abbreviations"), *continuing_abbreviations(language or "en")))
