"""Rules for abbreviations, initials, Roman numerals and words in capitals."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
from nightingale.text.english.calendar import SENTENCE_CONTINUES
from nightingale.text.english.openings import OPENING, sentence_ends
from nightingale.text.english.rule import Match, Rule, any_of, apply_all, fill
from nightingale.text.tables import word_list, word_map

ROMAN: Final = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
_NUMERAL: Final = r"(?=[IVXLC])(?:C{0,3}(?:X[CL]|L?X{0,3})(?:I[XV]|V?I{0,3}))(?<=[IVXLC])"
ALL_CAPS_SHARE: Final = 0.6
"""With a larger share of capitals among its letters, a text counts as written in capitals."""


def roman(numeral: str) -> int:
    values = [ROMAN[letter] for letter in numeral]
    following = [*values[1:], 0]
    return sum(-value if value < after else value for value, after in zip(values, following, strict=True))


def letters(word: str) -> str:
    return " ".join(word)


def _dotted(match: Match) -> str:
    """Read U.S. as U S; its last full stop stays if it also ends the sentence."""
    ends = sentence_ends(match.string, match.end())
    return letters(match[1].replace(".", "")) + ("." if ends else "")


def _short_form(match: Match) -> str:
    """Expand a short form; its full stop stays if it also ends the sentence."""
    written, text, end = match[1], match.string, match.end()
    if written in word_list("continuing_short_forms"):
        ends = not text[end:].strip()
    else:
        ends = sentence_ends(text, end) or (written == "etc." and re.match(r" [A-Z]", text[end:]) is not None)
    return fill("{1:short_forms}", match) + ("." if ends else "")


def _initials(match: Match) -> str:
    """Read initials: "J. K. Rowling" loses its full stops; "the U. S. He" ends a sentence."""
    spelled = letters(re.sub(r"[^A-Z]", "", match[1]))
    ends = match[1].endswith(" ") and sentence_ends(match.string, match.end() - 1)
    return f"{spelled}. " if ends else f"{spelled} "


def _numbered(match: Match) -> str:
    """Read "Chapter IV" as a number, but not "the last book I read" or "Part C"."""
    label, numeral, text = match[1], match[2], match.string
    inside = text[max(0, match.start() - 2) : match.start()].rstrip("\"'( ")[-1:] not in ("", *".!?:;,")
    is_pronoun = numeral == "I" and text.startswith(" ", match.end()) and (label.islower() or inside)
    if is_pronoun and (label.islower() or label.isupper()):
        return match[0]
    if numeral in ("C", "L") and label.lower() != "chapter":
        return match[0]
    return f"{label} {words.cardinal(roman(numeral))}"


def _short_label(match: Match) -> str:
    short, label = match[1], word_map("numbered_short")[match[1].lower()]
    if short.isupper():
        return f"{label.upper()} "
    return f"{label.capitalize() if short[0].isupper() else label} "


def _capitals(match: Match) -> str:
    word, plural = match[1], match[2] or ""
    if not is_spelled(word):
        return match[0]
    return letters(word) + ("'s" if plural else "")


def is_spelled(word: str) -> bool:
    """Return whether a word in capitals is spelled letter by letter; unknown words are not."""
    if word in word_list("said_as_words") or len(word) > 6:
        return False
    if word in word_list("said_as_letters") or (len(word) == 2 and word not in word_list("two_letter_words")):
        return True
    if not re.search(r"[AEIOUY]", word):
        return True
    onset = re.match(r"[^AEIOUY]*", word)
    cluster = onset[0].lower() if onset else ""
    return len(word) <= 5 and len(cluster) > 1 and cluster not in word_list("onsets")


def _spell_capitals(text: str) -> str:
    """Spell initialisms letter by letter; in a text in capitals only the unambiguous ones."""
    capitals = sum(character.isupper() for character in text)
    small = sum(character.islower() for character in _COUNTED.sub("", text))
    all_caps = capitals > ALL_CAPS_SHARE * (capitals + small) and len(text.split()) > 1

    def say(match: Match) -> str:
        if not all_caps:
            return _capitals(match)
        known = match[1] in word_list("said_as_letters") and match[1] not in word_list("also_words")
        return _capitals(match) if known or not re.search(r"[AEIOUY]", match[1]) else match[0]

    return re.sub(r"(?<![A-Za-z'])([A-Z]{2,6})(s(?![A-Za-z]))?(?![A-Za-z])", say, text)


# The number of a heading was in capitals too.
_COUNTED: Final = re.compile(rf"\b(?:{any_of(filter(str.isupper, word_list('numbered')))}) [a-z-]+")
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
    Rule(
        rf"\b({any_of('numbered')}) ({_NUMERAL})\b(?!'|\.\w)",
        _numbered,
    ),
    Rule(
        rf"\b({any_of('monarchs')}) "
        # "Elizabeth I think" is not a queen, Louis C. K., Louis L'Amour and Louis V. Gerstner are not kings.
        rf"(?!I\b(?! (?:of|was|reigned|ruled|and)\b|[,.;:!?)]|'s|$)|[CL]\b|[VX] [A-Z])({_NUMERAL})\b",
        lambda m: f"{m[1]} the {words.ordinal(roman(m[2]))}",
    ),
    Rule(r"\b([A-Z][a-z]+ [A-Z][a-z]+) (II|III|IV)\b", lambda m: f"{m[1]} the {words.ordinal(roman(m[2]))}"),
    Rule(r"\b([A-Z][a-z]+) (III?|VIII?)\b", lambda m: f"{m[1]} {words.cardinal(roman(m[2]))}"),
    Rule(r"\bWW(II?)\b", lambda m: f"World War {'two' if m[1] == 'II' else 'one'}"),
)


def normalize_names(text: str) -> str:
    """Replace unambiguous Roman numerals, then initialisms."""
    return _spell_capitals(apply_all(NUMERALS, text))
