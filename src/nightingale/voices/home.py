"""Where voices live on this machine. NIGHTINGALE_HOME overrides the platform's own folders."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def voices_folder() -> Path:
    """The user's own voices."""
    home = os.environ.get("NIGHTINGALE_HOME")
    return (Path(home).expanduser() if home else Path(platformdirs.user_data_dir("nightingale"))) / "voices"


def cache_folder() -> Path:
    """Voices computed from clips; safe to delete."""
    home = os.environ.get("NIGHTINGALE_HOME")
    root = Path(home).expanduser() / "cache" if home else Path(platformdirs.user_cache_dir("nightingale"))
    return root / "voices"


def builtin_folder() -> Path:
    """Voices that came with the package."""
    return Path(__file__).parents[1] / "wren" / "voices"
