"""Times of characters in ElevenLabs' two formats, from the times of words.

The characters are those of the text that was given. The time of a word is divided evenly among its characters;
characters between two words have no duration.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import dropwhile
from typing import Any, NamedTuple

from nightingale.types import TimedWord


class TimedCharacter(NamedTuple):
    """A character and when it is said, in seconds from the beginning of the audio."""

    character: str
    start_s: float
    end_s: float


class CharacterAligner:
    """Assign times to the characters of one text, in order, while words arrive."""

    def __init__(self) -> None:
        self._done, self._end_s = 0, 0.0
        """Characters that have a time, and the end of the last one."""

    @property
    def end_s(self) -> float:
        """The end of the last character."""
        return self._end_s

    def add(self, text: str, words: Iterable[TimedWord]) -> list[TimedCharacter]:
        """Return the characters up to the last of some words. text: All of it so far."""
        found: list[TimedCharacter] = []
        for word in words:
            found += self._untimed(text[self._done : word.start_char])
            # A word may have been said before: a part of it that is repeated has no characters of its own.
            characters = text[max(self._done, word.start_char) : word.end_char]
            share_s = (word.end_s - word.start_s) / max(1, len(characters))
            for number, character in enumerate(characters):
                start_s = word.start_s + number * share_s
                found.append(TimedCharacter(character, start_s, start_s + share_s))
            self._done, self._end_s = max(self._done, word.end_char), max(self._end_s, word.end_s)
        return found

    def finish(self, text: str) -> list[TimedCharacter]:
        """Return the characters after the last word."""
        rest = self._untimed(text[self._done :])
        self._done = len(text)
        return rest

    def _untimed(self, characters: str) -> list[TimedCharacter]:
        return [TimedCharacter(character, self._end_s, self._end_s) for character in characters]


def http_alignment(characters: Iterable[TimedCharacter]) -> dict[str, Any]:
    """Return the format of the routes `with-timestamps`."""
    characters = list(characters)
    return {
        "characters": [one.character for one in characters],
        "character_start_times_seconds": [round(one.start_s, 3) for one in characters],
        "character_end_times_seconds": [round(one.end_s, 3) for one in characters],
    }


def socket_alignment(characters: Iterable[TimedCharacter], start_s: float) -> dict[str, Any] | None:
    """Return the format of the sockets: milliseconds after `start_s`; None without a character.

    A message ends with a space instead of beginning with one, because Pipecat takes a word as complete when a space
    follows it.
    """
    characters = list(dropwhile(lambda one: one.character.isspace(), characters))
    if not characters:
        return None
    end_s = characters[-1].end_s
    characters.append(TimedCharacter(" ", end_s, end_s))
    starts_ms = [round(1000 * (one.start_s - start_s)) for one in characters]
    return {
        "chars": [one.character for one in characters],
        "charStartTimesMs": starts_ms,
        "charDurationsMs": [round(1000 * (one.end_s - one.start_s)) for one in characters],
    }
