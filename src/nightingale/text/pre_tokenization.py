"""Normalizers and pre-tokenizers of `tokenizer.json`: what is done to a text before byte pairs are merged.

The names are those of the `tokenizers` package. A kind that no supported model uses is refused.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, Final

from nightingale.errors import ConfigError

Normalizer = Callable[[str], str]
PreTokenizer = Callable[[str], list[str]]

WHITESPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)
"""Unicode's White_Space. Python's own `isspace` also has four control characters."""


def read_normalizer(part: Mapping[str, Any] | None) -> Normalizer:
    """Return the function that a `normalizer` entry describes."""
    if part is None:
        return str
    steps = part["normalizers"] if part["type"] == "Sequence" else [part]
    functions = [_read_step(step) for step in steps]

    def normalize(text: str) -> str:
        for function in functions:
            text = function(text)
        return text

    return normalize


def _read_step(step: Mapping[str, Any]) -> Normalizer:
    kind = step["type"]
    check_kind("normalizer", kind, (*_NORMALIZERS, "Replace"))
    if kind != "Replace":
        return _NORMALIZERS[kind]
    check_kind("normalizer Replace", next(iter(step["pattern"])), ("String",))
    old, new = step["pattern"]["String"], step["content"]
    return lambda text: text.replace(old, new)


def read_pre_tokenizer(part: Mapping[str, Any] | None) -> PreTokenizer:
    """Return the function that a `pre_tokenizer` entry describes: it splits a text into words."""
    if part is None:
        return lambda text: [text] if text else []
    check_kind("pre_tokenizer", part["type"], ("Whitespace", "ByteLevel"))
    if part["type"] == "Whitespace":
        return _split_whitespace
    if not part.get("use_regex", True):
        raise _unsupported("pre_tokenizer", "ByteLevel without use_regex", "ByteLevel with use_regex")
    return _split_prefixed_bytes if part["add_prefix_space"] else _split_bytes


def check_kind(part: str, kind: str, supported: tuple[str, ...]) -> None:
    """Raise `ConfigError` if a part of the file is of another kind than the supported ones."""
    if kind not in supported:
        raise _unsupported(part, kind, ", ".join(supported))


def check_unset(setting: str, value: object) -> None:
    """Raise `ConfigError` if a setting that the reader does not know has an effect."""
    if value:
        kind = value.get("type", value) if isinstance(value, dict) else value
        raise _unsupported(setting, str(kind), "none")


def _unsupported(part: str, kind: str, supported: str) -> ConfigError:
    return ConfigError(
        "the tokenizer file uses a kind of part that is not supported",
        got=f"{part} {kind}",
        allowed=f"{part}: {supported}",
        fix="Use the tokenizer file of a supported model (`nightingale models list`).",
    )


# Normalizers


def _strip_accents(text: str) -> str:
    if text.isascii():
        return text
    return "".join(character for character in text if not unicodedata.category(character).startswith("M"))


def _lowercase(text: str) -> str:
    # One character at a time: for a whole word, Python writes a final capital sigma in its final form.
    return text.replace("Σ", "σ").lower()


_NORMALIZERS: Final[Mapping[str, Normalizer]] = {
    "NFD": lambda text: unicodedata.normalize("NFD", text),
    "StripAccents": _strip_accents,
    "Lowercase": _lowercase,
}


# Pre-tokenizers


class _AsciiShape(dict[int, str]):
    """A table for `str.translate` that replaces every character by an ASCII character of the same class.

    The patterns below are defined by Unicode classes that `re` lacks: its `\\w` has no combining marks, and it
    has no `\\p{L}`. They are matched with ASCII classes on the translated text, which has the same length.
    """

    def __init__(self, stand_ins: Mapping[str, str], letters: str = "") -> None:
        """Prepare the table; it is filled on use.

        stand_ins: ASCII character by general category or its first letter. Other characters become "!".
        letters: characters that count as letters in spite of their category.
        """
        super().__init__({number: chr(number) for number in range(128)})
        self.update(dict.fromkeys(map(ord, letters), "a"))
        self.update(dict.fromkeys(map(ord, WHITESPACE[6:]), "\t"))
        self._stand_ins = stand_ins

    def __missing__(self, number: int) -> str:
        category = unicodedata.category(chr(number))
        shape = self._stand_ins.get(category) or self._stand_ins.get(category[0], "!")
        self[number] = shape
        return shape


def _characters(*ranges: tuple[int, int]) -> str:
    return "".join(chr(number) for first, last in ranges for number in range(first, last + 1))


# The Whitespace pre-tokenizer's \w: alphabetic characters, marks, decimal digits, connectors and joiners. Circled
# and squared letters are alphabetic, although their category is that of a symbol.
_WORD_SHAPE: Final = _AsciiShape(
    {"L": "a", "M": "a", "Nd": "a", "Nl": "a", "Pc": "a"},
    letters=_characters(
        (0x200C, 0x200D), (0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189)
    ),
)
_WORD: Final = re.compile(r"\w+|[^\w\s]+", re.ASCII)

# GPT-2's pattern, with \p{L} as [A-Za-z] and \p{N} as [0-9].
_GPT2_SHAPE: Final = _AsciiShape({"L": "a", "N": "0"})
_GPT2_WORD: Final = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII
)


def _split_whitespace(text: str) -> list[str]:
    """Split into runs of word characters and runs of other characters, without whitespace."""
    return [text[match.start() : match.end()] for match in _WORD.finditer(text.translate(_WORD_SHAPE))]


def _split_bytes(text: str) -> list[str]:
    """Split as GPT-2 does, and write each byte of a word as one printable character."""
    return [
        text[match.start() : match.end()].encode().decode("latin-1").translate(_BYTE_CHARACTERS)
        for match in _GPT2_WORD.finditer(text.translate(_GPT2_SHAPE))
    ]


def _split_prefixed_bytes(text: str) -> list[str]:
    return _split_bytes(text if not text or text.startswith(" ") else f" {text}")


def _byte_characters() -> dict[int, int]:
    """Return GPT-2's table: printable bytes are themselves, the others follow from 256 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: 256 + number for number, byte in enumerate(others)}


_BYTE_CHARACTERS: Final = _byte_characters()
