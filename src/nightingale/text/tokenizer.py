"""Text to text ids, for the three vocabularies of the Chatterbox models.

English and multilingual share a format: a BPE file in which a space is the token [SPACE] and tags are single
ids. Turbo and Nano use GPT-2's byte-level vocabulary with added sound tags such as [laugh]. The ids that
start and stop a text are added by `T3Config.frame_text`.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Final, Protocol
from unicodedata import normalize

from nightingale.errors import CheckpointError
from nightingale.text.bpe import BPETokenizer, unreadable
from nightingale.text.language_steps import STEPS, Step
from nightingale.text.languages import check_language
from nightingale.text.punctuation import ENGLISH, MULTILINGUAL, TURBO, normalize_punctuation

SPACE: Final = "[SPACE]"
REQUIRED_TOKENS: Final = ("[STOP]", "[UNK]", SPACE, "[START]")
END_OF_TEXT: Final = "<|endoftext|>"


class TextTokenizer(Protocol):
    """The interface of all tokenizers."""

    def encode(self, text: str, language: str | None = None) -> list[int]:
        """Return the ids of a text, without start and stop."""

    def encode_words(self, text: str, language: str | None = None) -> list[tuple[str, int]]:
        """Return the words of a text as the vocabulary reads them, and the number of ids of each.

        A space belongs to the word after it, so the numbers add up to those of `encode`.
        """


class VocabularyTokenizer(TextTokenizer, Protocol):
    """The interface of the tokenizers of real models, which have a vocabulary."""

    def has_token(self, token: str) -> bool:
        """Return whether the vocabulary has this token."""


class EnglishTokenizer:
    """Case-sensitive BPE with [SPACE]: the vocabulary of the English model and of wren."""

    def __init__(self, path: Path) -> None:
        self._bpe = _read_bpe(path)

    def encode(self, text: str, language: str | None = None) -> list[int]:
        if language is not None:
            check_language(language, ("en",))
        return self._bpe.encode(normalize_punctuation(text, ENGLISH).replace(" ", SPACE))

    def encode_words(self, text: str, language: str | None = None) -> list[tuple[str, int]]:  # noqa: ARG002
        return _encode_words(self._bpe, normalize_punctuation(text, ENGLISH), SPACE)

    def lacks(self, character: str) -> bool:
        """Return whether a character has no id of its own."""
        return _lacks(self._bpe, normalize_punctuation(f"a{character}", ENGLISH))

    def has_token(self, token: str) -> bool:
        return self._bpe.token_to_id(token) is not None


class MultilingualTokenizer:
    """Lower-case decomposed graphemes after a language tag. Language packages are opened on first use."""

    def __init__(self, path: Path) -> None:
        self._bpe, self._folder = _read_bpe(path), path.parent
        self._steps: dict[str, Step] = {}
        # Language packages need not be thread-safe; their steps take well under a millisecond.
        self._lock = threading.Lock()

    def encode(self, text: str, language: str | None = None) -> list[int]:
        return self._bpe.encode(self._prepare(text, language).replace(" ", SPACE))

    def encode_words(self, text: str, language: str | None = None) -> list[tuple[str, int]]:
        return _encode_words(self._bpe, self._prepare(text, language), SPACE)

    def _prepare(self, text: str, language: str | None) -> str:
        code = check_language(language) if language else None
        prepared = normalize("NFKD", normalize_punctuation(text, MULTILINGUAL).lower())
        return f"[{code}]{self._apply_step(prepared, code)}" if code else prepared

    def _apply_step(self, text: str, code: str) -> str:
        if code not in STEPS:
            return text
        with self._lock:
            if code not in self._steps:
                self._steps[code] = STEPS[code](self._folder)
            return self._steps[code](text)

    def lacks(self, character: str) -> bool:
        """Return whether a character has no id of its own. Languages with a step may spell it."""
        return _lacks(
            self._bpe, normalize("NFKD", normalize_punctuation(f"a{character}", MULTILINGUAL).lower())
        )

    def has_token(self, token: str) -> bool:
        return self._bpe.token_to_id(token) is not None


class TurboTokenizer:
    """GPT-2's byte-level BPE, in which each added sound tag is one token."""

    def __init__(self, folder: Path) -> None:
        vocabulary = _read_json(folder / "vocab.json")
        added = _read_json(folder / "added_tokens.json")
        settings = _read_json(folder / "tokenizer_config.json", default={})
        end_of_text = {"content": END_OF_TEXT, "id": vocabulary.get(END_OF_TEXT, len(vocabulary))}
        try:
            self._bpe = BPETokenizer(
                {
                    "pre_tokenizer": {
                        "type": "ByteLevel",
                        "add_prefix_space": settings.get("add_prefix_space", False),
                    },
                    "model": {"vocab": vocabulary, "merges": _read_merges(folder / "merges.txt")},
                    "added_tokens": [
                        {**end_of_text, "normalized": False},
                        *_sound_tags(added, settings.get("added_tokens_decoder", {})),
                    ],
                }
            )
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise unreadable(folder / "merges.txt", error) from error

    def encode(self, text: str, language: str | None = None) -> list[int]:
        if language is not None:
            check_language(language, ("en",))
        return self._bpe.encode(normalize_punctuation(text, TURBO))

    def has_token(self, token: str) -> bool:
        return self._bpe.token_to_id(token) is not None

    def encode_words(self, text: str, language: str | None = None) -> list[tuple[str, int]]:  # noqa: ARG002
        return _encode_words(self._bpe, normalize_punctuation(text, TURBO), " ")


def _encode_words(bpe: BPETokenizer, prepared: str, space: str) -> list[tuple[str, int]]:
    first, *rest = prepared.split(" ")
    return [(first, len(bpe.encode(first))), *((word, len(bpe.encode(space + word))) for word in rest)]


def _sound_tags(ids: dict[str, int], flags: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of the added tags in the order of their ids, with the flags of the tokenizer config."""
    return [
        {**flags.get(str(number), {}), "content": content, "id": number, "normalized": True}
        for content, number in sorted(ids.items(), key=lambda item: item[1])
    ]


def _lacks(bpe: BPETokenizer, text: str) -> bool:
    return bpe.token_to_id("[UNK]") in bpe.encode(text.replace(" ", SPACE))


def _read_bpe(path: Path) -> BPETokenizer:
    bpe = BPETokenizer.from_file(path)
    missing = [token for token in REQUIRED_TOKENS if bpe.token_to_id(token) is None]
    if missing:
        raise CheckpointError(
            "the vocabulary lacks tokens this model needs",
            got=f"{path} without {', '.join(missing)}",
            allowed=f"a tokenizer file with {', '.join(REQUIRED_TOKENS)}",
            fix="Pull the model again, or check that this file belongs to it.",
        )
    return bpe


def _read_json(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    if default is not None and not path.exists():
        return default
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")
        return found
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def _read_merges(path: Path) -> list[tuple[str, str]]:
    """Read one pair per line, after an optional version line."""
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    return [(left, right) for left, right in rows]
