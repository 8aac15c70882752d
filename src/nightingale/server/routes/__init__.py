"""The routes, each file a router. The order is the order in which they are tried."""

from __future__ import annotations

from typing import Final

ROUTES: Final = ("speech", "captions", "voices", "models", "stream", "elevenlabs", "health", "docs", "page")
"""Modules of this package, each with a `router`."""
