"""A part of docs/wren.md: the samples that tools/make_samples.py made, with a player each on the site."""

from __future__ import annotations

import re
from pathlib import Path

from make_samples import CLONE, REFERENCE, SEED, TEXTS

VOICES = Path(__file__).parents[1] / "src" / "nightingale" / "wren" / "voices"


def kind_of(voice: str) -> str:
    """Return the gender and accent that the card of a voice states."""
    card = (VOICES / f"{voice}.md").read_text(encoding="utf-8")
    found = re.search(r"Built into wren: ([^.]*?), after", " ".join(card.split()))
    return found[1] if found else ""


def samples() -> str:
    voices = sorted(path.stem for path in VOICES.glob("*.safetensors"))
    kinds = [*TEXTS, "clone"]
    lines = [
        f"Each of the ten voices has the seed {SEED}: nothing was selected or edited.",
        "",
        "| sample | text |",
        "|---|---|",
        *(f"| {kind} | {text} |" for kind, text in TEXTS.items()),
        f"| clone | {CLONE} |",
        "",
        f"The clone is made from a recording of the same built-in voice, which says: *{REFERENCE}*",
        "",
        f"| voice | {' | '.join(kinds)} |",
        "|---|" + "---|" * len(kinds),
    ]
    for voice in voices:
        players = [f"[{voice}, {kind}](samples/{voice}-{kind}.mp3)" for kind in kinds]
        lines.append(f"| **{voice}**<br>{kind_of(voice)} | {' | '.join(players)} |")
    lines += [
        "",
        "The official models cannot be heard here: their weights are not part of this repository, and could not be",
        'downloaded where it is built. With them, `nightingale say -m turbo "Hello there." -o hello.wav` makes a',
        "sample, and `nightingale report --blind` compares two engines without telling you which is which",
        "([how](performance.md#as-a-page)).",
        "",
        "`python tools/make_samples.py` makes the samples, and `make docs` this list.",
    ]
    return "\n".join(lines)
