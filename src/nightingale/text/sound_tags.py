"""Paralinguistic tags: sounds and ways of speaking, such as [laugh], that some models know as single tokens."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.normalized_text import NormalizedText

SOUND_TAGS: Final = (
    "[laugh]", "[chuckle]", "[gasp]", "[cough]", "[sigh]", "[groan]", "[sniff]", "[shush]", "[clear throat]",
    "[whispering]", "[angry]", "[fear]", "[surprised]", "[crying]", "[happy]", "[sarcastic]", "[dramatic]",
    "[narration]", "[advertisement]",
)  # fmt: skip
"""The tags of Turbo's and Nano's vocabulary: sounds, then ways of speaking."""
TAGGED_FAMILIES: Final = ("turbo", "nano")
_ANY: Final = "|".join(map(re.escape, SOUND_TAGS))
SOUND_TAG: Final = re.compile(rf"(?:{_ANY})(?!\()", re.IGNORECASE)
"""A tag; not the label of a Markdown link."""


def tags_of(family: str) -> tuple[str, ...]:
    """Return the tags that a model family was trained with."""
    return SOUND_TAGS if family in TAGGED_FAMILIES else ()


def blank_tags(text: str) -> NormalizedText:
    """Replace tags by as many spaces, so that the positions of other characters stay."""
    normalized = NormalizedText.of(text)
    return normalized.sub(SOUND_TAG, lambda tag: " " * len(tag[0])) if "[" in text else normalized
