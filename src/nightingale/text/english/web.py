"""Rules for e-mail addresses, links, file names, handles and hashtags."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
from nightingale.text.english.rule import Match, Rule, any_of, fill
from nightingale.text.tables import word_map

MAX_PATH_CHARS: Final = 40
"""A longer path is not read, only the site's name."""

_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DOMAIN: Final = rf"(?:{_LABEL}\.){{1,5}}(?:{any_of('domains')})"


def _spell(address: str) -> str:
    """Read words as they are, marks by name, and numbers of more than two digits digit by digit."""
    said: list[str] = []
    for piece in re.findall(r"[A-Za-z]+|\d+|[^A-Za-z\d]", address):
        if piece.isdigit():
            said.append(words.whole(piece) if len(piece) <= 2 else words.digits(piece))
        else:
            said.append(word_map("address_marks").get(piece, piece if piece.isalpha() else ""))
    return " ".join(filter(None, said))


def _host(host: str) -> str:
    labels = [
        "W W W" if label.lower() == "www" else word_map("domains").get(label.lower(), _spell(label))
        for label in host.split(".")
    ]
    return " dot ".join(labels)


def _link(match: Match) -> str:
    """Read the site and a short path without a query; punctuation at the end belongs to the sentence."""
    host, whole = match["host"], match["path"] or ""
    link = (host + whole).rstrip(".,;:!?'\"")
    ending = (host + whole)[len(link) :]
    path = re.split(r"[?#]", link[len(host) :])[0].rstrip("/")
    said = _host(link[: len(host)])
    if path and len(path) <= MAX_PATH_CHARS:
        said += f" {_spell(path)}"
    return f" {said}{ending} "


def _hashtag(match: Match) -> str:
    return f" hashtag {_spell(re.sub('(?<=[a-z])(?=[A-Z])', ' ', match[1]))}"


RULES: Final = (
    Rule(
        rf"(?<![\w.@])([A-Za-z0-9][\w.+-]{{0,63}})@((?:{_LABEL}\.){{1,5}}[A-Za-z]{{2,12}})\b",
        lambda m: f" {_spell(m[1])} at {_host(m[2])} ",
    ),
    Rule(
        r"\b(?:https?|ftp)://(?P<host>[A-Za-z0-9.-]{1,200})(?::\d{1,5})?(?P<path>[/?#][^\s<>\"()]{0,2000})?",
        _link,
        re.IGNORECASE,
    ),
    Rule(
        rf"(?<![\w.@/-])(?P<host>www\.(?:{_LABEL}\.){{0,4}}[A-Za-z]{{2,12}}|{_DOMAIN})(?![\w@-]|\.\w)"
        r"(?P<path>/[^\s<>\"()]{0,2000})?",
        _link,
    ),
    Rule(
        rf"(?<![\w.])(\w[\w-]{{0,60}})\.({any_of('suffixes')})(?![\w-]|\.\w)",
        lambda m: _spell(m[1]) + fill(" dot {2:suffixes}", m),
    ),
    Rule(r"(?<![\w/.:])/?(?:[A-Za-z][\w.-]{0,40}/){2,12}[\w-]{1,40}(?![\w/])", lambda m: f" {_spell(m[0])} "),
    Rule(r"(?<![\w@])@([A-Za-z_]\w{0,60})", lambda m: f" at {_spell(m[1])}"),
    Rule(r"(?<![\w#&])#([A-Za-z]\w{0,60})", _hashtag),
)
