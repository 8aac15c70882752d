"""Details of HTTP that proxies, browsers and attackers rely on, and what a full disk or a loading model answers."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import uvicorn
from live_server import LiveServer, live_server
from plain_http import HTTP
from server.test_voices import clip, error_of, upload

from nightingale import TTS
from nightingale.errors import OutputError
from nightingale.server.app import create_app
from nightingale.server.http_protocol import TimedHttpProtocol
from nightingale.server.service import model_loading
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.settings import ServerSettings
from nightingale.voices import library


def raw(server: LiveServer, request: bytes) -> bytes:
    """Send bytes; return all that comes back until the server closes the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(request)
        while part := client.recv(4096):
            received += part
    return received


@pytest.mark.parametrize(
    "path", ["/", "/health", "/ready", "/v1/models", "/v1/audio/voices", "/openapi.json"]
)
def test_head_has_the_headers_of_get_and_no_body(server: LiveServer, path: str) -> None:
    head, get = (HTTP.request(method, server.http + path) for method in ("HEAD", "GET"))
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-type", "content-length"):
        assert head.headers.get(name) == get.headers.get(name)


def test_head_of_a_route_without_get_is_not_allowed(server: LiveServer) -> None:
    assert HTTP.head(f"{server.http}/v1/audio/speech").status_code == 405


def test_two_lengths_are_refused_and_the_connection_is_closed(server: LiveServer) -> None:
    request = (
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    received = raw(server, request)
    assert received.startswith(b"HTTP/1.1 400")
    assert received.count(b"HTTP/1.1") == 1, "the second request, which a proxy has not seen, is not answered"


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/metrics"])
def test_a_foreign_host_is_refused_on_every_route(server: LiveServer, path: str) -> None:
    answer = HTTP.get(server.http + path, headers={"host": "evil.example"})
    assert error_of(answer, 403)["code"] == "host_not_allowed"
    for good in ("localhost", "127.0.0.1:1", "[::1]", "tts.localhost:80"):
        assert HTTP.get(server.http + path, headers={"host": good}).status_code == 200


@pytest.mark.parametrize("settings", [{"hosts": ["tts.example"]}, {"hosts": ["*"]}, {"api_key": "k"}])
def test_a_host_that_a_proxy_passes_on_is_allowed(
    small: Callable[..., TTS], settings: dict[str, Any]
) -> None:
    headers = {"host": "tts.example", "authorization": "Bearer k"}
    with small() as tts, live_server(tts, **settings) as server:
        assert HTTP.get(f"{server.http}/v1/models", headers=headers).status_code == 200


def test_no_redirect_uses_the_host_that_a_request_names(server: LiveServer) -> None:
    for path in ("/v1/models/", "//v1/models", "/health/"):
        answer = HTTP.get(server.http + path, headers={"host": "localhost"}, follow_redirects=False)
        assert answer.status_code == 404


def test_a_long_url_is_refused_and_not_logged(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "nightingale.server"):
        for url in (f"/v1/models/{'secret' * 2000}", f"/v1/models?q={'secret' * 2000}"):
            assert error_of(HTTP.get(server.http + url), 414)["code"] == "url_too_long"
        deadline_s = time.monotonic() + 10
        while len(lines := [record for record in caplog.records if record.msg == "request"]) < 2:
            assert time.monotonic() < deadline_s, (
                "no line, although requests are logged after they are answered"
            )
            time.sleep(0.01)
    assert all(len(line.path) < 200 for line in lines)


def test_headers_that_do_not_arrive_are_not_waited_for(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedHttpProtocol, "headers_s", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(ServerSettings(), server.service)
    config = uvicorn.Config(app, http=TimedHttpProtocol, log_config=None, lifespan="off")
    timed = uvicorn.Server(config)
    thread = threading.Thread(target=timed.run, args=([listener],), daemon=True)
    thread.start()
    other = LiveServer(server.service, listener.getsockname()[1])
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    try:
        assert raw(other, b"").startswith(b"HTTP/1.1 408")
        assert raw(other, whole[:-2]).startswith(b"HTTP/1.1 408")
        with socket.create_connection(("127.0.0.1", other.port), timeout=10) as client:
            client.sendall(whole)
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):
                answer += client.recv(4096)
            client.sendall(b"GET /he")  # a second request
            assert client.recv(4096).startswith(b"HTTP/1.1 408")
        # A body and an answer may take longer than the headers.
        body = b'{"input": "Hi.", "response_format": "pcm"}'
        head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", other.port), timeout=10) as client:
            client.sendall(head)
            threading.Event().wait(0.5)
            client.sendall(body)
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
    finally:
        timed.should_exit = True
        thread.join(15)
        listener.close()


def test_a_sample_rate_of_zero_is_refused(server: LiveServer) -> None:
    body = {"input": "Hi.", "sample_rate": 0}
    assert error_of(HTTP.post(f"{server.http}/v1/audio/speech", json=body), 400)["param"] == "sample_rate"


def test_a_language_may_have_a_region(server: LiveServer) -> None:
    body = {"input": "Hi.", "response_format": "pcm", "language": "en-US"}
    assert HTTP.post(f"{server.http}/v1/audio/speech", json=body).status_code == 200
    url = f"{server.http}/v1/text-to-speech/noise?output_format=pcm_24000"
    assert HTTP.post(url, json={"text": "Hi.", "language_code": "en-US"}).status_code == 200


def test_errors_of_an_upload_name_its_field(server: LiveServer) -> None:
    assert error_of(upload(server, "A b", clip()), 400)["param"] == "name"
    for form in ("WAV", "FLAC"):
        whole = clip(3.0, form=form)
        assert error_of(upload(server, "half", whole[: len(whole) // 2]), 400)["code"] == "invalid_audio"


@pytest.mark.parametrize(
    "fault",
    [
        OutputError(
            "the file could not be written", got="/srv/voices/a.safetensors: No space left on device"
        ),
        PermissionError(13, "Permission denied", "/srv/voices"),
    ],
)
def test_voices_that_cannot_be_stored_are_answered_507_and_the_log_has_the_cause(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise fault

    monkeypatch.setattr(library, "add", fail)
    monkeypatch.setattr(library, "remove", fail)
    for answer in (upload(server, "a", clip()), HTTP.delete(f"{server.http}/v1/audio/voices/a")):
        error = error_of(answer, 507)
        assert error["code"] == "no_room"
        assert "/srv" not in error["message"]
    causes = [record.error for record in caplog.records if hasattr(record, "error")]
    assert causes == [str(fault)] * 2


def test_requests_beyond_the_queue_are_refused_while_the_model_loads(
    small: Callable[..., TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one slot and one place in the queue, 58 of 60 requests are refused at once, and not after loading."""
    load = threading.Event()

    def slow_load(_: ServerSettings) -> TTS:
        load.wait(30)
        return small(slots=1, queue=1)

    monkeypatch.setattr(model_loading, "load_engine", slow_load)
    settings = ServerSettings(slots=1, max_queue=1)

    async def run() -> list[int]:
        service = SpeechService(settings)
        transport = httpx.ASGITransport(create_app(settings, service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client:
            body = {"input": "Hi.", "response_format": "pcm"}
            asking = [asyncio.create_task(client.post("/v1/audio/speech", json=body)) for _ in range(60)]
            refused, waiting = await asyncio.wait(asking, timeout=5)
            assert {(await answer).status_code for answer in refused} == {429}
            load.set()
            statuses = [(await answer).status_code for answer in waiting]
        await service.stop()
        return statuses

    assert asyncio.run(run()) == [200, 200]
