"""What a language is to the multilingual tokenizer, and how optional language packages are opened."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightingale.errors import LanguagePackageMissing

Step = Callable[[str], str]
"""Lower-case NFKD text in, text ready for the vocabulary out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageFiles:
    """Where a language may find its tables. Nothing here is ever downloaded."""

    folder: Path
    """The model's folder."""
    cangjie: Path
    """Chinese: the glyph table, which single-language packs borrow from the base model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """One language of the multilingual models."""

    code: str
    name: str
    open_step: Callable[[LanguageFiles], Step] | None = None
    """Builds the language's own step on first use; None where the vocabulary takes the text as it is."""


def open_package(module: str, *, language: str, package: str, source: str, otherwise: str = "") -> Any:
    """The optional module, imported now, or the error that says how to get it.

    source: what pip is asked for; an extra of ours, if the package is on PyPI.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise LanguagePackageMissing(
            f"{language} needs a package that is not installed",
            got=f"no module {module!r} ({error})",
            allowed=f"an installation with {package}",
            fix=f"Run: pip install '{source}'{otherwise}",
        ) from error
