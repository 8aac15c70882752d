"""Steps of single languages before the multilingual vocabulary, and the import of the packages they need.

Hebrew gets vowel points and Russian gets stress marks, because spelling does not determine the pronunciation.
Without their packages only marked text is accepted. Japanese kanji become hiragana, Korean syllables become
Jamo, and Chinese text is split into words and spelled (`cangjie.py`). Nothing is ever downloaded.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unicodedata import normalize

from nightingale.errors import CheckpointError, LanguagePackageMissing
from nightingale.install import install_command
from nightingale.text.cangjie import CANGJIE_FILE, read_cangjie, spell

Step = Callable[[str], str]
"""Converts lower-case NFKD text to text ready for the vocabulary."""

NIQQUD_FIRST, NIQQUD_LAST = "\u05b0", "\u05bc"
STRESS_MARK = "\u0301"
KANJI_FIRST, KANJI_LAST = "\u4e00", "\u9fff"
PARTICLE_LOOKALIKES = ("は", "へ")
"""A reading that begins with one of these would be taken for a particle of the word before it."""
SEGMENTER_MODEL = "spacy_ontonotes"


def open_package(module: str, *, language: str, package: str, install: str, otherwise: str = "") -> Any:
    """Import an optional module, or raise `LanguagePackageMissing` with the command that installs it.

    Args:
        module: The module to import.
        language: The language's English name.
        package: The distribution that has the module.
        install: The command that installs it: an extra of this package, if the distribution is on PyPI.
        otherwise: The alternative to the package, as the end of a sentence.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise LanguagePackageMissing(
            f"{language} needs the package {package}",
            got=f"no module {module!r} ({error})",
            fix=f"Run: {install}{otherwise}",
        ) from error


def open_unless_marked(open_step: Callable[[], Step], is_marked: Callable[[str], bool]) -> Step:
    """Return a language's step or, without its package, one that accepts only marked text."""
    try:
        return open_step()
    except LanguagePackageMissing:
        return lambda text: text if is_marked(text) else open_step()(text)


def _open_hebrew(folder: Path) -> Step:
    """Open the network that adds vowel points.

    Upstream calls the package without the model file it requires, and then silently speaks unpointed text.
    """

    def open_dicta() -> Step:
        package = open_package(
            "dicta_onnx",
            language="Hebrew",
            package="dicta-onnx",
            install=install_command("he"),
            otherwise=" or write the vowel points in the text.",
        )
        network = next(iter(sorted(folder.glob("dicta*.onnx"))), None)
        if network is None:
            raise CheckpointError(
                "the Hebrew diacritics network is not in the model's folder",
                got=f"no dicta*.onnx in {folder}",
                allowed="the model file of the dicta-onnx project, such as dicta-1.0.int8.onnx",
                fix="Get it from the releases of github.com/thewh1teagle/dicta-onnx and put it there.",
            )
        dicta = package.Dicta(str(network))
        return lambda text: str(dicta.add_diacritics(text))

    return open_unless_marked(open_dicta, lambda text: any(NIQQUD_FIRST <= c <= NIQQUD_LAST for c in text))


def _open_russian(_folder: Path) -> Step:
    def open_stresser() -> Step:
        package = open_package(
            "russian_text_stresser.text_stresser",
            language="Russian",
            package="russian-text-stresser",
            # Not on PyPI, and a published package may not depend on such an address: no extra installs it.
            install="pip install 'git+https://github.com/Vuizur/add-stress-to-epub'",
            otherwise=" or mark the stress in the text with U+0301 after the vowel.",
        )
        stresser = package.RussianTextStresser()
        return lambda text: str(stresser.stress_text(text))

    return open_unless_marked(open_stresser, lambda text: STRESS_MARK in text)


def _open_japanese(_folder: Path) -> Step:
    package = open_package("pykakasi", language="Japanese", package="pykakasi", install=install_command("ja"))
    kakasi = package.kakasi()

    def to_hiragana(text: str) -> str:
        segments = kakasi.convert(text)
        converted = "".join(reading(segment["orig"], segment["hira"]) for segment in segments)
        # The vocabulary has voiced kana only as kana + mark, and pykakasi composes them.
        return normalize("NFKD", converted)

    return to_hiragana


def reading(written: str, hiragana: str) -> str:
    """Return one Japanese segment for the vocabulary: kanji as hiragana, everything else as written."""
    if not any(KANJI_FIRST <= character <= KANJI_LAST for character in written):
        return written
    # PARITY: the separating space is upstream's and becomes a text id.
    #         tests/text/test_languages.py::test_a_japanese_reading_like_a_particle_gets_a_space
    return f" {hiragana}" if hiragana.startswith(PARTICLE_LOOKALIKES) else hiragana


def to_jamo(text: str) -> str:
    """Split each Korean syllable into its two or three Jamo, which is what NFKD does."""
    return normalize("NFKD", text).strip()


def _open_chinese(folder: Path) -> Step:
    codes = read_cangjie(folder / CANGJIE_FILE)
    segmenter = _open_segmenter(folder)
    return lambda text: spell(" ".join(segmenter.cut(text)), codes)


def _open_segmenter(folder: Path) -> Any:
    """Open the word segmenter from local files only: its constructor would download them otherwise."""
    package = open_package(
        "spacy_pkuseg", language="Chinese", package="spacy-pkuseg", install=install_command("zh")
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


STEPS: Final[dict[str, Callable[[Path], Step]]] = {
    "he": _open_hebrew,
    "ja": _open_japanese,
    "ko": lambda _folder: to_jamo,
    "ru": _open_russian,
    "zh": _open_chinese,
}
"""Language code -> function that opens the language's step, given the model's folder."""
