"""Reading of the text of `nightingale say`."""

from __future__ import annotations

import sys
from pathlib import Path

from nightingale.errors import ConfigError, EmptyText, TextError

PIPE = "-"


def read_text(text: str | None, file: str | None) -> str | None:
    """Return TEXT, the contents of a file, or stdin; None if lines are to be typed at the terminal.

    Raises:
        TextError: The text is blank or not UTF-8, or the file cannot be read.
        ConfigError: Both a text and a file are given.
    """
    if text is not None and file is not None:
        raise ConfigError("there are two texts", got="TEXT and --file", fix="Leave one of them out.")
    if text is None and file is None and sys.stdin.isatty():
        return None
    source = text if file is None else file
    try:
        if source is None or source == PIPE:
            words = sys.stdin.buffer.read().decode("utf-8-sig")
        elif file is not None:
            words = Path(file).expanduser().read_bytes().decode("utf-8-sig")
        else:
            words = source
        words.encode()  # an argument that was not UTF-8 contains lone surrogates
    except UnicodeError as error:
        raise TextError(
            "the text is not UTF-8", got=str(error), fix="Convert it, for example with iconv."
        ) from error
    except OSError as error:
        got = f"{file}: {error.strerror or error}"
        raise TextError("the text file cannot be read", got=got, fix="Check the path.") from error
    if not words.strip():
        raise EmptyText(
            "there is nothing to say", got=repr(words[:20]), fix='For example: nightingale say "Hello."'
        )
    return words
