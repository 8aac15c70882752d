"""Rules for e-mail addresses, links, file names, handles and hashtags."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
from nightingale.text.english.rule import Rule, any_of, fill
from nightingale.text.english.technical import port, spell_code
from nightingale.text.normalized_text import Match, Part, fill_groups
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
    parts: list[Part] = [(None, " "), ("host", _host(link[: len(host)]))]
    if match["port"]:
        parts.append(("port", f" port {port(match['port'])}"))
    if whole:
        start = match.start("path")
        end = start + len(path)
        parts.append(((start, end), f" {_spell(path)}" if path and len(path) <= MAX_PATH_CHARS else ""))
        parts.append(((end, match.end() - len(ending)), ""))
    return fill_groups(match, [*parts, (None, f"{ending} ")])


def _path(match: Match) -> str:
    """Read a path name by name; a full stop at its end belongs to the sentence."""
    written = match[0].rstrip(".")
    names = [
        word_map("path_names").get(part, word_map("address_marks").get(part) or _file_name(part))
        for part in re.findall(r"\.\.?(?=/)|[/~]|[^/~]+", written)
    ]
    return f" {' '.join(names)}{match[0][len(written) :]} "


def _file_name(name: str) -> str:
    stem, dot, suffix = name.rpartition(".")
    if dot and stem and suffix in word_map("suffixes"):
        return f"{_spell(stem)} dot {word_map('suffixes')[suffix]}"
    return _spell(name)


def _dotted(match: Match) -> str:
    """Read a dotted name of a program or a host; a link or an abbreviation is not one."""
    said = " dot ".join(map(_spell, match["name"].split(".")))
    return said + (f" port {port(match['port'])}" if match["port"] else "")


def _hashtag(match: Match) -> str:
    return f" hashtag {_spell(re.sub('(?<=[a-z])(?=[A-Z])', ' ', match[1]))}"


RULES: Final = (
    Rule(
        rf"(?<![\w.@])([A-Za-z0-9][\w.+-]{{0,63}})@((?:{_LABEL}\.){{1,5}}[A-Za-z]{{2,12}})\b",
        lambda m: f" {_spell(m[1])} at {_host(m[2])} ",
        needs="@",
    ),
    Rule(
        r"\b(?:https?|ftp)://(?P<host>[A-Za-z0-9.-]{1,200})(?::(?P<port>\d{1,5}))?(?P<path>[/?#][^\s<>\"()]{0,2000})?",
        _link,
        re.IGNORECASE,
        needs=":",
    ),
    Rule(
        rf"(?<![\w.@/-])(?P<host>www\.(?:{_LABEL}\.){{0,4}}[A-Za-z]{{2,12}}|{_DOMAIN})(?![\w@-]|\.\w)"
        r"(?::(?P<port>\d{2,5})\b)?(?P<path>/[^\s<>\"()]{0,2000})?",
        _link,
    ),
    # Paths: from the root, the home or the current folder, or to a file of a known kind.
    Rule(
        r"(?<![\w/.:<)~])(?<!\d )(?:~|\.{1,2})?(?:/[A-Za-z.][\w.-]{0,60}){1,12}/?(?![\w/])", _path, needs="/"
    ),
    Rule(
        rf"(?<![\w/.:@])(?:[\w-]{{1,40}}/){{1,12}}[\w-]{{1,40}}\.(?:{any_of('suffixes')})(?![\w/-])",
        _path,
        needs="/",
    ),
    Rule(
        rf"(?<![\w.])(\w[\w-]{{0,60}})\.({any_of('suffixes')})(?![\w-]|\.\w)",
        lambda m: _spell(m[1]) + fill(" dot {2:suffixes}", m),
    ),
    Rule(
        r"(?<![\w/.:])/?(?:[A-Za-z][\w.-]{0,40}/){2,12}[\w-]{1,40}(?![\w/])",
        lambda m: f" {_spell(m[0])} ",
        needs="/",
    ),
    Rule(
        r"(?<![\w.@/])(?P<name>[a-z_][a-z0-9_]{1,40}(?:(?:\.[A-Za-z_]\w{1,40}){2,6}|\.[a-z_][a-z0-9_]{1,40}))"
        r"(?![\w.]\w)(?::(?P<port>\d{2,5})\b)?",
        _dotted,
    ),
    Rule(r"(?:(?<=\s)|^)\.(NET|[a-z]{2,12})(?![\w.])", lambda m: f"dot {_spell(m[1])}"),
    Rule(r"(?<![\w@])@([A-Za-z_]\w{0,60})", lambda m: f" at {_spell(m[1])}", needs="@"),
    Rule(r"(?<![\w#&])#(?=[A-Z]{1,4}-?\d)(?![0-9A-F]{6}\b)", "number ", needs="#"),
    # A color, whose digits tell it from a hashtag.
    Rule(
        r"(?<![\w#&])#(?=[a-fA-F]{0,5}\d)(?=\d{0,5}[a-fA-F])([0-9a-fA-F]{6}|[0-9a-fA-F]{3})\b",
        lambda m: f"hash {spell_code(m[1])}",
        needs="#",
    ),
    Rule(r"(?<![\w#&])#([A-Za-z]\w{0,60})", _hashtag, needs="#"),
)
