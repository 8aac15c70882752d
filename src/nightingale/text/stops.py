"""Where a sentence ends, decided with a bounded look at what follows.

A full stop ends a sentence, a title (`Dr.`), an initial, a German ordinal; it parts a number, a file's name,
an address. What tells them apart is the word before and the letter after, so while text still arrives the
answer may be: not sure yet. It never changes once it is given.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

STOPS: Final = ".!?…‽؟۔։።፧။។"
"""End a sentence if a space follows."""
WIDE_STOPS: Final = "。！？｡।॥"
"""End a sentence whatever follows."""
CLOSERS: Final = "\"'”’)]»›」』）】》〉"
LOOKAHEAD_CHARS: Final = 128
"""No decision depends on a character further behind its mark than this, but for those about links."""
TAG: Final = re.compile(r"\[[^\[\]\n]{1,32}\]")
"""[laugh], [clear throat], [pause:500ms]: never cut, and never what a sentence begins with."""
_ADDRESS: Final = r"(?:[^()\s]|\([^()\s]{0,99}\)){0,500}"
LINK: Final = re.compile(
    rf"!?\[(?P<label>[^\[\]\n]{{0,300}})\]\({_ADDRESS}(?:[ \t]{{1,3}}\"[^\"\n]{{0,100}}\")?\)"
)
"""A link in Markdown: its address is not for the ear, and torn in two it could no longer be told."""
LINK_CHARS: Final = 1024
"""No link is longer."""
_OPEN_LINK: Final = re.compile(
    r"\[[^\[\]\n]{0,300}"
    rf"(?:\](?:\({_ADDRESS}(?:\([^()\s]{{0,99}}|[ \t]{{1,3}}(?:\"[^\"\n]{{0,100}}\"?)?)?)?)?\Z"
)
BREAK: Final = re.compile(r"\n[^\S\n]{0,32}\n")
"""Between paragraphs."""

ABBREVIATIONS: Final = frozenset({
    "mr", "mrs", "ms", "dr", "prof", "rev", "hon", "st", "sr", "jr", "gen", "col", "capt", "lt", "sgt", "gov",
    "sen", "rep", "pres", "messrs", "mme", "mlle", "vs", "e.g", "i.e", "cf", "approx", "dept", "est", "fig",
    "inc", "ltd", "co", "corp", "ave", "blvd", "rd", "mt", "ft", "vol", "ch", "pp",
    "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec",
})  # fmt: skip
"""Words whose full stop does not end a sentence. In spoken form most are written out already."""
BEFORE_NUMBERS: Final = frozenset(
    {"no", "nr", "nos", "p", "art", "sec", "pt", "eq", "op", "n", "núm", "num", "č", "str"}
)
"""Those that are words of their own unless a number follows."""
OF_LANGUAGE: Final[dict[str, frozenset[str]]] = {
    "de": frozenset({"hr", "fr", "frl", "bzw", "ca", "bspw", "evtl", "ggf", "inkl", "vgl", "str", "tel"}),
    "es": frozenset({"sr", "sra", "srta", "dra", "ud", "uds", "d", "dña", "av", "pág", "p.ej"}),
    "fr": frozenset({"m", "mm", "mgr", "me", "av", "env", "bd"}),
    "it": frozenset({"sig", "dott", "avv", "ing", "on", "pag"}),
    "nl": frozenset({"dhr", "mevr", "mw", "ir", "bijv", "blz"}),
    "pl": frozenset({"p", "prof", "dr", "ul", "np", "tzw", "św"}),
    "pt": frozenset({"sr", "sra", "dra", "exmo", "av", "pág"}),
    "ru": frozenset({"г", "ул", "стр", "им", "т.е", "т.к", "проф", "д", "гг"}),
    "sv": frozenset({"bl.a", "t.ex", "dvs", "ca", "kl"}),
    "tr": frozenset({"sn", "av", "cad", "sok"}),
}  # fmt: skip
ORDINALS: Final = frozenset({"da", "de", "fi", "no", "pl", "tr"})
"""Languages in which `3.` is `third`."""
CLOCK: Final = frozenset({"a.m", "p.m"})
"""Dotted like initials, but they do end a sentence."""

_OPENERS: Final = "\"'“‘„([«‹¿¡-–—*#>•「『（【《〈"
_FILLER: Final = re.compile(rf"(?:{TAG.pattern}|[\s{re.escape(_OPENERS)}])*")
_OPEN_TAG: Final = re.compile(r"\[[^\[\]\n]{0,32}$")
_INITIALS: Final = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]|[^\W\d_]")
_SPELLED: Final = re.compile(r"(?:^|[^\w.])[A-Z] [A-Z]\Z")
"""The end of `6 P M`, `the U S`: letters written apart have no stops of their own."""
_NO_SPACES: Final = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Scripts that put no space between sentences: Thai, kana, Han."""
_HAN: Final = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_SYLLABLES: Final = re.compile("[\u3040-\u30ff\uac00-\ud7a3]")
_WORD_CHARS: Final = 32


def says_something(text: str) -> bool:
    return any(map(str.isalnum, text))


def spoken_length(text: str) -> int:
    """How long a text is to say, in letters of an alphabet.

    Readers speak some 15 letters a second, 7 kana or Korean syllables, 5 Chinese characters.
    """
    if text.isascii():
        return len(text)
    return len(text) + 2 * len(_HAN.findall(text)) + len(_SYLLABLES.findall(text))


def without_addresses(text: str) -> str:
    """The text with its links as they are read: by their labels."""
    return LINK.sub(r"\g<label>", text) if "](" in text else text


def inside_link(text: str, at: int, *, final: bool) -> bool | None:
    """Whether a cut at `at` would tear a link in two; None while what follows may still make it one."""
    begin = max(0, at - LINK_CHARS)
    middle = text.rfind("](", begin, at)
    # In its label or in its address, which may have brackets, too.
    for opened in (text.rfind("[", begin, at), text.rfind("[", begin, middle) if middle >= 0 else -1):
        if opened < 0:
            continue
        if link := LINK.match(text, opened):
            if at < link.end():
                return True
        elif not final and _OPEN_LINK.match(text, opened):
            return None
    return False


def next_end(
    text: str,
    start: int = 0,
    *,
    final: bool,
    language: str | None = None,
    at_least: int = 0,
    lines: bool = False,
) -> tuple[int | None, int]:
    """Where the first sentence from `start` on ends, and up to where that is settled.

    None: it does not end in what is settled. final: nothing will follow the text. at_least: pass over ends
    that come before this much is said. lines: a line ends a sentence, too, unless a small letter follows.
    """
    said_to, said = start, False
    for match in _candidates(language, lines).finditer(text, start):
        said = said or says_something(text[said_to : match.start()])
        said_to = match.start()
        if not said or spoken_length(text[start : match.end()].strip()) < at_least:
            continue
        ends = _ends(text, match, final, language)
        torn = inside_link(text, match.end(), final=final) if ends else False
        if ends is None or torn is None:
            return None, match.start()
        if ends and not torn:
            end = match.start() if match[0][0] == "\n" else match.end()
            return end, end
    return None, len(text)


@lru_cache
def _candidates(language: str | None, lines: bool) -> re.Pattern[str]:
    # In Greek a semicolon asks.
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
        # A Japanese quotation goes on with `と`, said.
        return not (mark[-1] in CLOSERS and after in "とっ、")
    if not (after.isspace() or mark[0] == "\n"):
        return mark[0] != "." and _NO_SPACES.match(after) is not None
    window = text[end : end + LOOKAHEAD_CHARS - 32]
    whole = final or len(window) == LOOKAHEAD_CHARS - 32
    filler = _FILLER.match(window)
    assert filler is not None  # it may be empty, but it always matches
    if BREAK.search(filler[0]):
        return True
    if not whole and (filler.end() == len(window) or _OPEN_TAG.search(window)):
        return None
    following = window[filler.end() : filler.end() + 1]
    # `"Really?" he asked.`, `approx. five`, `well . . . maybe`: the sentence goes on.
    if following and (following.islower() or following in STOPS):
        return False
    return mark[0] == "\n" or not is_abbreviation(text, match, language, following)


def is_abbreviation(text: str, match: re.Match[str], language: str | None, following: str = "") -> bool:
    """Whether the mark belongs to the word before it."""
    if match[0].rstrip(CLOSERS) != ".":
        return False
    before = text[max(0, match.start() - _WORD_CHARS) : match.start()].rsplit(None, 1)
    word = before[-1].lstrip(_OPENERS) if before and not text[match.start() - 1].isspace() else ""
    bare = word.lower()
    if bare in ABBREVIATIONS or (language is not None and bare in OF_LANGUAGE.get(language, ())):
        return True
    if bare.isdecimal():
        return language in ORDINALS and len(bare) <= 2
    if following.isdecimal() and bare in BEFORE_NUMBERS:
        return True
    if _SPELLED.search(text[max(0, match.start() - 4) : match.start()]):
        return False
    # `J.`, `U.S.`; but `I.` does end.
    dotted_or_capital = "." in word or word.isupper()
    return dotted_or_capital and word != "I" and bare not in CLOCK and _INITIALS.fullmatch(word) is not None
