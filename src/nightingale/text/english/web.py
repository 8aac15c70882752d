"""Rules for e-mail addresses, links, file names, handles and hashtags."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
from nightingale.text.english.rule import Rule, any_of, rule

SPOKEN_DOMAINS: Final = {
    "com": "com", "org": "org", "net": "net", "gov": "gov", "info": "info", "app": "app", "dev": "dev",
    "ai": "A I", "edu": "E D U", "io": "I O", "co": "co", "uk": "U K", "us": "U S", "eu": "E U",
    "de": "D E", "fr": "F R", "jp": "J P", "ca": "C A", "au": "A U", "me": "me", "tv": "T V", "fm": "F M",
    "ly": "L Y",
}  # fmt: skip
SPOKEN_SUFFIXES: Final = {
    "pdf": "P D F", "txt": "T X T", "csv": "C S V", "jpg": "J P G", "jpeg": "jpeg", "png": "P N G",
    "gif": "gif", "zip": "zip", "wav": "wav", "html": "H T M L", "json": "jason", "xml": "X M L",
    "doc": "doc", "docx": "doc X", "exe": "E X E", "py": "pie", "js": "J S", "md": "M D", "yaml": "yaml",
    "toml": "toml",
}  # fmt: skip
MARKS: Final = {
    ".": "dot",
    "-": "dash",
    "_": "underscore",
    "/": "slash",
    "+": "plus",
    "~": "tilde",
    "@": "at",
}
MAX_PATH_CHARS: Final = 40
"""A longer path is not read, only the site's name."""

_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DOMAIN: Final = rf"(?:{_LABEL}\.){{1,5}}(?:{any_of(SPOKEN_DOMAINS)})"


def _spell(address: str) -> str:
    """Read words as they are, marks by name, and numbers of more than two digits digit by digit."""
    said: list[str] = []
    for piece in re.findall(r"[A-Za-z]+|\d+|[^A-Za-z\d]", address):
        if piece.isdigit():
            said.append(words.whole(piece) if len(piece) <= 2 else words.digits(piece))
        else:
            said.append(MARKS.get(piece, piece if piece.isalpha() else ""))
    return " ".join(filter(None, said))


def _host(host: str) -> str:
    labels = [
        "W W W" if label.lower() == "www" else SPOKEN_DOMAINS.get(label.lower(), _spell(label))
        for label in host.split(".")
    ]
    return " dot ".join(labels)


def _link(match: re.Match[str]) -> str:
    """Read the site and a short path without a query; punctuation at the end belongs to the sentence."""
    host, whole = match["host"], match["path"] or ""
    link = (host + whole).rstrip(".,;:!?'\"")
    ending = (host + whole)[len(link) :]
    path = re.split(r"[?#]", link[len(host) :])[0].rstrip("/")
    said = _host(link[: len(host)])
    if path and len(path) <= MAX_PATH_CHARS:
        said += f" {_spell(path)}"
    return f" {said}{ending} "


RULES: Final[tuple[Rule, ...]] = (
    rule(
        rf"(?<![\w.@])([A-Za-z0-9][\w.+-]{{0,63}})@((?:{_LABEL}\.){{1,5}}[A-Za-z]{{2,12}})\b",
        lambda m: f" {_spell(m[1])} at {_host(m[2])} ",
    ),
    rule(
        r"\b(?:https?|ftp)://(?P<host>[A-Za-z0-9.-]{1,200})(?::\d{1,5})?(?P<path>[/?#][^\s<>\"()]{0,2000})?",
        _link,
        re.IGNORECASE,
    ),
    rule(
        rf"(?<![\w.@/-])(?P<host>www\.(?:{_LABEL}\.){{0,4}}[A-Za-z]{{2,12}}|{_DOMAIN})(?![\w@-]|\.\w)"
        r"(?P<path>/[^\s<>\"()]{0,2000})?",
        _link,
    ),
    rule(
        rf"(?<![\w.])(\w[\w-]{{0,60}})\.({any_of(SPOKEN_SUFFIXES)})(?![\w-]|\.\w)",
        lambda m: f"{_spell(m[1])} dot {SPOKEN_SUFFIXES[m[2]]}",
    ),
    rule(r"(?<![\w/.:])/?(?:[A-Za-z][\w.-]{0,40}/){2,12}[\w-]{1,40}(?![\w/])", lambda m: f" {_spell(m[0])} "),
    rule(r"(?<![\w@])@([A-Za-z_]\w{0,60})", lambda m: f" at {_spell(m[1])}"),
    rule(r"(?<![\w#&])#([A-Za-z]\w{0,60})", lambda m: f" hashtag {_split_camel(m[1])}"),
)


def _split_camel(tag: str) -> str:
    return _spell(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", tag))
