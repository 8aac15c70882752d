"""ASGI middleware: request ids and the request log, access control, HEAD, and limits of requests.

Browsers let any page send some requests to this machine, and name the page in the header `Origin`.
Starlette's BaseHTTPMiddleware buffers responses and hides from a route that its client has disconnected.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import re
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nightingale.server.http_errors import HttpError, route_path
from nightingale.server.metrics import ServerMetrics
from nightingale.server.settings import ServerSettings, is_loopback
from nightingale.server.tenants.tenant_registry import Access, TenantRegistry, acting_as

log = logging.getLogger("nightingale.server")

PROBES: Final = ("/health", "/ready", "/metrics")
"""Requested every few seconds, so they are logged at DEBUG."""
UPLOAD_PATHS: Final = {"/v1/audio/voices", "/v1/voices/add", "/v1/audio/encode", "/v1/books/text"}
CONVERSION_PREFIX: Final = "/v1/speech-to-speech/"
"""Paths of uploads, whose bodies may be larger."""
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
PUBLIC_PATHS: Final = {"/", "/health", "/ready", "/version", "/docs", "/openapi.json"}
PUBLIC_PREFIX: Final = "/page/"
"""Paths that need no key: probes, documentation and the page hold no secrets."""
MAX_URL_BYTES: Final = 8192
LOGGED_PATH_CHARS: Final = 100
"""If a URL is too long, only this much of its path is logged."""

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

FOREIGN_HOST = HttpError(
    403,
    "The request names a host that this server, which listens on this machine only, does not serve. "
    "If a proxy passes it on, list the name in the setting hosts, or set a key.",
    code="host_not_allowed",
)
URL_TOO_LONG = HttpError(
    414,
    f"The URL is too long: the limit is {MAX_URL_BYTES} bytes. Send text in the body of a POST request.",
    code="url_too_long",
    headers=CLOSE,
)
TWO_LENGTHS = HttpError(
    400,
    "The request has both Content-Length and Transfer-Encoding.",
    code="invalid_request",
    headers=CLOSE,
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
        too_long = len(scope.get("raw_path") or path) + len(scope["query_string"]) > MAX_URL_BYTES
        path = f"{path[:LOGGED_PATH_CHARS]}…" if too_long else path
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
            await (URL_TOO_LONG if too_long else app)(scope, receive, send_with_id)
        except Exception:
            log.exception("fault", extra={"request_id": request_id, "path": path})
            # After the first byte, the client can only be told by closing the connection.
            if not status:
                message = f"Internal server error. The log has the details under {request_id}."
                await HttpError(500, message, "internal_error")(scope, receive, send_with_id)
        finally:
            status = status or CLIENT_CLOSED_REQUEST
            route = getattr(scope.get("route"), "path", None) or "other"
            metrics.requests.labels(route, str(status)).inc()
            if (code := scope["state"].get("error_code")) is not None:
                metrics.rejections.labels(code).inc()
                log_fields.setdefault("error_code", code)
            line = {"method": scope["method"], "path": path, "status": status}
            line |= {"ms": round(1000 * (time.perf_counter() - started_s), 1), "request_id": request_id}
            log.log(logging.DEBUG if path in PROBES else logging.INFO, "request", extra=line | log_fields)

    return middleware


def check_access(app: ASGIApp, settings: ServerSettings, tenants: TenantRegistry) -> ASGIApp:
    """Refuse requests without a valid key, those of pages of other sites, and those for other hosts.

    The others act as the tenant of their key.
    """

    def check(scope: Scope) -> HttpError | Access | None:
        """Return the error to answer, or the access of the key; None if the path needs no key."""
        path, method = route_path(scope), scope.get("method", "WEBSOCKET")
        if not tenants.needs_key and is_foreign_host(Headers(scope=scope), settings):
            return FOREIGN_HOST
        if path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIX) or method == "OPTIONS":
            return None
        headers = Headers(scope=scope)
        if (access := tenants.identify(request_key(headers))) is None:
            return UNAUTHORIZED
        is_safe = method in ("GET", "HEAD")
        return access if is_safe or not is_foreign_origin(headers, settings) else FORBIDDEN_ORIGIN

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        result = check(scope) if scope["type"] != "lifespan" else None
        if isinstance(result, HttpError):
            await result(scope, receive, send)
            return
        with acting_as(result):
            scope.setdefault("state", {}).setdefault("log_fields", {}).update(tenants.log_fields())
            await app(scope, receive, send)

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


def is_foreign_origin(headers: Mapping[str, str], settings: ServerSettings) -> bool:
    """Return whether a page of a site that is not listed in `cors` sent the request."""
    origin = headers.get("origin")
    if origin is None or origin in settings.cors or "*" in settings.cors:
        return False
    try:
        parts = urlsplit(origin)
        host = parts.netloc.lower()
    except ValueError:  # such as http://[
        return True
    return host != headers.get("host", "").lower()


def is_foreign_host(headers: Mapping[str, str], settings: ServerSettings) -> bool:
    """Return whether a site may have resolved its own name to this machine: DNS rebinding.

    A server for this machine only accepts names that cannot resolve to anything else, and those in the setting
    `hosts`. With keys, any name is harmless.
    """
    if not is_loopback(settings.host) or "*" in settings.hosts:
        return False
    try:
        name = urlsplit(f"//{headers.get('host', '')}").hostname
    except ValueError:  # such as [
        return True
    return name is not None and not is_loopback(name) and name not in settings.hosts


def answer_head(app: ASGIApp) -> ASGIApp:
    """Answer HEAD as GET is answered, without the body; FastAPI's routes answer only the methods they name."""

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        inner = {**scope, "method": "GET"}
        try:
            await app(inner, receive, send_without_body)
        finally:
            scope["route"] = inner.get("route")

    return middleware


def limit_bodies(app: ASGIApp, settings: ServerSettings) -> ASGIApp:
    """Answer 413 to a body over the limit and 408 to one that stops arriving."""

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if "content-length" in headers and "transfer-encoding" in headers:  # proxies may read another length
            await TWO_LENGTHS(scope, receive, send)
            return
        path = route_path(scope)
        is_upload = scope["method"] == "POST" and (path in UPLOAD_PATHS or path.startswith(CONVERSION_PREFIX))
        limit = settings.max_upload_bytes if is_upload else settings.max_body_bytes
        length = headers.get("content-length", "0")
        # isdecimal and not isdigit: a superscript is a digit to Python, and int() refuses it.
        if length.isdecimal() and (len(length) > 20 or int(length) > limit):
            await _drain(receive, 2 * limit)
            await _too_large(limit)(scope, receive, send)
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
