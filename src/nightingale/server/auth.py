"""Access control: API keys, and the origins of web pages.

Browsers let any page send some requests to any address, including this machine. They name the page in the
`Origin` header; programs that are not browsers send no such header.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from nightingale.server.http_errors import HttpError
from nightingale.server.settings import ServerSettings, is_loopback

PUBLIC_PATHS = {"/", "/health", "/ready", "/version", "/docs", "/openapi.json"}
PUBLIC_PREFIX = "/page/"
"""Paths that need no key: probes, documentation and the page hold no secrets."""

UNAUTHORIZED = HttpError(
    status=401,
    message="A valid key is required: send Authorization: Bearer KEY or xi-api-key: KEY.",
    code="invalid_api_key",
    headers={"www-authenticate": "Bearer"},
)
FORBIDDEN_ORIGIN = HttpError(
    status=403,
    message="The request comes from a page of another site. List its origin in the setting cors.",
    code="origin_not_allowed",
)


def is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIX)


def request_key(headers: Mapping[str, str]) -> str | None:
    """Return the key that a client sent. Header names are in lower case."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("xi-api-key")


def is_valid_key(keys: Sequence[str], key: str | None) -> bool:
    """Compare the key with all accepted ones in constant time. Without accepted keys, any is valid."""
    if not keys:
        return True
    digest = _digest(key or "")
    # A sum and not `any`: always compare with every key, so that the time does not reveal which one matched.
    return sum(hmac.compare_digest(digest, _digest(known)) for known in keys) > 0


def is_foreign_origin(headers: Mapping[str, str], settings: ServerSettings) -> bool:
    """Return whether a page of a site that is not listed in `cors` sent the request."""
    origin = headers.get("origin")
    if origin is None or origin in settings.cors or "*" in settings.cors:
        return False
    try:
        parts = urlsplit(origin)
        name, host = parts.hostname, parts.netloc.lower()
    except ValueError:  # such as http://[
        return True
    if host != headers.get("host", "").lower():
        return True
    # DNS rebinding: a site may resolve its own name to this machine. Without a key, accept only names that
    # cannot resolve to anything else.
    return is_loopback(settings.host) and not settings.keys and not is_loopback(name or "")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
