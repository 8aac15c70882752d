"""Russian: stress marks are added, because spelling does not tell where the stress lies.

Without the package, text whose stress is marked already (U+0301 after the vowel) is taken as it is.
"""

from __future__ import annotations

from typing import Any

from nightingale.errors import LanguagePackageMissing
from nightingale.text.languages.base import LanguageFiles, Step, open_package

STRESS_MARK = "\u0301"


def open_step(_files: LanguageFiles) -> Step:
    try:
        stresser = open_stresser_package().RussianTextStresser()
    except LanguagePackageMissing:
        return as_marked
    return lambda text: str(stresser.stress_text(text))


def open_stresser_package() -> Any:
    return open_package(
        "russian_text_stresser.text_stresser",
        language="Russian",
        package="russian-text-stresser",
        # Not on PyPI, and a published package may not depend on such an address: hence no extra brings it.
        source="git+https://github.com/Vuizur/add-stress-to-epub",
        otherwise=" or mark the stress in the text with U+0301 after the vowel.",
    )


def as_marked(text: str) -> str:
    """The text itself, if its author marked the stress; otherwise the missing package is an error."""
    if STRESS_MARK not in text:
        open_stresser_package()
    return text
