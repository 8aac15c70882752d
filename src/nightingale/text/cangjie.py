"""The Cangjie table of Chinese: each glyph is spelled with its keys.

The vocabulary has no glyphs, but the 26 Cangjie keys. Glyphs that share a code are distinguished by their
rank in the table.
"""

from __future__ import annotations

import json
from pathlib import Path
from unicodedata import category

from nightingale.errors import CheckpointError

CANGJIE_FILE = "Cangjie5_TC.json"


def spell(text: str, codes: dict[str, str]) -> str:
    """Replace every glyph of the table by its key tokens and a full stop token."""
    return "".join(_keys(codes[c]) if category(c) == "Lo" and c in codes else c for c in text)


def _keys(code: str) -> str:
    return "".join(f"[cj_{key}]" for key in f"{code}.")


def read_cangjie(path: Path) -> dict[str, str]:
    """Return the code of each glyph; a glyph that is the k-th (k > 0) with its code gets k appended."""
    try:
        rows = [row.split("\t")[:2] for row in json.loads(path.read_text(encoding="utf-8"))]
        code_of = dict(rows)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(
            "the Cangjie table, which Chinese needs, cannot be read",
            got=f"{path} ({error})",
            allowed=f"{CANGJIE_FILE}: a JSON list of 'glyph<tab>code' strings",
            fix="Pull the multilingual model again, or put the file there.",
        ) from error
    glyphs_of: dict[str, list[str]] = {}
    for glyph, code in rows:
        glyphs_of.setdefault(code, []).append(glyph)
    ranks = {glyph: glyphs_of[code].index(glyph) for glyph, code in code_of.items()}
    return {glyph: f"{code}{ranks[glyph] or ''}" for glyph, code in code_of.items()}
