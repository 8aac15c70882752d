"""Gender and accent of the built-in voices, for lists from which people choose."""

from __future__ import annotations

from typing import Final, NamedTuple


class VoiceTraits(NamedTuple):
    """The gender and the accent of a voice, each None where it is not known."""

    gender: str | None = None
    accent: str | None = None


BUILTIN_TRAITS: Final = {
    "aoede": VoiceTraits("female", "American"),
    "bella": VoiceTraits("female", "American"),
    "emma": VoiceTraits("female", "British"),
    "fable": VoiceTraits("male", "British"),
    "fenrir": VoiceTraits("male", "American"),
    "george": VoiceTraits("male", "British"),
    "heart": VoiceTraits("female", "American"),
    "michael": VoiceTraits("male", "American"),
    "puck": VoiceTraits("male", "American"),
    "sarah": VoiceTraits("female", "American"),
}
"""The traits of wren's voices by name, those of the teacher's voices after which they were made."""
