"""Rules for blocks and notations of documents: check boxes, citations and LaTeX. They come first."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english.rule import Rule, any_of, apply_all
from nightingale.text.normalized_text import Match, fill_groups
from nightingale.text.tables import word_list, word_map

_CITED: Final = r"[1-9]\d{0,2}(?:\s?[-–,;]\s?[1-9]\d{0,2}){0,8}"
_FORMULA: Final = r"[^\n$]{1,300}?"
_GROUP: Final = r"\{([^{}]{0,100})\}"


def _citation(match: Match) -> str:
    """Drop a citation, unless the sentence needs its number: "see [12]"."""
    before = re.search(r"([A-Za-z]{1,20}) $", match.string[max(0, match.start() - 20) : match.start() + 1])
    if before and before[1] in word_list("citation_cues"):
        return match[0]
    return ""


def _formula(match: Match) -> str:
    """Read a formula of LaTeX; sums of money between two dollar signs are left alone."""
    body = match["body"]
    is_formula = match["mark"] != "$" or re.search(r"[\\^_]|(?<![\w.,])[A-Za-z] ?(?:[=<>+]|$)", body)
    if not is_formula or (match["mark"] == "$" and body != body.strip()):
        return match[0]
    said = apply_all(LATEX, body).parts(match.start("body"))
    return fill_groups(match, [(None, " "), *said, (None, " ")])


def _factors(match: Match) -> str:
    """Read letters side by side as factors: mc^2."""
    letters = match[0]
    return letters if letters in word_list("latex") or letters in ("is", "of", "pi") else " ".join(letters)


def _command(match: Match) -> str:
    greek = word_map("greek").values()
    name = match[1]
    known = word_map("latex").get(name) or (name if name.lower() in greek else "")
    return f" {known} "


LATEX: Final = (
    Rule(r"\\(?:text|mathrm|mathbf|mathit|operatorname)" + _GROUP, "{1}"),
    Rule(r"\\[dt]?frac\{(\d{1,4})\}\{(\d{1,4})\}", "{1}/{2}"),
    Rule(rf"\\[dt]?frac{_GROUP}{_GROUP}", "{1} over {2}"),
    Rule(rf"\\sqrt{_GROUP}", "the square root of {1}"),
    Rule(r"_\{?(\w{1,9})\}?", " {1} "),
    Rule(r"\^\{(-?\w{1,9})\}", "^{1}"),
    Rule(r"(?<=[\w)}]) - (?=[\w({\\])", " minus "),
    Rule(r"\\([A-Za-z]{1,20})", _command),
    Rule(r"(?<![A-Za-z])[A-Za-z]{2,3}(?=\^| ?[=+-]|$)", _factors),
    Rule(r"[{}\\]", " "),
)

DOCUMENT: Final = (
    # Two marks, one mark, and the two kinds of brackets.
    Rule(rf"(?P<mark>\$\$)(?P<body>{_FORMULA})\$\$", _formula),
    Rule(
        rf"(?<![\w$\\])(?P<mark>\$)(?=[^\s\d]|\d{{0,4}}[\\^_])(?P<body>{_FORMULA})(?<!\s)\$(?![\w$])",
        _formula,
        needs="$",
    ),
    Rule(r"(?P<mark>\\\()(?P<body>[^\n]{1,300}?)\\\)", _formula),
    Rule(r"(?P<mark>\\\[)(?P<body>[^\n]{1,300}?)\\\]", _formula),
    Rule(
        rf"^([ \t]{{0,9}}(?:[-*+•][ \t]+|\d{{1,3}}[.)][ \t]+)?)({any_of('check_boxes')})[ \t]+",
        "{1}\n\n{2:check_boxes} ",
        re.MULTILINE,
    ),
    # Directly after a word or a mark, or after a space and before a mark or another citation.
    Rule(rf"(?:(?<=[a-z]{{3}})|(?<=[.,;:!?)\"'\]]))(?:\[{_CITED}\])+(?![\w(])", _citation, needs="["),
    Rule(rf"(?<=[\w.,)\"']) (?:\[{_CITED}\] ?)+(?=[.,;:!?)]|$)", _citation, needs="["),
)
