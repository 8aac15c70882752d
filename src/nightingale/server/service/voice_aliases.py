"""The ways in which a client may name a voice: OpenAI's names, Kokoro's names, and blends.

Some clients accept only OpenAI's thirteen names, so each of them has a voice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from nightingale.errors import VoiceError

OPENAI_VOICES: Final = {
    "alloy": "sarah", "ash": "michael", "ballad": "george", "cedar": "fenrir", "coral": "bella",
    "echo": "puck", "fable": "fable", "marin": "emma", "nova": "heart", "onyx": "fenrir",
    "sage": "aoede", "shimmer": "bella", "verse": "michael",
}  # fmt: skip
"""OpenAI's name -> the most similar built-in voice."""
MAX_BLEND_PARTS: Final = 8

_PART: Final = re.compile(r"\s*([a-z0-9_-]{1,64})\s*(?:\(\s*(\d{1,4}(?:\.\d{1,4})?)\s*\))?\s*")
_KOKORO: Final = re.compile(r"[a-z][fm]_([a-z0-9]+)")


def parse_blend(spec: str) -> list[tuple[str, float]]:
    """Parse "a(2)+b" into [("a", 2.0), ("b", 1.0)]; a plain name is a blend of one."""
    matches = [_PART.fullmatch(part) for part in spec.lower().split("+")]
    parts = [(match[1], float(match[2] or 1.0)) for match in matches if match is not None]
    if (
        len(parts) < len(matches)
        or len(parts) > MAX_BLEND_PARTS
        or not all(weight > 0 for _, weight in parts)
    ):
        raise invalid_voice(spec)
    return parts


def resolve_alias(name: str, builtin: Sequence[str]) -> str | None:
    """Return the built-in voice for a name of OpenAI's or Kokoro's, or None if it is neither."""
    if (kokoro := _KOKORO.fullmatch(name)) and kokoro[1] in builtin:
        return kokoro[1]
    if name not in OPENAI_VOICES or not builtin:
        return None
    similar = OPENAI_VOICES[name]
    # A model without that voice: distribute the names over its voices, always in the same way.
    return similar if similar in builtin else builtin[list(OPENAI_VOICES).index(name) % len(builtin)]


def invalid_voice(spec: object) -> VoiceError:
    return VoiceError(
        "invalid voice",
        got=repr(spec)[:100],
        allowed=f"a name (a-z, 0-9, _ and -), or up to {MAX_BLEND_PARTS} with weights: heart(2)+emma",
        fix="See GET /v1/audio/voices.",
    )
