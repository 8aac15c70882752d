"""Everything that happens to a request before a route sees it, and to a response on its way out.

An id, a size limit, a key, a line in the log, a count. Plain ASGI: starlette's middleware classes would wait
for whole responses and hide from a route that its client has left.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nightingale.server.auth import FOREIGN, UNAUTHORIZED, is_foreign, is_open, is_right, key_of
from nightingale.server.metrics import Meter
from nightingale.server.problems import Problem, fault
from nightingale.server.settings import Settings
from nightingale.server.speech import new_id

log = logging.getLogger("nightingale.server")

SAFE: Final = ("GET", "HEAD", "OPTIONS")
QUIET: Final = ("/health", "/ready", "/metrics")
"""Probes come every few seconds; they are logged at DEBUG."""
UPLOADS: Final = "/v1/audio/voices"
LEFT: Final = 499
"""In logs and counts: the client left before the first byte. nginx's number; nobody receives it."""
DRAIN_S: Final = 5.0
BODY_PAUSE_S: Final = 30.0
"""A client that stops in the middle of its request for so long is sent away."""
LATE: Final = Problem(
    status=408,
    message=f"The request was not finished: nothing of its body came for {BODY_PAUSE_S:g} s.",
    code="request_timeout",
    headers={"connection": "close"},
)

_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Door:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, settings: Settings, keys: tuple[str, ...], meter: Meter) -> None:
        self._app, self._settings, self._keys, self._meter = app, settings, keys, meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await Passage(self._app, self._settings, self._meter, self._keys, scope, receive, send).go()
        else:
            await self._app(scope, receive, send)


class Passage:
    """One request and its response."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        meter: Meter,
        keys: tuple[str, ...],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._app, self._settings, self._meter, self._keys = app, settings, meter, keys
        self._scope, self._receive, self._send = scope, receive, send
        self._headers = Headers(scope=scope)
        self._path = _path_of(scope)
        given = self._headers.get("x-request-id", "")
        self._id = given if _ID.fullmatch(given) else new_id()
        self._status = 0
        self._began_s = time.perf_counter()
        self._broken_off: Problem | None = None
        """Why no more of the body is read, and what the client is told in place of the route's answer."""
        self._received, self._complete = 0, False
        upload = self._path == UPLOADS and scope["method"] == "POST"
        self._limit = settings.max_upload_bytes if upload else settings.max_body_bytes
        # Routes add to it what the log line should say; text is never among it.
        self._notes: dict[str, Any] = {}

    async def go(self) -> None:
        state = self._scope.setdefault("state", {})
        state["request_id"], state["notes"] = self._id, self._notes
        try:
            problem = self._refusal()
            if problem is not None:
                if problem.status == 413:
                    await self._drain()
                await problem.response(self._scope, self._receive, self._out)
            else:
                await self._app(self._scope, self._in, self._out)
        except Exception:
            log.exception("fault", extra={"request_id": self._id, "path": self._path})
            # After the first byte nothing can be said any more: the connection is cut, which is heard.
            if not self._status:
                await fault(self._id).response(self._scope, self._receive, self._out)
        finally:
            self._account()

    def _refusal(self) -> Problem | None:
        if not is_open(self._path) and self._scope["method"] != "OPTIONS":
            if not is_right(self._keys, key_of(self._headers)):
                return UNAUTHORIZED
            if self._scope["method"] not in SAFE and is_foreign(self._headers, self._settings):
                return FOREIGN
        length = self._headers.get("content-length", "0")
        # Not isdigit: to Python, the superscript that a header may hold is a digit, and no number.
        too_big = length.isdecimal() and (len(length) > 20 or int(length) > self._limit)
        return self._problem_of_size() if too_big else None

    def _problem_of_size(self) -> Problem:
        return Problem(
            status=413,
            message=f"The body is too large: at most {self._limit} bytes are read here.",
            code="request_too_large",
        )

    async def _in(self) -> Message:
        if self._complete:  # whoever asks now waits for the client to leave
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), BODY_PAUSE_S)
        except TimeoutError:
            self._broken_off = LATE
            return {"type": "http.disconnect"}
        if message["type"] == "http.request":
            self._complete = not message.get("more_body", False)
            self._received += len(message.get("body", b""))
            if self._received > self._limit:  # it did not say how long it would be
                self._broken_off = self._problem_of_size()
                return {"type": "http.disconnect"}
        return message

    async def _out(self, message: Message) -> None:
        problem, self._broken_off = self._broken_off, None
        if problem is not None:
            if not self._status:
                await problem.response(self._scope, self._receive, self._out)
            self._broken_off = problem
            return  # whatever the route had to say about half a body
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self._id
            headers.setdefault("x-content-type-options", "nosniff")
        await self._send(message)

    async def _drain(self) -> None:
        """Read what is on its way, within reason: a client that is still sending would not see the answer."""
        seen, until = 0, time.perf_counter() + DRAIN_S
        while seen < 2 * self._limit and (left := until - time.perf_counter()) > 0:
            try:
                message = await asyncio.wait_for(self._receive(), left)
            except TimeoutError:
                return
            if message["type"] != "http.request" or not message.get("more_body"):
                return
            seen += len(message.get("body", b""))

    def _account(self) -> None:
        route = getattr(self._scope.get("route"), "path", None) or "other"
        status = self._status or LEFT
        self._meter.requests.labels(route, str(status)).inc()
        level = logging.DEBUG if self._path in QUIET else logging.INFO
        if log.isEnabledFor(level):
            fields = {
                "method": self._scope["method"],
                "path": self._path,
                "status": status,
                "ms": round(1000 * (time.perf_counter() - self._began_s), 1),
                "request_id": self._id,
            }
            log.log(level, "request", extra=fields | self._notes)


def _path_of(scope: Scope) -> str:
    """The path that routes see: without the prefix of a proxy, where it was left in place."""
    path, prefix = scope["path"], scope.get("root_path", "").rstrip("/")
    return str(path[len(prefix) :]) if prefix and path.startswith(f"{prefix}/") else str(path)
