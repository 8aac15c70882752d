"""Folders of voices on this machine. NIGHTINGALE_HOME overrides the platform's own folders."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def voices_folder() -> Path:
    """Return the folder of the voices that the user added."""
    root = os.environ.get("NIGHTINGALE_HOME") or platformdirs.user_data_dir("nightingale")
    return Path(root).expanduser() / "voices"


def cache_folder() -> Path:
    """Return the folder of voices that were computed from clips. It is safe to delete."""
    home = os.environ.get("NIGHTINGALE_HOME")
    root = Path(home).expanduser() / "cache" if home else Path(platformdirs.user_cache_dir("nightingale"))
    return root / "voices"


def builtin_folder() -> Path:
    """Return the folder of the voices in the package."""
    return Path(__file__).parents[1] / "wren" / "voices"
