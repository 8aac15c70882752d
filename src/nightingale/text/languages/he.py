"""Hebrew: vowel points are added, because unpointed text does not determine the pronunciation.

Upstream calls this package without the model file it requires, and then silently speaks unpointed text. Here
the package gets its file, and without the package only pointed text is accepted.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from nightingale.errors import CheckpointError, LanguagePackageMissing
from nightingale.text.languages.language import LanguageFiles, Step, open_package, pass_marked

NIQQUD_FIRST, NIQQUD_LAST = "\u05b0", "\u05bc"
open_dicta = partial(
    open_package,
    "dicta_onnx",
    language="Hebrew",
    package="dicta-onnx",
    source="nightingale-tts[he]",
    otherwise=" or write the vowel points in the text.",
)


def open_step(files: LanguageFiles) -> Step:
    try:
        package = open_dicta()
    except LanguagePackageMissing:
        return pass_marked(is_pointed, open_dicta)
    dicta = package.Dicta(str(find_model(files.folder)))
    return lambda text: str(dicta.add_diacritics(text))


def is_pointed(text: str) -> bool:
    return any(NIQQUD_FIRST <= character <= NIQQUD_LAST for character in text)


def find_model(folder: Path) -> Path:
    """Return the diacritics network, which the package does not include."""
    found = sorted(folder.glob("dicta*.onnx"))
    if not found:
        raise CheckpointError(
            "the Hebrew diacritics network is not in the model's folder",
            got=f"no dicta*.onnx in {folder}",
            allowed="the model file of the dicta-onnx project, such as dicta-1.0.int8.onnx",
            fix="Get it from the releases of github.com/thewh1teagle/dicta-onnx and put it there.",
        )
    return found[0]
