"""The middleware in Ray's proxies: keys, retries and lost answers, with a proxy that is simulated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("starlette")

from nightingale.ray.connection import VARIABLES
from nightingale.ray.proxy_middleware import (
    MAX_BODY_BYTES,
    REPLICA_HEADER,
    AnswerLost,
    middlewares,
    route_and_retry,
)

BODY = json.dumps({"input": "Hi.", "voice": "anna"}).encode()
Message = dict[str, Any]


def start(status: int, *, own: bool = True, kind: bytes = b"audio/pcm") -> Message:
    headers = [(b"content-type", kind), *([(REPLICA_HEADER, b"a")] if own else [])]
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


OK = [start(200), body(b"one", more=True), body(b"two")]
DEAD: list[Message] = []
FULL = [start(429), body(b"full")]


class Proxy:
    """Answers each attempt with the next script, after it has read the request."""

    def __init__(self, *scripts: list[Message]) -> None:
        self.scripts = list(scripts)
        self.attempts: list[tuple[dict[bytes, bytes], bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        got = b""
        if scope["type"] == "http":
            while (message := await receive())["type"] == "http.request":
                got += message.get("body", b"")
                if not message.get("more_body"):
                    break
        self.attempts.append((dict(scope["headers"]), got))
        for message in self.scripts[len(self.attempts) - 1]:
            await send(message)


def ask(
    proxy: Proxy,
    parts: list[bytes] | None = None,
    headers: list[tuple[bytes, bytes]] | None = None,
    path: str = "/v1/audio/speech",
) -> list[Message]:
    parts = [BODY] if parts is None else parts
    received = [
        {"type": "http.request", "body": part, "more_body": number < len(parts) - 1}
        for number, part in enumerate(parts)
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return received.pop(0) if received else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": headers or []}
    asyncio.run(route_and_retry(proxy)(scope, receive, send))
    return sent


def test_the_voice_becomes_the_session_unless_the_client_has_one() -> None:
    proxy = Proxy(OK)
    assert ask(proxy, [BODY[:5], BODY[5:]]) == OK
    assert proxy.attempts == [({b"x-session-id": b"voice:anna"}, BODY)]
    proxy = Proxy(OK)
    ask(proxy, headers=[(b"x-session-id", b"mine")])
    assert proxy.attempts[0][0] == {b"x-session-id": b"mine"}


@pytest.mark.parametrize(
    "first", [DEAD, FULL, [start(503, own=False), body(b"gone")]], ids=["dead", "429", "503"]
)
def test_a_request_that_was_not_answered_is_sent_again_without_a_key(first: list[Message]) -> None:
    proxy = Proxy(first, OK)
    assert ask(proxy) == OK
    assert [received for _, received in proxy.attempts] == [BODY, BODY]
    assert b"x-session-id" not in proxy.attempts[1][0]


def test_the_second_429_reaches_the_client() -> None:
    assert ask(Proxy(FULL, FULL)) == FULL


def test_an_error_of_the_server_itself_is_not_tried_again() -> None:
    for status in (400, 500, 503):
        refused = [start(status), body(b"{}")]
        proxy = Proxy(refused)
        assert ask(proxy) == refused
        assert len(proxy.attempts) == 1


def test_a_request_that_two_replicas_lost_is_answered_503_in_the_usual_envelope() -> None:
    first, last = ask(Proxy(DEAD, DEAD))
    assert first["status"] == 503
    assert json.loads(last["body"])["error"]["code"] == "replica_lost"


def test_audio_that_stops_closes_the_connection_and_is_not_begun_again() -> None:
    proxy = Proxy([start(200), body(b"one", more=True)])
    with pytest.raises(AnswerLost):
        ask(proxy)
    assert len(proxy.attempts) == 1


def test_events_that_stop_end_with_an_error_event() -> None:
    sent = ask(Proxy([start(200, kind=b"text/event-stream"), body(b"data: 1\n\n", more=True)]))
    assert sent[-1]["more_body"] is False
    assert json.loads(sent[-1]["body"].decode().removeprefix("data: "))["type"] == "error"


def test_a_body_that_is_too_long_is_passed_on_and_not_kept() -> None:
    long = b"x" * (MAX_BODY_BYTES // 2 + 1)
    proxy = Proxy(OK)
    assert ask(proxy, [long, long, long]) == OK
    assert proxy.attempts == [({}, 3 * long)]


def test_other_requests_and_sockets_are_passed_on() -> None:
    proxy = Proxy(DEAD)
    assert ask(proxy, path="/v1/audio/voices") == []
    proxy = Proxy([])
    scope = {"type": "websocket", "path": "/v1/text-to-speech/anna/stream-input", "headers": []}

    async def never() -> Message:
        raise AssertionError("nothing is read from a socket")

    asyncio.run(route_and_retry(proxy)(scope, never, never))  # type: ignore[arg-type]
    assert proxy.attempts == [({b"x-session-id": b"voice:anna"}, b"")]


def test_a_client_that_leaves_while_it_sends_is_forgotten() -> None:
    proxy = Proxy(OK)
    assert ask(proxy, []) == []
    assert not proxy.attempts


def test_ray_finds_the_middleware_by_its_path() -> None:
    module, _, name = VARIABLES["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"].rpartition(".")
    found: Callable[[], list[Any]] = getattr(__import__(module, fromlist=[name]), name)
    assert found is middlewares
    assert [middleware.cls for middleware in found()] == [route_and_retry]
