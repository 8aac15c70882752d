"""Detection of sentence beginnings after an abbreviation, from the first words.

The full stop of an abbreviation may also end the sentence. A following pronoun or conjunction has a capital
only at the beginning of a sentence, while a name always has one ("the U.S. Senate"). A name at the beginning
of a sentence is not recognized: two joined sentences do less harm than one that is split.
"""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english.rule import any_of

_SOON: Final = r"(?:,|(?: [A-Z][\w'.-]{0,30}){0,2}(?:(?<=\w),| [a-z0-9$]))"
OPENING: Final = (
    r" [\"'(]{0,2}"
    rf"(?:(?:{any_of('certain_openings')})(?![\w-])"
    rf"|(?:{any_of('joining_openings')})(?![\w'-]){_SOON}"
    rf"|(?:{any_of('asking_openings')}) (?:{any_of('subjects')})\b"
    r"|I(?= [a-z]))"
)
"""A space and a clear beginning of a sentence. For use after a full stop."""


def sentence_ends(text: str, at: int) -> bool:
    """Return whether a full stop before `at` ends a sentence: the text ends, or a sentence begins."""
    return re.compile(rf"[\"']{{0,2}}(?:\s*$|{OPENING})|\" \"").match(text, at) is not None
