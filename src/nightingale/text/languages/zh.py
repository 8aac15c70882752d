"""Chinese: text is split into words, and each glyph is spelled with its Cangjie keys.

The vocabulary has no glyphs, but the 26 Cangjie keys. Glyphs that share a code are distinguished by their
rank in the table. The table comes from the model's folder and the segmenter's model from its own; neither is
downloaded here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unicodedata import category

from nightingale.errors import CheckpointError, LanguagePackageMissing
from nightingale.text.languages.language import LanguageFiles, Step, open_package

CANGJIE_FILE = "Cangjie5_TC.json"
SEGMENTER_MODEL = "spacy_ontonotes"


def open_step(files: LanguageFiles) -> Step:
    codes = read_cangjie(files.cangjie)
    segmenter = open_segmenter(files.folder)

    def to_cangjie(text: str) -> str:
        return spell(" ".join(segmenter.cut(text)), codes)

    return to_cangjie


def spell(text: str, codes: dict[str, str]) -> str:
    """Replace every glyph of the table by its key tokens and a full stop token."""
    return "".join(_keys(codes[c]) if category(c) == "Lo" and c in codes else c for c in text)


def _keys(code: str) -> str:
    return "".join(f"[cj_{key}]" for key in code) + "[cj_.]"


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
    ranked = {}
    for glyph, code in code_of.items():
        rank = glyphs_of[code].index(glyph)
        ranked[glyph] = code + str(rank) if rank else code
    return ranked


def open_segmenter(folder: Path) -> Any:
    """Open the word segmenter from local files only: its constructor would download them otherwise."""
    package = open_package(
        "spacy_pkuseg", language="Chinese", package="spacy-pkuseg", source="nightingale-tts[zh]"
    )
    homes = (folder, Path(os.environ.get("PKUSEG_HOME", "~/.pkuseg")).expanduser())
    for home in homes:
        if (home / SEGMENTER_MODEL).is_dir():
            return package.pkuseg(str(home / SEGMENTER_MODEL))
    raise LanguagePackageMissing(
        "the Chinese word segmenter has no model files on this machine",
        got=f"no folder {SEGMENTER_MODEL!r} in {' or '.join(str(home) for home in homes)}",
        allowed=f"the unpacked {SEGMENTER_MODEL} files of spacy-pkuseg (extra [zh])",
        fix="Run once while online: python -c 'import spacy_pkuseg; spacy_pkuseg.pkuseg()'",
    )
