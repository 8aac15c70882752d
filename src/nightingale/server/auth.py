"""Access control of HTTP requests and WebSockets: API keys, and the origins of web pages.

Browsers let any page send some requests to any address, including this machine. They name the page in the
`Origin` header; programs that are not browsers send no such header.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from nightingale.server.http_errors import HttpError
from nightingale.server.middleware import route_path
from nightingale.server.settings import ServerSettings, is_loopback

KEY_SUBPROTOCOL: Final = "nightingale.key."
"""Browsers cannot set headers on a WebSocket. They can offer subprotocols, which are not logged as URLs
are: `new WebSocket(url, ["nightingale.v1", "nightingale.key." + base64url(key)])`."""
PUBLIC_PATHS = {"/", "/health", "/ready", "/version", "/docs", "/openapi.json"}
PUBLIC_PREFIX = "/page/"
"""Paths that need no key: probes, documentation and the page hold no secrets."""

UNAUTHORIZED = HttpError(
    401,
    "A valid key is required: send Authorization: Bearer KEY or xi-api-key: KEY.",
    code="invalid_api_key",
    headers={"www-authenticate": "Bearer"},
)
FORBIDDEN_ORIGIN = HttpError(
    403,
    "The request comes from a page of another site. List its origin in the setting cors.",
    code="origin_not_allowed",
)


def check_access(app: ASGIApp, settings: ServerSettings, keys: tuple[str, ...]) -> ASGIApp:
    """Refuse requests without a valid key, and those of pages of other sites."""

    def error_of(scope: Scope) -> HttpError | None:
        path, method = route_path(scope), scope.get("method", "WEBSOCKET")
        if path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIX) or method == "OPTIONS":
            return None
        headers = Headers(scope=scope)
        if not is_valid_key(keys, request_key(headers)):
            return UNAUTHORIZED
        is_safe = method in ("GET", "HEAD")
        return None if is_safe or not is_foreign_origin(headers, settings) else FORBIDDEN_ORIGIN

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        error = error_of(scope) if scope["type"] != "lifespan" else None
        await (app if error is None else error.response)(scope, receive, send)

    return middleware


def request_key(headers: Mapping[str, str]) -> str | None:
    """Return the key that a client sent. Header names are in lower case."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    if (key := headers.get("xi-api-key")) is not None:
        return key
    for offer in headers.get("sec-websocket-protocol", "").split(","):
        if offer.strip().startswith(KEY_SUBPROTOCOL):
            coded = offer.strip().removeprefix(KEY_SUBPROTOCOL)
            try:
                return base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
            except ValueError:
                return None
    return None


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
