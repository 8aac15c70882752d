"""Rules for abbreviations, initials, Roman numerals and words in capitals."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
from nightingale.text.english.calendar import SENTENCE_CONTINUES
from nightingale.text.english.openings import OPENING, sentence_ends
from nightingale.text.english.rule import Rule, any_of, fill
from nightingale.text.normalized_text import Match, NormalizedText, Part, fill_groups
from nightingale.text.tables import word_list, word_map

_NUMERAL: Final = r"(?=[IVXLC])(?:C{0,3}(?:X[CL]|L?X{0,3})(?:I[XV]|V?I{0,3}))(?<=[IVXLC])"
ALL_CAPS_SHARE: Final = 0.6
"""With a larger share of capitals among its letters, a text counts as written in capitals."""


def _dotted(match: Match) -> str:
    """Read U.S. as U S; its last full stop stays if it also ends the sentence."""
    spelled = " ".join(match[1].replace(".", ""))
    return f"{spelled}." if sentence_ends(match.string, match.end()) else spelled


def _short_form(match: Match) -> str:
    """Expand a short form; its full stop stays if it also ends the sentence."""
    written, text, end = match[1], match.string, match.end()
    if written in word_list("continuing_short_forms"):
        ends = not text[end:].strip()
    else:
        ends = sentence_ends(text, end) or bool(
            written == "etc." and re.match(r" [A-Z]", text[end : end + 2])
        )
    return fill("{1:short_forms}", match) + ("." if ends else "")


def _initials(match: Match) -> str:
    """Read initials: "J. K. Rowling" loses its full stops; "the U. S. He" ends a sentence."""
    parts = list[Part]()
    for letter in re.compile("[A-Z]").finditer(match.string, *match.span(1)):
        parts += [(letter.span(), letter[0]), (None, " ")]
    if match[1].endswith(" ") and sentence_ends(match.string, match.end() - 1):
        parts[-1] = (None, ". ")
    return fill_groups(match, parts)


def _numbered(match: Match) -> str:
    """Read "Chapter IV" as a number, but not "the last book I read" or "Part C"."""
    label, numeral, text = match[1], match[2], match.string
    inside = text[max(0, match.start() - 2) : match.start()].rstrip("\"'( ")[-1:] not in ("", *".!?:;,")
    is_pronoun = numeral == "I" and text.startswith(" ", match.end()) and (label.islower() or inside)
    if is_pronoun and (label.islower() or label.isupper()):
        return match[0]
    if numeral in ("C", "L") and label.lower() != "chapter":
        return match[0]
    return fill("{1} {2:cardinal}", match)


def _short_label(match: Match) -> str:
    short, label = match[1], word_map("numbered_short")[match[1].lower()]
    if short.isupper():
        return f"{label.upper()} "
    return f"{label.capitalize() if short[0].isupper() else label} "


def _is_spelled(word: str, *, all_caps: bool) -> bool:
    """Return whether a word in capitals is spelled letter by letter; unknown words are not."""
    is_known = word in word_list("said_as_letters")
    if all_caps and (not is_known or word in word_list("also_words")) and re.search(r"[AEIOUY]", word):
        return False
    if word in word_list("said_as_words"):
        return False
    if is_known or (len(word) == 2 and word not in word_list("two_letter_words")):
        return True
    onset, vowel, _ = re.split(r"([AEIOUY]|$)", word, maxsplit=1)
    return not vowel or (len(word) <= 5 and len(onset) > 1 and onset.lower() not in word_list("onsets"))


def spell_capitals(text: NormalizedText) -> NormalizedText:
    """Spell initialisms letter by letter; in a text in capitals only the unambiguous ones."""
    capitals = len(re.findall("[A-Z]", text))
    small = len(re.findall("[a-z]", re.sub(_COUNTED, "", text)))
    all_caps = capitals > ALL_CAPS_SHARE * (capitals + small) and len(text.split()) > 1

    def spell(match: Match) -> str:
        word, plural = match[1], "'s" if match[2] else ""
        return " ".join(word) + plural if _is_spelled(word, all_caps=all_caps) else match[0]

    return text.sub(re.compile(r"(?<![A-Za-z'])([A-Z]{2,6})(s(?![A-Za-z]))?(?![A-Za-z])"), spell)


# The number of a heading was in capitals too.
_COUNTED: Final = rf"\b(?:{any_of(filter(str.isupper, word_list('numbered')))}) [a-z-]+"
_STREET: Final = any_of(street for street in word_list("streets") if street != "Dr")
_NAMED: Final = r"(?:[A-Z][a-z]{1,20} ){1,3}"
_FIGURE: Final = rf"\d{{1,5}}[A-Z]?|hundred|{any_of((*words.SMALL, *words.TENS))}"
# The sentence continues after a street, and the full stop was only the abbreviation's.
_CONTINUES: Final = r"\.(?=,| [a-z]| [NSEW]\b)"

ABBREVIATIONS: Final = (
    Rule(
        rf"(?<=[a-z]) ({_STREET})\b"
        rf"(?:{_CONTINUES}|(?=,| (?:in|and|at|near|is|was|to|[NSEW])\b|\.?$|\.{OPENING}))",
        " {1:streets}",
    ),
    # A doctor may be called He and follow a capital ("Ask Dr. He"); a drive needs more of an address.
    Rule(r"(?<=[a-z]) Dr\b\.?(?=, [A-Z][a-z])", " Drive"),
    Rule(rf"\b((?:[a-z]{{2,20}}|{_FIGURE}) {_NAMED})Dr\b(?:{_CONTINUES}|(?=,|\.?$))", "{1}Drive"),
    Rule(rf"\b((?:on|at|along|near|off|down|up|{_FIGURE}) {_NAMED})Dr(?=\.{OPENING})", "{1}Drive"),
    # After a house number "St." is a street, whatever follows.
    Rule(rf"\b((?:{_FIGURE}) {_NAMED})St\.(?= [A-Z])", "{1}Street,"),
    Rule(
        # "Give me a sec. I am busy": a word that can end a sentence needs a numeral of several letters.
        rf"\b((?i:{any_of('numbered_short')}))\. ?(?!(?<=(?i:sec|art|fig)\. )[IVX]\b)"
        rf"(?=(?!I\b(?: [a-z]|')|[CL]\b){_NUMERAL}\b(?!'|\.\w))",
        _short_label,
    ),
    Rule(rf"\b({any_of('titles')})\. ?(?=[A-Z]|and [A-Z])", "{1:titles} "),
    Rule(r"\b(Dr|Mrs?|Ms) (?=[A-Z][a-z])", "{1:titles} "),
    Rule(r"(?<![\w.])([Ee])st\. (?=[a-z])(?!(?:in|by|as|on|at|since)\b)", "{1}stimated "),
    Rule(rf"(?<![\w.])({any_of('short_forms')})(?!\w)", _short_form),
    Rule(rf"(?<![\w/&])({any_of('whole_words')})(?![\w&/]|'\w)", "{1:whole_words}"),
    Rule(rf"\b([AaPp])\.[Mm]\.{SENTENCE_CONTINUES}", lambda m: f"{m[1].upper()} M"),
    Rule(r"\b([AaPp])\.[Mm]\.", lambda m: f"{m[1].upper()} M."),
    Rule(r"(?<![\w.])((?:[A-Za-z]\.){2,8})(?!\w)", _dotted),
    Rule(r"(?<![\w.'])((?:[A-Z]\. ?){2,4})(?=[A-Z][a-z])", _initials),
    Rule(
        rf"\b(?!(?:{any_of('lettered')})\b)([A-Z][a-z]+) ([A-HJ-Z])\.(?!{OPENING}) (?=[A-Z][a-z])",
        "{1} {2} ",
    ),
)

NUMERALS: Final = (
    Rule(rf"\b({any_of('numbered')}) ({_NUMERAL})\b(?!'|\.\w)", _numbered),
    Rule(
        rf"\b({any_of('monarchs')}) "
        # "Elizabeth I think" is not a queen, Louis C. K., Louis L'Amour and Louis V. Gerstner are not kings.
        rf"(?!I\b(?! (?:of|was|reigned|ruled|and)\b|[,.;:!?)]|'s|$)|[CL]\b|[VX] [A-Z])({_NUMERAL})\b",
        "{1} the {2:ordinal}",
    ),
    Rule(r"\b([A-Z][a-z]+ [A-Z][a-z]+) (II|III|IV)\b", "{1} the {2:ordinal}"),
    Rule(r"\b([A-Z][a-z]+) (III?|VIII?)\b", "{1} {2:cardinal}"),
    Rule(r"\bWW(II?)\b", "World War {1:cardinal}"),
)
