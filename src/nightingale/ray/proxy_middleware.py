"""ASGI middleware that runs in Ray Serve's proxies: it finds the key of a request and hides failures of a replica.

Ray's proxy routes a request before it has read the body, which names the voice. So this middleware reads the body
of a request for speech first, and puts its key into the header that Ray hands to the router. If the replica dies
before it has answered, or has no place, the request is sent to another one; the client notices nothing.

A proxy loads it if a variable names `middlewares` when Ray is started: `connection.VARIABLES`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nightingale.ray.affinity import SESSION_HEADER, is_speech, voice_key
from nightingale.server.http_errors import HttpError

REPLICA_HEADER: Final = b"x-replica"
"""Set by each replica; an answer without it is Ray's own."""
MAX_BODY_BYTES: Final = 1 << 20
"""Longer bodies are not read: they cannot be sent again, and have no key."""
ATTEMPTS: Final = 2
"""One more than a failure: a request that ends each replica it is sent to must not end them all."""
QUEUE_FULL: Final = 429
LOST: Final = HttpError(
    503,
    "The replica that served this request has stopped, and no other one has answered. Try again.",
    code="replica_lost",
    headers={"retry-after": "1"},
)


def middlewares() -> list[Middleware]:
    """Return what Ray's proxies put around their application."""
    return [Middleware(route_and_retry)]


class AnswerLost(ConnectionError):
    """The replica has stopped in the middle of its answer: the connection is closed without an end."""


def route_and_retry(app: ASGIApp) -> ASGIApp:
    """Give each request its key, and send those for speech again if a replica fails before it answers."""

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await app(_with_key(scope, voice_key(scope["path"], b"")), receive, send)
        elif scope["type"] == "http" and is_speech(scope["method"], scope["path"]):
            await _speak(app, scope, receive, send)
        else:
            await app(scope, receive, send)

    return middleware


async def _speak(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    messages, body = await _read_body(receive)
    if messages[-1]["type"] == "http.disconnect":
        return
    if messages[-1].get("more_body"):  # too long to be kept
        await app(scope, _replay(messages, receive), send)
        return
    keyed = _with_key(scope, voice_key(scope["path"], body))
    for attempt in range(1, ATTEMPTS + 1):
        answer = Answer(send, may_retry=attempt < ATTEMPTS)
        # After the first attempt without a key: to the least loaded replica.
        await app(keyed if attempt == 1 else dict(scope), _replay(messages, receive), answer.send)
        if answer.is_complete:
            return
        if answer.has_started:
            await answer.end_early()
            return
    await LOST(scope, receive, send)


class Answer:
    """The answer of one attempt. It reaches the client from its first part on, unless another attempt follows."""

    def __init__(self, send: Send, *, may_retry: bool) -> None:
        self._send, self._may_retry = send, may_retry
        self._is_refused = self._is_events = False
        self.has_started = self.is_complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            is_own = REPLICA_HEADER.decode() in headers
            is_refusal = not is_own or message["status"] == QUEUE_FULL
            if message["status"] >= 400 and is_refusal and self._may_retry:
                self._is_refused = True
                return
            self._is_events = headers.get("content-type", "").startswith("text/event-stream")
            self.has_started = True
        elif self._is_refused:
            return
        elif message["type"] == "http.response.body":
            self.is_complete = not message.get("more_body", False)
        await self._send(message)

    async def end_early(self) -> None:
        """Tell a client that reads events that no more follow; close the connection of any other one."""
        if not self._is_events:
            raise AnswerLost("the replica stopped in the middle of its answer")
        event = f"data: {json.dumps({'type': 'error', **LOST.envelope}, separators=(',', ':'))}\n\n"
        await self._send({"type": "http.response.body", "body": event.encode(), "more_body": False})


async def _read_body(receive: Receive) -> tuple[list[Message], bytes]:
    """Receive a request's messages up to the end of its body, or until it is too long."""
    messages, body = [await receive()], b""
    while messages[-1]["type"] == "http.request":
        body += messages[-1].get("body", b"")
        if not messages[-1].get("more_body") or len(body) > MAX_BODY_BYTES:
            break
        messages.append(await receive())
    return messages, body


def _replay(messages: list[Message], receive: Receive) -> Receive:
    """Return a function that gives the messages again, and then what the client sends."""
    left = list(messages)

    async def receive_again() -> Message:
        return left.pop(0) if left else await receive()

    return receive_again


def _with_key(scope: Scope, key: str | None) -> dict[str, Any]:
    """Return the scope with a key in the header of sessions, unless the client has sent one or there is none."""
    headers = list(scope["headers"])
    if key is not None and not any(name.lower() == SESSION_HEADER for name, _ in headers):
        headers.append((SESSION_HEADER, key.encode("utf-8", "surrogatepass")))
    return {**scope, "headers": headers}
