"""Removal of tags, Markdown, typographic variants and characters outside the Latin alphabet."""

from __future__ import annotations

import html
import re
from typing import Final
from unicodedata import category, decimal, normalize

from nightingale.text.english.rule import Rule, apply_all, listed, rule
from nightingale.text.stops import LINK

FRACTIONS: Final = {
    "½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5",
    "⅘": "4/5", "⅙": "1/6", "⅚": "5/6", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8",
}  # fmt: skip

CHARACTERS: Final = str.maketrans(
    {
        **dict.fromkeys("“”„‟«»″", '"'),
        **dict.fromkeys("‘’‚‛′`´", "'"),
        **dict.fromkeys("‐‑‒⁃", "-"),
        **dict.fromkeys("™®©︎️⃣", " "),
        "−": "-",
        "―": "—",
        "…": "...",
        "ß": "ss", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L",
        "đ": "d", "Đ": "D", "þ": "th", "Þ": "Th", "ð": "th", "ı": "i",
    }
)  # fmt: skip

INVISIBLE: Final = re.compile("[\xad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]+")
"""Soft hyphens, joiners and direction marks. A word continues across them."""

LINE_END: Final = re.compile(r"(?<=[a-z])(?:-|\xad)[ \t]{0,9}\r?\n[ \t]{0,9}(?=[a-z])")
"""A word hyphenated at the end of a line."""
HYPHENATED: Final = frozenset(
    listed(
        "well self non half all ex ill cross old new long short high low full part two three four five six "
        "seven eight nine ten twenty thirty forty fifty sixty seventy eighty ninety"
    )
)
"""Beginnings that more often have a hyphen of their own than are the first part of a hyphenated word."""

NEGATIONS: Final = str.maketrans(
    {
        "≠": " is not equal to ", "≢": " is not identical to ", "≮": " is not less than ",
        "≯": " is not greater than ", "≰": " is not at most ", "≱": " is not at least ",
        "≉": " is not approximately ", "≁": " is not similar to ", "≄": " is not equal to ",
        "≇": " is not equal to ", "≭": " is not equivalent to ", "∉": " is not in ",
        "∌": " does not contain ", "∄": " there is no ", "∤": " does not divide ",
        "∦": " is not parallel to ", "⊄": " is not a subset of ", "⊅": " is not a superset of ",
        "⊈": " is not a subset of ", "⊉": " is not a superset of ", "⇏": " does not imply ",
    }
)  # fmt: skip
"""Compatibility decomposition would drop the stroke of each and reverse its meaning."""

MINUS: Final = re.compile(r"(?<=[\d)]) ?− ?(?=[\d.(A-Za-z])|(?<=\b[A-Za-z]) ?− ?(?=\d|[A-Za-z]\b)")
"""Between two terms the minus sign subtracts; a hyphen there would be a range."""
GROUPED: Final = re.compile(
    # Non-breaking spaces, or thousands, or two groups after too few digits for a telephone number.
    r"(?<![\w.,+/:$-])(?<![\d)+] )(?:[1-9]\d{0,2}(?:[\u00a0\u202f\u2009]\d{3}){1,4}"
    r"|[1-9]\d{0,2}(?: 000){1,4}|(?!1 800 )[1-9]\d?(?: \d{3}){2,4})(?![\w/-]|[\u00a0\u202f\u2009 ]\d|,\d)"
)
RAISED: Final = re.compile(r"([⁺⁻]?[⁰¹²³⁴-⁹]{1,15})")
SQUARES: Final = {"2": " squared ", "3": " cubed "}
# "<say-as>" is a tag, "<C-Left>" a key.
_TAG_NAME: Final = r"</?(?:[a-zA-Z][a-zA-Z0-9]{0,15}|[a-z]{2,12}[:-][a-z][\w:-]{0,30})"

MICRO: Final = re.compile(r"(?<=[\d ])[µμ](?=[gsmlLAVWF]\b)")
"""The prefix micro before a unit, which the units write as u."""

GREEK: Final = dict(
    zip(
        "αβγδεζηθικλμνξοπρστυφχψω",
        listed(
            "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi "
            "rho sigma tau upsilon phi chi psi omega"
        ),
        strict=True,
    )
)

# After letters and brackets; after digits it is handled like any other power.
CARETS: Final = rule(r"(?<=[A-Za-z)])\^([23])(?![\w^]|\.\d)", lambda m: SQUARES[m[1]])

# Quantifiers are bounded: a page of unclosed brackets must take linear time.
MARKUP: Final[tuple[Rule, ...]] = (
    rule(r"<!--.{0,2000}?-->", " ", re.DOTALL),
    rule(r"<(script|style)\b[^<>]{0,300}>.{0,5000}?</\1>", " ", re.DOTALL | re.IGNORECASE),
    rule(r"</?(?:p|br|div|li|ul|ol|tr|h[1-6]|table|blockquote)\b[^<>]{0,300}>", "\n\n", re.IGNORECASE),
    rule(r"<[?!][a-zA-Z][^<>]{0,300}>", " "),
    # "if a<b and c>d" has no tag: after a letter, a tag with more than a name needs an equals sign.
    rule(rf"{_TAG_NAME}(?:\s[^<>=]{{0,100}}=[^<>]{{0,300}}|\s?/?)>|(?<!\w){_TAG_NAME}\s[^<>]{{0,300}}>", " "),
    Rule(LINK, r"\g<label>"),
    rule(r"^[ \t]*(?:```|~~~).{0,40}$", " ", re.MULTILINE),
    rule(r"^[ \t]*(?:[-*_=][ \t]?){3,}[ \t]*$", "\n\n", re.MULTILINE),
    rule(r"^[ \t]{0,9}#{1,6}[ \t]+(.{0,300})$", r"\n\n\1\n\n", re.MULTILINE),
    rule(r"^[ \t]{0,9}>(?!\.?\d|[$£€])[ \t]?", "", re.MULTILINE),
    rule(r"^[ \t]{0,9}(?:[-*+•‣▪◦][ \t]+|(\d{1,3})[.)][ \t]+(?=\S))", r"\n\n\1 ", re.MULTILINE),
    rule(r"(\*{1,3}|_{1,3}|~~)(?=\S)([^*_~\n]{1,300}?)(?<=\S)\1(?!\w)", r"\2"),
    rule(r"[ \t]*\|[ \t]*", ", "),
)

# A heading or a list item has no full stop, but sounds as if it had one.
PARAGRAPHS: Final[tuple[Rule, ...]] = (
    rule(r"([A-Za-z0-9%)\]\"'])\s{0,20}\n\s{0,20}\n\s*(?=\S)", r"\1. "),
    rule(r"\s+", " "),
)


def clean(text: str) -> str:
    """Return plain ASCII text without markup."""
    text = INVISIBLE.sub("", LINE_END.sub(_line_end, html.unescape(text)))
    text = normalize("NFC", text).translate(NEGATIONS)
    for fraction, figures in FRACTIONS.items():
        text = re.sub(rf"(\d) ?{fraction}", rf"\1 {figures}", text).replace(fraction, figures)
    text = MICRO.sub("u", text)
    text = GROUPED.sub(lambda m: re.sub(r"\s", ",", m[0]), MINUS.sub(" minus ", text))
    text = RAISED.sub(_raised, text).translate(CHARACTERS)
    text = CARETS.apply(apply_all(MARKUP, text))
    return apply_all(PARAGRAPHS, _plain_characters(text)).strip()


def _line_end(match: re.Match[str]) -> str:
    """Drop the hyphen, unless the word has one anyway: "well-known", "mother-in-law"."""
    before = re.search(r"[\w-]{1,30}$", match.string[max(0, match.start() - 30) : match.start()])
    after = re.match(r"[\w-]{1,30}", match.string[match.end() : match.end() + 30])
    parts = (before[0] if before else "", after[0] if after else "")
    whole = match[0][0] == "-" and (parts[0].lower() in HYPHENATED or any("-" in part for part in parts))
    # "two- and three-year-olds"
    return ("- " if parts[1] in ("and", "or", "to") else "-") if whole else ""


def _raised(match: re.Match[str]) -> str:
    """Write a superscript as a power where it has a base, and as plain digits otherwise."""
    figures = normalize("NFKC", match[1]).replace("−", "-")
    if figures in SQUARES:
        return SQUARES[figures]
    base = re.search(
        r"(?:\d|\)|(?<![^\W\d_])[^\W\d_])$", match.string[max(0, match.start() - 2) : match.start()]
    )
    return f"^{figures}" if base else figures


def _plain_characters(text: str) -> str:
    """Fold compatibility forms, drop accents, convert digits to ASCII, and name single Greek letters."""
    folded = normalize("NFKD", text)
    kept: list[str] = []
    for at, character in enumerate(folded):
        if character.isascii():
            kept.append(character)
        elif character == "⁄":
            kept.append("/")
        elif category(character) == "Nd":
            kept.append(str(decimal(character)))
        elif character.lower() in GREEK:
            neighbours = folded[max(at - 1, 0) : at] + folded[at + 1 : at + 2]
            is_single = not any(neighbour.lower() in GREEK for neighbour in neighbours)
            kept.append(f" {GREEK[character.lower()]} " if is_single else " ")
        elif category(character) == "Mn":
            continue
        else:
            kept.append(" " if character.isalpha() else character)
    return "".join(kept).translate(CHARACTERS)
