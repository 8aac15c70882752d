"""Other names of voices: "default", OpenAI's thirteen names, and Kokoro's, such as af_heart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

DEFAULT: Final = "default"
"""The name of the voice of requests that name none."""
OPENAI_VOICES: Final = {
    "alloy": "sarah", "ash": "michael", "ballad": "george", "cedar": "fenrir", "coral": "bella",
    "echo": "puck", "fable": "fable", "marin": "emma", "nova": "heart", "onyx": "fenrir",
    "sage": "aoede", "shimmer": "bella", "verse": "michael",
}  # fmt: skip
"""OpenAI's name -> the most similar built-in voice."""

_KOKORO: Final = re.compile(r"[a-z][fm]_([a-z0-9]+)")


def resolve_alias(name: str, builtin: Sequence[str]) -> str | None:
    """Return the built-in voice for a name of OpenAI's or Kokoro's, or None if it is neither."""
    if (kokoro := _KOKORO.fullmatch(name)) and kokoro[1] in builtin:
        return kokoro[1]
    if name not in OPENAI_VOICES or not builtin:
        return None
    similar = OPENAI_VOICES[name]
    # A model without that voice: distribute the names over its voices, always in the same way.
    return similar if similar in builtin else builtin[list(OPENAI_VOICES).index(name) % len(builtin)]
