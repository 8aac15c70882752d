"""Detection of sentence beginnings after an abbreviation, from the first words.

The full stop of an abbreviation may also end the sentence. A following pronoun or conjunction has a capital
only at the beginning of a sentence, while a name always has one ("the U.S. Senate"). A name at the beginning
of a sentence is not recognized: two joined sentences do less harm than one that is split.
"""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english.rule import any_of, listed

CERTAIN: Final = listed(
    "He She It They We You The This That These Those There Here My Our His Her Their Its Your What Why How "
    "When Where Who Then Don't Can't Won't Didn't Doesn't Isn't Wasn't Let's I'm I'll I've I'd"
)
"""With a capital, nearly always the first word of a sentence."""
JOINING: Final = listed(
    "A An And But Or So In On At As If For With Without From To By Of After Before Since Until While During "
    "Despite Although Though Because Unless Once Now Not Nobody Nothing No Yet Still Also Even Just Only "
    "Perhaps Maybe However Meanwhile Later Today Yesterday Tomorrow Some Many Most All Both Each Every Few "
    "Several Another Such One Two Three Please Thank Thanks Yes Well Everyone Everything Someone Something"
)
"""Capitalized in headlines too ("U.S. In Talks With Iran"), so lower-case letters must follow soon."""
ASKING: Final = listed("Is Are Was Were Do Does Did Has Have Had Can Could Will Would Should Shall May Might")
SUBJECTS: Final = listed(
    "I you he she it we they this that these those there the my your his her our their anyone anybody"
)

_SOON: Final = r"(?:,|(?: [A-Z][\w'.-]{0,30}){0,2}(?:(?<=\w),| [a-z0-9$]))"
OPENING: Final = (
    r" [\"'(]{0,2}"
    rf"(?:(?:{any_of(CERTAIN)})(?![\w-])"
    rf"|(?:{any_of(JOINING)})(?![\w'-]){_SOON}"
    rf"|(?:{any_of(ASKING)}) (?:{any_of(SUBJECTS)})\b"
    r"|I(?= [a-z]))"
)
"""A space and a clear beginning of a sentence. For use after a full stop."""

_ENDS: Final = re.compile(rf"[\"']{{0,2}}(?:\s*$|{OPENING})|\" \"")


def sentence_ends(text: str, at: int) -> bool:
    """Return whether a full stop before `at` ends a sentence: the text ends, or a sentence begins."""
    return _ENDS.match(text, at) is not None
