"""Rows of a batch: what a row may have, the name of its audio file, and how its text is split for the engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from nightingale.errors import ConfigError, EmptyText, NightingaleError, VoiceNotFound
from nightingale.request_options import NUMBERS
from nightingale.text.sentences import split_paragraphs
from nightingale.voices import library

TEXT_COLUMNS: Final = ("text", "input", "sentence")
"""Names of the column with the text; the first one that a row has counts."""
UNIT_CHARS: Final = 1000
"""Longer texts are split between paragraphs, and their parts are spoken at the same time."""
SEED_BITS: Final = 31


def prepare_row(row: Mapping[str, Any], defaults: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return a row with its request, its content hash and, if it cannot be spoken, the reason.

    Args:
        row: Columns of the input: text, and perhaps id, voice, language, seed and controls.
        defaults: The same for rows that lack them, and "format".
        model: Name and options of the model and the profile: another one makes other files.
    """
    text = next((row[name] for name in TEXT_COLUMNS if _is_given(row.get(name))), None)
    request, error = dict[str, Any](), None
    try:
        if not isinstance(text, str) or not text.strip():
            allowed = f"text in a column named {', '.join(TEXT_COLUMNS)}"
            raise EmptyText("the row has no text", got=repr(text)[:80], allowed=allowed)
        request = _request(row, defaults)
    except NightingaleError as refused:
        error = str(refused)
    identity = {**request, "text": text if isinstance(text, str) else repr(text), "model": model}
    identity["format"], identity["voice"] = defaults["format"], _voice_identity(request.get("voice"))
    key = _digest(identity)
    request.setdefault("seed", int(key[:16], 16) % (1 << SEED_BITS))
    given = row.get("id")
    return {
        "row": uuid4().hex,
        "id": str(given) if _is_given(given) else key,
        "key": key,
        "text": text if isinstance(text, str) else "",
        "chars": len(text) if isinstance(text, str) else 0,
        "request": json.dumps(request, sort_keys=True),
        "error": error or "",
    }


def _request(row: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `TTS.open` besides the text."""
    merged = {**defaults, **{name: value for name, value in row.items() if _is_given(value)}}
    request = {name: str(merged[name]) for name in ("voice", "language") if _is_given(merged.get(name))}
    numbers: dict[str, int | float] = {}
    for name, option in NUMBERS.items():
        value: Any = merged.get(name)
        if _is_given(value):
            try:
                numbers[name] = option.kind(value)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"the column {name!r} is not a number", got=repr(value)[:80]) from error
    return {**request, **numbers}


def _is_given(value: Any) -> bool:
    # An empty field of a CSV file is a NaN, which differs from itself.
    return value is not None and value == value and value != ""


@lru_cache(1024)
def _voice_identity(voice: str | None) -> str:
    """Return the hash of a voice's file, so that another voice of the same name makes other files."""
    if voice is None:
        return ""
    try:
        path = library.find(voice) if library.is_name(voice) else Path(voice)
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (VoiceNotFound, OSError):
        return voice  # the worker may know it, and says if not


def _digest(identity: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[
        :32
    ]


def split_units(text: str) -> list[str]:
    """Split a long text between paragraphs into parts of about `UNIT_CHARS`; a short one is returned whole."""
    if len(text) <= UNIT_CHARS:
        return [text]
    return list(_group(paragraph for paragraph, _ in split_paragraphs(text) if paragraph.strip())) or [text]


def _group(paragraphs: Iterable[str]) -> Iterator[str]:
    group = ""
    for paragraph in paragraphs:
        if group and len(group) + len(paragraph) > UNIT_CHARS:
            yield group
            group = ""
        group = f"{group}\n\n{paragraph}" if group else paragraph
    if group:
        yield group


def file_name(key: str, file_format: str) -> str:
    """Return the path of a row's audio below the output folder: few files per folder, as object stores like it."""
    return f"audio/{key[:2]}/{key}.{file_format}"
