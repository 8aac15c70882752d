"""Captions of `nightingale say`: SubRip, WebVTT, and the times of words as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from nightingale.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from nightingale.types import TimedWord

CAPTION_OPTIONS = ("srt", "vtt", "timestamps")


def caption_files(asked: SimpleNamespace, *, has_text: bool) -> dict[str, Path]:
    """Return the files to write, by option; refuse those that cannot be written.

    has_text: False for a batch and for typed lines, which have no captions.
    """
    files = {name: Path(getattr(asked, name)) for name in CAPTION_OPTIONS if getattr(asked, name) is not None}
    for name, path in files.items():
        if not has_text:
            raise ConfigError(
                "captions need one text",
                got=f"--{name} without one",
                fix="Say each text by itself.",
                param=name,
            )
        if path.is_dir() or not path.parent.is_dir():
            raise OutputError(
                "the captions cannot be written",
                got=f"{path} ({'a folder' if path.is_dir() else 'no such folder'})",
                allowed="a file in an existing folder",
            )
    return files


def write_captions(files: Mapping[str, Path], words: Iterable[TimedWord], language: str | None) -> None:
    """Write the files of `caption_files`."""
    from nightingale.engine.captions import format_srt, format_webvtt, words_json
    from nightingale.files import write_whole

    words = list(words)
    contents = {
        "srt": lambda: format_srt(words, language),
        "vtt": lambda: format_webvtt(words, language),
        "timestamps": lambda: json.dumps({"words": words_json(words)}, ensure_ascii=False, indent=1) + "\n",
    }
    for name, path in files.items():
        write_whole(path, contents[name]().encode())
