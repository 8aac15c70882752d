"""Russian: stress marks are added, because spelling does not determine the stress.

Without the package, only text with marked stress (U+0301 after the vowel) is accepted.
"""

from __future__ import annotations

from functools import partial

from nightingale.errors import LanguagePackageMissing
from nightingale.text.languages.language import LanguageFiles, Step, open_package, pass_marked

STRESS_MARK = "\u0301"
open_stresser = partial(
    open_package,
    "russian_text_stresser.text_stresser",
    language="Russian",
    package="russian-text-stresser",
    # Not on PyPI, and a published package may not depend on such an address: hence no extra installs it.
    source="git+https://github.com/Vuizur/add-stress-to-epub",
    otherwise=" or mark the stress in the text with U+0301 after the vowel.",
)


def open_step(_files: LanguageFiles) -> Step:
    try:
        stresser = open_stresser().RussianTextStresser()
    except LanguagePackageMissing:
        return pass_marked(lambda text: STRESS_MARK in text, open_stresser)
    return lambda text: str(stresser.stress_text(text))
