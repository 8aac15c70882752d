"""The text front end: checks text, normalizes it and encodes it as text ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightingale.errors import ConfigError, TextTooLong
from nightingale.text.multilingual import read
from nightingale.text.normalized_text import NormalizedText
from nightingale.text.punctuation import empty_text
from nightingale.text.sound_tags import SOUND_TAGS
from nightingale.text.tokenizer import (
    EnglishTokenizer,
    MultilingualTokenizer,
    TextTokenizer,
    TurboTokenizer,
    VocabularyTokenizer,
)

ENGLISH_FILE: Final = "tokenizer.json"
MULTILINGUAL_FILE: Final = "grapheme_mtl_merged_expanded_v1.json"
MAX_CHARS: Final = 10_000
"""Longer text is refused by default: it is usually a file passed by mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontend:
    """Converts user text to text ids for one model."""

    tokenizer: TextTokenizer
    spell_out: Callable[[str], str] | None = None
    """Writes digits and symbols as words; None where the model was trained without such a step."""
    spell_numbers: Callable[[str, str], str] | None = None
    """Writes numbers and abbreviations out in the words of a language, given its code; upstream has no such step."""
    max_chars: int = MAX_CHARS
    family: str = "this model"
    """The name of the model family, for messages."""
    lacks: Callable[[str], bool] | None = None
    """Returns whether the vocabulary lacks a character; None where it lacks none."""
    tags: tuple[str, ...] = ()
    """Tags such as [laugh] that are single tokens of the vocabulary."""

    def encode(self, text: str, language: str | None = None) -> list[int]:
        """Return the text ids, without start and stop."""
        return self.tokenizer.encode(self.prepare(text), language)

    def spell(self, text: str, language: str | None) -> NormalizedText:
        """Return the text with numbers, symbols and abbreviations in words, as far as the model has that step.

        A step that returns a plain string is one change of the whole text.
        """
        written = NormalizedText.of(text)
        spoken: str = written
        if self.spell_out is not None:
            spoken = self.spell_out(written)
        elif self.spell_numbers is not None and language:
            spoken = self.spell_numbers(written, language)
        if isinstance(spoken, NormalizedText) or spoken == written:
            return NormalizedText.of(spoken)
        return written.edit([(0, len(written), spoken)])

    def prepare(self, text: str) -> str:
        """Return the text as it will be spoken.

        Raises:
            TextTooLong: It has more than `max_chars` characters.
            EmptyText: It has no letter or digit.
        """
        if len(text) > self.max_chars:
            raise TextTooLong(
                "the text is too long for one request",
                got=f"{len(text)} characters",
                allowed=f"at most {self.max_chars}",
                fix="Split it into several requests.",
            )
        spoken = self.spell_out(text) if self.spell_out else text
        if not any(character.isalnum() for character in spoken):
            raise empty_text(text)
        return spoken


TOKENIZERS: Final[Mapping[str, Callable[[Path], VocabularyTokenizer]]] = {
    "english": lambda folder: EnglishTokenizer(folder / ENGLISH_FILE),
    "multilingual": lambda folder: MultilingualTokenizer(folder / MULTILINGUAL_FILE),
    "turbo": TurboTokenizer,
    "nano": TurboTokenizer,
    "wren": lambda folder: EnglishTokenizer(folder / ENGLISH_FILE),
}


def open_frontend(family: str, folder: Path, *, max_chars: int = MAX_CHARS) -> Frontend:
    """Return the front end of a model family, from the files in its folder."""
    if family not in TOKENIZERS:
        raise ConfigError(
            "no text front end for this model family", got=repr(family), allowed=", ".join(TOKENIZERS)
        )
    spell_out: Callable[[str], str] | None = None
    if family == "wren":
        # Late, because its patterns take time to compile and no other family needs them.
        from nightingale.text.english import read as spell_out
    tokenizer = TOKENIZERS[family](folder)
    spell_numbers = read if family == "multilingual" else None
    return Frontend(
        tokenizer=tokenizer,
        spell_out=spell_out,
        spell_numbers=spell_numbers,
        max_chars=max_chars,
        family=family,
        lacks=getattr(tokenizer, "lacks", None),
        tags=tuple(filter(tokenizer.has_token, SOUND_TAGS)),
    )
