"""ASGI middleware: request ids and the request log, and limits of request bodies.

Plain ASGI rather than starlette's BaseHTTPMiddleware, which buffers responses and hides from a route that its
client has disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from typing import Any, Final
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nightingale.server.http_errors import SERVER, HttpError
from nightingale.server.metrics import ServerMetrics
from nightingale.server.settings import ServerSettings

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
                error = HttpError(500, message, kind=SERVER, code="internal_error")
                await error.response(scope, receive, send_with_id)
        finally:
            status = status or CLIENT_CLOSED_REQUEST
            route = getattr(scope.get("route"), "path", None) or "other"
            metrics.requests.labels(route, str(status)).inc()
            line = {"method": scope["method"], "path": path, "status": status}
            line |= {"ms": round(1000 * (time.perf_counter() - started_s), 1), "request_id": request_id}
            log.log(logging.DEBUG if path in PROBES else logging.INFO, "request", extra=line | log_fields)

    return middleware


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
