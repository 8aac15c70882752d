"""What a client may write where a voice is meant: a name, OpenAI's names, Kokoro's names, or a blend.

Some clients refuse any name but OpenAI's thirteen before they ask the server, so each of them is a voice.
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
"""OpenAI's name -> the built-in voice nearest to its character."""
MOST_PARTS: Final = 8

_PART: Final = re.compile(r"\s*([a-z0-9_-]{1,64})\s*(?:\(\s*(\d{1,4}(?:\.\d{1,4})?)\s*\))?\s*")
_KOKORO: Final = re.compile(r"[a-z][fm]_([a-z0-9]+)")


def read_blend(spec: str) -> list[tuple[str, float]]:
    """ "a(2)+b" -> [("a", 2.0), ("b", 1.0)]; a plain name is a blend of one."""
    parts = [_PART.fullmatch(part) for part in spec.lower().split("+")]
    if len(parts) > MOST_PARTS or not all(parts):
        raise _not_a_voice(spec)
    found = [(part[1], float(part[2]) if part[2] else 1.0) for part in parts if part is not None]
    if not all(weight > 0 for _, weight in found):
        raise _not_a_voice(spec)
    return found


def stand_in(name: str, builtin: Sequence[str]) -> str | None:
    """The built-in voice that answers to a name of somebody else's; None if nobody does."""
    if (kokoro := _KOKORO.fullmatch(name)) and kokoro[1] in builtin:
        return kokoro[1]
    if name not in OPENAI_VOICES or not builtin:
        return None
    nearest = OPENAI_VOICES[name]
    # Without that one (another model): spread the names over what there is, always the same way.
    return nearest if nearest in builtin else builtin[list(OPENAI_VOICES).index(name) % len(builtin)]


def _not_a_voice(spec: str) -> VoiceError:
    return VoiceError(
        "not a voice",
        got=repr(spec[:100]),
        allowed=f"a name (a-z, 0-9, _ and -), or up to {MOST_PARTS} of them with weights: heart(2)+emma",
        fix="See GET /v1/audio/voices.",
    )
