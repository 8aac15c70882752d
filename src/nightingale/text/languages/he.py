"""Hebrew: vowel points are added, because unpointed text does not say how it sounds.

Upstream calls this package without the model file it requires, and then speaks unpointed text without a word.
Here the package is given its file, text that is pointed already is taken as it is, and the rest is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nightingale.errors import CheckpointError, LanguagePackageMissing
from nightingale.text.languages.base import LanguageFiles, Step, open_package

NIQQUD_FIRST, NIQQUD_LAST = "\u05b0", "\u05bc"


def open_step(files: LanguageFiles) -> Step:
    try:
        package = open_diacritics_package()
    except LanguagePackageMissing:
        return as_pointed
    dicta = package.Dicta(str(find_model(files.folder)))
    return lambda text: str(dicta.add_diacritics(text))


def open_diacritics_package() -> Any:
    return open_package(
        "dicta_onnx",
        language="Hebrew",
        package="dicta-onnx",
        source="nightingale-tts[he]",
        otherwise=" or write the vowel points in the text.",
    )


def as_pointed(text: str) -> str:
    """The text itself, if its author wrote the vowels; otherwise the missing package is an error."""
    if not any(NIQQUD_FIRST <= character <= NIQQUD_LAST for character in text):
        open_diacritics_package()
    return text


def find_model(folder: Path) -> Path:
    """The diacritics network, which its package does not bring along."""
    found = sorted(folder.glob("dicta*.onnx"))
    if not found:
        raise CheckpointError(
            "the Hebrew diacritics network is not in the model's folder",
            got=f"no dicta*.onnx in {folder}",
            allowed="the model file of the dicta-onnx project, such as dicta-1.0.int8.onnx",
            fix="Get it from the releases of github.com/thewh1teagle/dicta-onnx and put it there.",
        )
    return found[0]
