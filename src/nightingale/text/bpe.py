"""Byte-pair encoding: a reader of the `tokenizer.json` files that the supported models have.

The `tokenizers` package reads more kinds of files, but needs `huggingface_hub` and doubles the size of an
installation. This module reads BPE models with these parts, and refuses a file with any other:

- normalizers NFD, StripAccents, Lowercase and Replace of a string, alone or in a Sequence;
- pre-tokenizers Whitespace (English, multilingual, wren), ByteLevel (GPT-2's, of Turbo and Nano) or none;
- added tokens, with `lstrip` and `rstrip`.

`tests/text/test_bpe.py` compares the ids with those of the `tokenizers` package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any, Final

from nightingale.errors import CheckpointError
from nightingale.text.pre_tokenization import (
    WHITESPACE,
    check_kind,
    check_unset,
    read_normalizer,
    read_pre_tokenizer,
)

CACHED_WORDS: Final = 8192
CACHED_WORD_CHARS: Final = 64
"""Longer words are rare and are encoded again each time, so the cache stays small."""
NEUTRAL_MODEL_SETTINGS: Final = (
    "dropout",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
)
"""Settings of a BPE model that must have no effect."""


class BPETokenizer:
    """The tokenizer that a `tokenizer.json` describes.

    Encoding has four stages: added tokens are cut out of the text, the rest is normalized, split into words
    and merged to tokens.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        """Check and read the parsed content of a `tokenizer.json`.

        Raises:
            ConfigError: The file uses a kind of part that is not supported.
            CheckpointError: The ids of the added tokens do not continue the vocabulary.
            KeyError, TypeError, ValueError: The content is not that of a tokenizer file.
        """
        model = content["model"]
        for part in ("truncation", "padding", "post_processor"):
            check_unset(part, content.get(part))
        self._normalize = read_normalizer(content.get("normalizer"))
        self._split_words = read_pre_tokenizer(content.get("pre_tokenizer"))
        check_kind("model", model.get("type", "BPE"), ("BPE",))
        for name in NEUTRAL_MODEL_SETTINGS:
            check_unset(f"model {name}", model.get(name))
        self._vocabulary: dict[str, int] = dict(model["vocab"])
        unknown = model.get("unk_token")
        self._unknown_id = None if unknown is None else self._vocabulary[unknown]
        self._merges = _read_merges(model["merges"], self._vocabulary)
        self._encode_cached = lru_cache(maxsize=CACHED_WORDS)(self._encode_word)
        added = content.get("added_tokens") or []
        self._add_tokens(added)
        # Tokens that are searched before normalization, and those that are searched after it.
        self._raw_tokens = _AddedTokens(token for token in added if not token["normalized"])
        self._normalized_tokens = _AddedTokens(
            {**token, "content": self._normalize(token["content"])} for token in added if token["normalized"]
        )

    @classmethod
    def from_file(cls, path: Path) -> BPETokenizer:
        """Read a `tokenizer.json`.

        Raises:
            ConfigError: The file uses a kind of part that is not supported.
            CheckpointError: The file is missing or damaged.
        """
        try:
            return cls(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise unreadable(path, error) from error

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, or None."""
        return self._vocabulary.get(token)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text. A lone surrogate, which a badly decoded argument may contain, is dropped."""
        ids: list[int] = []
        for raw, raw_id in self._raw_tokens.split(text.encode("utf-8", "ignore").decode()):
            if raw_id is not None:
                ids.append(raw_id)
                continue
            for part, part_id in self._normalized_tokens.split(self._normalize(raw)):
                ids += self._encode_part(part) if part_id is None else [part_id]
        return ids

    def _encode_part(self, text: str) -> Iterator[int]:
        for word in self._split_words(text):
            yield from (
                self._encode_cached(word) if len(word) <= CACHED_WORD_CHARS else self._encode_word(word)
            )

    def _encode_word(self, word: str) -> list[int]:
        """Merge the pair with the lowest rank, leftmost first, until no pair is left to merge."""
        found = (self._vocabulary.get(character, self._unknown_id) for character in word)
        ids = [number for number in found if number is not None]
        merges, end = self._merges, len(ids)
        # Linked list: a merged-away position has the id -1.
        following, previous = list(range(1, end + 1)), list(range(-1, end - 1))
        queue = []
        for position in range(end - 1):
            merge = merges.get((ids[position], ids[position + 1]))
            if merge is not None:
                queue.append((*merge, position))
        heapify(queue)
        while queue:
            _, merged_id, position = heappop(queue)
            right = following[position]
            if right >= end or merges.get((ids[position], ids[right]), (0, -1))[1] != merged_id:
                continue  # one of the two was merged with another neighbour before
            ids[position], ids[right] = merged_id, -1
            after, before = following[right], previous[position]
            following[position] = after
            if after < end:
                previous[after] = position
                if (merge := merges.get((merged_id, ids[after]))) is not None:
                    heappush(queue, (*merge, position))
            if before >= 0 and (merge := merges.get((ids[before], merged_id))) is not None:
                heappush(queue, (*merge, before))
        return [number for number in ids if number >= 0]

    def _add_tokens(self, added: Iterable[Mapping[str, Any]]) -> None:
        """Add the tokens that the model's vocabulary lacks, and check the ids of all."""
        for token in added:
            content, number = token["content"], token["id"]
            check_unset("added token single_word", token.get("single_word"))
            expected = self._vocabulary.setdefault(content, len(self._vocabulary))
            if number != expected:
                raise CheckpointError(
                    "the added tokens do not continue the vocabulary",
                    got=f"{content!r} as {number}, where {expected} is next",
                    allowed="ids that follow the last id of the vocabulary without a gap",
                    fix="Pull the model again: its tokenizer files belong to different models.",
                )


class _AddedTokens:
    """Finds added tokens in a text: the leftmost first, and of those the longest."""

    def __init__(self, tokens: Iterable[Mapping[str, Any]]) -> None:
        self._tokens = {token["content"]: token for token in tokens if token["content"]}
        by_length = sorted(self._tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, by_length)))

    def split(self, text: str) -> list[tuple[str, int | None]]:
        """Return the parts of a text in order: added tokens with their ids, and what is between them."""
        if not self._tokens:
            return [(text, None)]
        parts: list[tuple[str, int | None]] = []
        start = 0
        for match in self._pattern.finditer(text):
            token = self._tokens[match.group()]
            between = text[start : match.start()]
            if token.get("lstrip"):
                between = between.rstrip(WHITESPACE)
            if between:
                parts.append((between, None))
            parts.append((token["content"], token["id"]))
            start = match.end()
            if token.get("rstrip"):
                start = len(text) - len(text[start:].lstrip(WHITESPACE))
        if start < len(text):
            parts.append((text[start:], None))
        return parts


def _read_merges(
    merges: Iterable[str | list[str]], vocabulary: Mapping[str, int]
) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the rank and the merged id of each pair of ids. Pairs are lists, or in older files "left right"."""
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
    return {
        (vocabulary[left], vocabulary[right]): (rank, vocabulary[left + right])
        for rank, (left, right) in enumerate(pairs)
    }


def unreadable(path: Path, error: Exception) -> CheckpointError:
    """Return the error for a tokenizer file that is missing or damaged."""
    return CheckpointError(
        "a tokenizer file cannot be read",
        got=f"{path} ({type(error).__name__}: {error})",
        allowed="the tokenizer files as the model's authors published them",
        fix="Pull the model again, or check the folder.",
    )
