"""`nightingale lexicon check`: check a lexicon, and show what it changes in a text."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from nightingale.cli import options
from nightingale.cli.console import note
from nightingale.cli.options import argument
from nightingale.cli.say_input import read_text


def check(
    file: Annotated[Path, argument("FILE", "A lexicon: a TOML file (docs/text.md).")],
    text: Annotated[str | None, argument("[TEXT|-]", "A text; - reads it from stdin.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a lexicon, and show what it changes in TEXT."""
    from nightingale.engine.lexicon_files import open_lexicon

    lexicon = open_lexicon(file)
    changes = lexicon.changes(read_text(text, None) or "") if text is not None else []
    if as_json:
        print(json.dumps({"entries": len(lexicon.entries), "changes": [asdict(one) for one in changes]}))
        return
    count = len(lexicon.entries)
    note(f"{file}: {count} {'entry' if count == 1 else 'entries'}")
    for change in changes:
        print(f"character {change.at + 1}: {change.written} → {change.said}")
    if text is not None and not changes:
        note("nothing changes in this text")
