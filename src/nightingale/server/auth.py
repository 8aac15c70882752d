"""Who may ask: keys, compared in constant time, and pages, by the site they came from.

Browsers let any page send some requests to any address, this machine's own included. They say in `Origin`
which page it was; programs that are not browsers say nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from nightingale.server.problems import Problem
from nightingale.server.settings import Settings

OPEN = {"/", "/health", "/ready", "/version", "/docs", "/openapi.json"}
OPEN_FOLDER = "/page/"
"""Where no key is asked for: probes, documentation and the page hold no secrets. All else is guarded."""

UNAUTHORIZED = Problem(
    status=401,
    message="A valid key is needed: send Authorization: Bearer KEY or xi-api-key: KEY.",
    code="invalid_api_key",
    headers={"www-authenticate": "Bearer"},
)
FOREIGN = Problem(
    status=403,
    message="A page of another site asked. Its origin must be listed in the setting cors.",
    code="origin_not_allowed",
)


def is_open(path: str) -> bool:
    return path in OPEN or path.startswith(OPEN_FOLDER)


def key_of(headers: Mapping[str, str]) -> str | None:
    """The key a client sent. Names are lower case, as in starlette's headers."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("xi-api-key")


def is_right(keys: Sequence[str], key: str | None) -> bool:
    """Whether this key opens, or nobody is asked for one. Takes as long for any wrong key."""
    if not keys:
        return True
    digest = _digest(key or "")
    # A sum and not `any`: every key is compared, so that the time does not tell which of them it was.
    return sum(hmac.compare_digest(digest, _digest(known)) for known in keys) > 0


def is_foreign(headers: Mapping[str, str], settings: Settings) -> bool:
    """Whether a page of a site that was not invited sent this."""
    origin = headers.get("origin")
    if origin is None or origin in settings.cors or "*" in settings.cors:
        return False
    try:
        asked = urlsplit(origin).netloc.lower()
    except ValueError:  # http://[ is nobody's address
        return True
    if asked != headers.get("host", "").lower():
        return True
    # A site may point its own name at this machine (DNS rebinding). Where no key protects it, only names
    # that cannot be pointed anywhere else are believed.
    return settings.on_loopback and not settings.keys and not _is_local(asked)


def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
