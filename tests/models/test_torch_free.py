"""Configurations of the models can be read where torch is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = [
    "nightingale.models",
    "nightingale.models.chatterbox",
    "nightingale.models.chatterbox.encoders.config",
    "nightingale.models.chatterbox.hift.config",
    "nightingale.models.chatterbox.presets",
    "nightingale.models.chatterbox.s3gen.config",
    "nightingale.models.chatterbox.t3.config",
    "nightingale.models.defaults",
]


@pytest.mark.parametrize("module", MODULES)
def test_configurations_import_without_torch(module: str) -> None:
    script = f"import sys; sys.modules['torch'] = None; import {module}"
    subprocess.run([sys.executable, "-c", script], check=True)
