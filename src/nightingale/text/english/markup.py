"""Removal of tags, Markdown, typographic variants and characters outside the Latin alphabet."""

from __future__ import annotations

import html
import re
from typing import Final
from unicodedata import category, decimal, is_normalized, normalize

from nightingale.text.code_blocks import replace_code_blocks
from nightingale.text.english.blocks import DOCUMENT
from nightingale.text.english.rule import SPACES, Rule, apply_all
from nightingale.text.normalized_text import Match, NormalizedText
from nightingale.text.stops import LINK
from nightingale.text.tables import word_list, word_map

# The pattern of `html.unescape`, which replaces one entity after the other.
_ENTITY: Final = re.compile(r"&(#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\t\n\f <&#;]{1,32};?)")
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]+")
_BETWEEN_SPACES: Final = re.compile(r"[^ \n]+")
SQUARES: Final = {"2": " squared ", "3": " cubed "}
# "<say-as>" is a tag, "<C-Left>" a key.
_TAG_NAME: Final = r"</?(?:[a-zA-Z][a-zA-Z0-9]{0,15}|[a-z]{2,12}[:-][a-z][\w:-]{0,30})"


def _line_end(match: Match) -> str:
    """Drop the hyphen, unless the word has one anyway: "well-known", "mother-in-law"."""
    before = re.search(r"[\w-]{1,30}$", match.string[max(0, match.start() - 30) : match.start()])
    after = re.match(r"[\w-]{1,30}", match.string[match.end() : match.end() + 30])
    parts = (before[0] if before else "", after[0] if after else "")
    whole = match[0][0] == "-" and (
        parts[0].lower() in word_list("hyphenated") or any("-" in part for part in parts)
    )
    # "two- and three-year-olds"
    return ("- " if parts[1] in ("and", "or", "to") else "-") if whole else ""


def _raised(match: Match) -> str:
    """Write a superscript as a power where it has a base, and as plain digits otherwise."""
    figures = normalize("NFKC", match[0]).replace("−", "-")
    if figures in SQUARES:
        return SQUARES[figures]
    base = re.search(
        r"(?:\d|\)|(?<![^\W\d_])[^\W\d_])$", match.string[max(0, match.start() - 2) : match.start()]
    )
    return f"^{figures}" if base else figures


def _western(match: Match) -> str:
    """Write a number in groups of three digits."""
    return f"{int(match[0].replace(',', '')):,}"


WORD_PARTS: Final = (
    # A word hyphenated at the end of a line.
    Rule(r"(?<=[a-z])(?:-|\xad)[ \t]{0,9}\r?\n[ \t]{0,9}(?=[a-z])", _line_end, needs="\n"),
    # Soft hyphens, joiners and direction marks. A word continues across them.
    Rule("[\xad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]+", ""),
)

TERMS: Final = (
    # The prefix micro before a unit, which the units write as u; ohms, before Greek letters are named.
    Rule(r"(?<=[\d ])[µμ]s\b", "usec", needs="µμ"),
    Rule(r"(?<=[\d ])[µμ](?=[gmlLAVWF]\b)", "u", needs="µμ"),
    Rule(r"(?<=\d)( ?[kMm]?)[ΩΩ](?!\w)", "{1}ohm", needs="ΩΩ"),
    # Indian grouping, and the abbreviated rupee.
    Rule(r"(?<![\w.,])\d{1,2}(?:,\d\d){1,5},\d{3}(?![\w,]|\.\d{3})", _western, needs=","),
    Rule(r"\bRs\.? ?(?=\d)", "₹"),
    Rule(r"(?<=\d)[″]", '"', needs="″"),
    # Between two terms the minus sign subtracts; a hyphen there would be a range.
    Rule(r"(?<=[\d)]) ?− ?(?=[\d.(A-Za-z])|(?<=\b[A-Za-z]) ?− ?(?=\d|[A-Za-z]\b)", " minus ", needs="−"),
    # Non-breaking spaces, or thousands, or two groups after too few digits for a telephone number.
    Rule(
        r"(?<![\w.,+/:$-])(?<![\d)+] )(?:[1-9]\d{0,2}(?:[\u00a0\u202f\u2009]\d{3}){1,4}"
        r"|[1-9]\d{0,2}(?: 000){1,4}|(?!1 800 )[1-9]\d?(?: \d{3}){2,4})(?![\w/-]|[\u00a0\u202f\u2009 ]\d|,\d)",
        lambda m: re.sub(r"\s", ",", m[0]),
    ),
    Rule(r"[⁺⁻]?[⁰¹²³⁴-⁹]{1,15}", _raised),
)

FRACTIONS: Final = tuple(
    rule
    for fraction, figures in word_map("vulgar_fractions").items()
    for rule in (Rule(rf"(?<=\d) ?{fraction}", f" {figures}"), Rule(fraction, figures))
)

# Quantifiers are bounded: a page of unclosed brackets must take linear time.
MARKUP: Final = (
    Rule(r"<!--.{0,2000}?-->", " ", re.DOTALL),
    Rule(r"<(script|style)\b[^<>]{0,300}>.{0,5000}?</\1>", " ", re.DOTALL | re.IGNORECASE),
    Rule(r"</?(?:p|br|div|li|ul|ol|tr|h[1-6]|table|blockquote)\b[^<>]{0,300}>", "\n\n", re.IGNORECASE),
    Rule(r"<[?!][a-zA-Z][^<>]{0,300}>", " "),
    # "if a<b and c>d" has no tag: after a letter, a tag with more than a name needs an equals sign.
    Rule(
        rf"{_TAG_NAME}(?:\s[^<>=]{{0,100}}=[^<>]{{0,300}}|\s?/?)>|(?<!\w){_TAG_NAME}\s[^<>]{{0,300}}>",
        " ",
        needs="<",
    ),
    Rule(LINK.pattern, "{label}", needs="["),
    Rule(r"^[ \t]*(?:\'\'\'|~~~).{0,40}$", " ", re.MULTILINE),
    Rule(r"^[ \t]*(?:[-*_=][ \t]?){3,}[ \t]*$", "\n\n", re.MULTILINE),
    Rule(r"^[ \t]{0,9}#{1,6}[ \t]+(.{0,300})$", "\n\n{1}\n\n", re.MULTILINE),
    Rule(r"^[ \t]{0,9}>(?!\.?\d|[$£€])[ \t]?", "", re.MULTILINE),
    Rule(r"^[ \t]{0,9}(?:[-*+•‣▪◦][ \t]+|(\d{1,3})[.)][ \t]+(?=\S))", "\n\n{1} ", re.MULTILINE),
    Rule(r"(\*{1,3}|_{1,3}|~~)(?=\S)([^*_~\n]{1,300}?)(?<=\S)\1(?!\w)", "{2}", needs="*_~"),
    Rule(r"[ \t]*\|[ \t]*", ", ", needs="|"),
    # After letters and brackets; after digits it is handled like any other power.
    Rule(r"(?<=[A-Za-z)])(?:\^|\*\*)([23])(?![\w^]|\.\d)", lambda m: SQUARES[m[1]], needs="^*"),
)

# A heading or a list item has no full stop, but sounds as if it had one.
PARAGRAPHS: Final = (
    Rule(r"([A-Za-z0-9%)\]\"'])\s{0,20}\n\s{0,20}\n\s*(?=\S)", "{1}. ", needs="\n"),
    Rule(SPACES, " "),
)


def clean(text: str) -> NormalizedText:
    """Return plain ASCII text without markup."""
    cleaned = apply_all(
        WORD_PARTS, replace_code_blocks(text).sub(_ENTITY, lambda entity: html.unescape(entity[0]))
    )
    if not is_normalized("NFC", cleaned):
        cleaned = cleaned.sub(_BETWEEN_SPACES, lambda word: normalize("NFC", word[0]))
    cleaned = apply_all(DOCUMENT, cleaned)
    if not cleaned.isascii():
        cleaned = cleaned.replace_characters(word_map("negations"))
    if any(fraction in cleaned for fraction in word_map("vulgar_fractions")):
        cleaned = apply_all(FRACTIONS, cleaned)
    cleaned = apply_all(TERMS, cleaned).replace_characters(word_map("characters"))
    cleaned = apply_all(MARKUP, cleaned).sub(_NOT_ASCII, _plain_characters)
    return apply_all(PARAGRAPHS, cleaned.replace_characters(word_map("characters"))).strip()


def _plain_characters(match: Match) -> str:
    """Fold compatibility forms, drop accents, convert digits to ASCII, and name single Greek letters."""
    greek, folded = word_map("greek"), normalize("NFKD", match[0])
    kept: list[str] = []
    for at, character in enumerate(folded):
        if character.isascii():
            kept.append(character)
        elif character == "⁄":
            kept.append("/")
        elif category(character) == "Nd":
            kept.append(str(decimal(character)))
        elif character.lower() in greek:
            neighbours = folded[max(at - 1, 0) : at] + folded[at + 1 : at + 2]
            is_single = not any(neighbour.lower() in greek for neighbour in neighbours)
            kept.append(f" {greek[character.lower()]} " if is_single else " ")
        elif category(character) == "Mn":
            continue
        else:
            kept.append(" " if character.isalpha() else character)
    return "".join(kept)
