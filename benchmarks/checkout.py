"""Import this first in a script: it makes the packages of this checkout importable without an installation.

A GPU machine may have torch, numpy and safetensors only. Packages that the engine imports but these scripts
never use are replaced there by empty modules.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

UNUSED = ("soxr", "soundfile", "platformdirs", "huggingface_hub")


class EmptyModule(types.ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
for package in UNUSED:
    if importlib.util.find_spec(package) is None:
        sys.modules[package] = EmptyModule(package)
