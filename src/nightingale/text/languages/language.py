"""The type of a language of the multilingual tokenizer, and the import of optional language packages."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightingale.errors import LanguagePackageMissing

Step = Callable[[str], str]
"""Converts lower-case NFKD text to text ready for the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageFiles:
    """Places of a language's tables. Nothing is ever downloaded."""

    folder: Path
    """The model's folder."""
    cangjie: Path
    """The glyph table of Chinese, which single-language models take from the base model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """One language of the multilingual models."""

    code: str
    name: str
    open_step: Callable[[LanguageFiles], Step] | None = None
    """Opens the language's own step on first use; None where the vocabulary takes the text as it is."""


def open_package(module: str, *, language: str, package: str, source: str, otherwise: str = "") -> Any:
    """Import an optional module, or raise `LanguagePackageMissing` with the command that installs it.

    Args:
        module: The module to import.
        language: The language's English name.
        package: The distribution that has the module.
        source: The argument of `pip install`: an extra of this package, if the distribution is on PyPI.
        otherwise: The alternative to the package, as the end of a sentence.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise LanguagePackageMissing(
            f"{language} needs the package {package}",
            got=f"no module {module!r} ({error})",
            fix=f"Run: pip install '{source}'{otherwise}",
        ) from error


def pass_marked(is_marked: Callable[[str], bool], open_missing: Callable[[], Any]) -> Step:
    """Return the step of a language without its package: marked text passes, other text is an error."""

    def step(text: str) -> str:
        if not is_marked(text):
            open_missing()
        return text

    return step
