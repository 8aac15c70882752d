"""The benchmarks that `python -m nightingale_lab.bench NAME` runs.

A machine that is lent for a measurement may have torch, numpy and safetensors only, and so may an environment of
upstream's. Packages that the engine imports but benchmarks never use are replaced there by empty modules, before any
module of this folder imports the engine.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

UNUSED = ("soxr", "soundfile", "platformdirs", "huggingface_hub")


class EmptyModule(types.ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for package in UNUSED:
    if importlib.util.find_spec(package) is None:
        sys.modules[package] = EmptyModule(package)
