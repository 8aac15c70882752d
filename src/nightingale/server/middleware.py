"""ASGI middleware: request ids and the request log, access control, and limits of request bodies.

Browsers let any page send some requests to this machine, and name the page in the header `Origin`.
Starlette's BaseHTTPMiddleware buffers responses and hides from a route that its client has disconnected.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nightingale.server.http_errors import HttpError
from nightingale.server.metrics import ServerMetrics
from nightingale.server.settings import ServerSettings, is_loopback

log = logging.getLogger("nightingale.server")

PROBES: Final = ("/health", "/ready", "/metrics")
"""Requested every few seconds, so they are logged at DEBUG."""
UPLOAD_PATH: Final = "/v1/audio/voices"
CLIENT_CLOSED_REQUEST: Final = 499
"""nginx's status, in logs and counters only: the client disconnected before the first byte was sent."""
DRAIN_S: Final = 5.0
BODY_PAUSE_S: Final = 30.0
"""Maximum time between two parts of a request body."""
CLOSE: Final = {"connection": "close"}
"""Otherwise uvicorn reads and discards the rest of the body."""

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

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def log_requests(app: ASGIApp, metrics: ServerMetrics) -> ASGIApp:
    """Give each request an id, log and count it, and answer 500 if a route raises.

    Routes add fields to the log line through `scope["state"]["log_fields"]`; the text to speak is never one.
    """

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{uuid4().hex}"
        path, log_fields = route_path(scope), dict[str, Any]()
        scope.setdefault("state", {}).update(request_id=request_id, log_fields=log_fields)
        started_s, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers.setdefault("x-content-type-options", "nosniff")
            await send(message)

        try:
            await app(scope, receive, send_with_id)
        except Exception:
            log.exception("fault", extra={"request_id": request_id, "path": path})
            # After the first byte, the client can only be told by closing the connection.
            if not status:
                message = f"Internal server error. The log has the details under {request_id}."
                error = HttpError(500, message, "internal_error")
                await error.response(scope, receive, send_with_id)
        finally:
            status = status or CLIENT_CLOSED_REQUEST
            route = getattr(scope.get("route"), "path", None) or "other"
            metrics.requests.labels(route, str(status)).inc()
            line = {"method": scope["method"], "path": path, "status": status}
            line |= {"ms": round(1000 * (time.perf_counter() - started_s), 1), "request_id": request_id}
            log.log(logging.DEBUG if path in PROBES else logging.INFO, "request", extra=line | log_fields)

    return middleware


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
    given, *known = (
        hashlib.sha256(each.encode("utf-8", "surrogateescape")).digest() for each in (key or "", *keys)
    )
    # A sum and not `any`: always compare with every key, so that the time does not reveal which one matched.
    return not known or sum(hmac.compare_digest(given, each) for each in known) > 0


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


def limit_bodies(app: ASGIApp, settings: ServerSettings) -> ASGIApp:
    """Answer 413 to a body over the limit and 408 to one that stops arriving."""

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        is_upload = scope["method"] == "POST" and route_path(scope) == UPLOAD_PATH
        limit = settings.max_upload_bytes if is_upload else settings.max_body_bytes
        length = Headers(scope=scope).get("content-length", "0")
        # isdecimal and not isdigit: a superscript is a digit to Python, and int() refuses it.
        if length.isdecimal() and (len(length) > 20 or int(length) > limit):
            await _drain(receive, 2 * limit)
            await _too_large(limit).response(scope, receive, send)
            return
        received, complete = 0, False

        async def receive_limited() -> Message:
            """Receive a part of the body, or raise an error, which FastAPI passes on to its handler."""
            nonlocal received, complete
            if complete:  # the route waits for the client to disconnect
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), BODY_PAUSE_S)
            except TimeoutError as error:
                text = f"The request is incomplete: no part of its body arrived for {BODY_PAUSE_S:g} s."
                raise HttpError(408, text, code="request_timeout", headers=CLOSE) from error
            if message["type"] == "http.request":
                complete = not message.get("more_body", False)
                received += len(message.get("body", b""))
                if received > limit:  # a chunked body does not announce its length
                    raise _too_large(limit)
            return message

        await app(scope, receive_limited, send)

    return middleware


def _too_large(limit: int) -> HttpError:
    message = f"The body is too large: the limit is {limit} bytes."
    return HttpError(413, message, code="request_too_large", headers=CLOSE)


async def _drain(receive: Receive, limit: int) -> None:
    """Read some of the body: a client that is still sending does not see the response."""
    seen = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            while seen < limit:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
                seen += len(message.get("body", b""))


def route_path(scope: Scope) -> str:
    """Return the path as routes see it: without the prefix of a proxy that does not strip it."""
    path, prefix = scope["path"], scope.get("root_path", "").rstrip("/")
    return str(path[len(prefix) :]) if prefix and path.startswith(f"{prefix}/") else str(path)
