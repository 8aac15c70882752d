"""Folders of voices on this machine. NIGHTINGALE_HOME overrides the platform's own folders.

NIGHTINGALE_VOICES is a folder that several machines share, or the URL of one in an object store (remote_voices.py).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import platformdirs


def data_folder() -> Path:
    """Return the folder of what this program stores for the user."""
    return Path(os.environ.get("NIGHTINGALE_HOME") or platformdirs.user_data_dir("nightingale")).expanduser()


def voices_url(tenant: str | None = None) -> str | None:
    """Return the URL of the folder of voices, such as s3://bucket/voices; None if it is a local folder."""
    shared = os.environ.get("NIGHTINGALE_VOICES", "")
    if "://" not in shared:
        return None
    return shared if tenant is None else f"{shared.rstrip('/')}/tenants/{tenant}"


def voices_folder(tenant: str | None = None) -> Path:
    """Return the folder of the voices that the user added; for a URL, the folder of their local copies.

    tenant: the folder of the voices that only this tenant of a server may use.
    """
    if (url := voices_url()) is not None:
        folder = cache_folder().with_name(f"voices-{hashlib.sha256(url.encode()).hexdigest()[:16]}")
    elif shared := os.environ.get("NIGHTINGALE_VOICES"):
        folder = Path(shared).expanduser()
    else:
        folder = data_folder() / "voices"
    return folder if tenant is None else folder / "tenants" / tenant


def cache_folder() -> Path:
    """Return the folder of voices that were computed from clips. It is safe to delete."""
    home = os.environ.get("NIGHTINGALE_HOME")
    root = Path(home).expanduser() / "cache" if home else Path(platformdirs.user_cache_dir("nightingale"))
    return root / "voices"


def builtin_folder() -> Path:
    """Return the folder of the voices in the package."""
    return Path(__file__).parents[1] / "wren" / "voices"
