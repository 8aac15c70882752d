"""Hostile input: invalid origins, unfinished requests, log injection, and connections that are never read."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from live_server import LiveServer, live_server
from plain_http import HTTP
from starlette.requests import HTTPConnection
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from nightingale import TTS
from nightingale.errors import QueueFull
from nightingale.server import middleware
from nightingale.server.app import create_app
from nightingale.server.elevenlabs.elevenlabs_routes import parse_options
from nightingale.server.logs import TextFormatter
from nightingale.server.service import speech_service
from nightingale.server.service.speech_service import MAX_PENDING_UPLOADS, SpeechService
from nightingale.server.settings import ServerSettings

STREAM = "/v1/audio/speech/stream"
LONG = "This is one of very many sentences that are only here to make the text long. " * 100


@pytest.mark.parametrize("origin", ["http://[", "null", "", "http://[::1", "//", "http://127.0.0.1:8880:1"])
def test_invalid_origin_is_refused(server: LiveServer, origin: str) -> None:
    answer = HTTP.post(f"{server.http}/v1/audio/speech", json={"input": "Hi."}, headers={"origin": origin})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
    header = {"Origin": origin}
    with pytest.raises(InvalidStatus) as refused, connect(server.ws + STREAM, additional_headers=header):
        pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    ("written", "seconds"), [("nan", 20), ("-inf", 5), ("inf", 180), ("7", 7), ("x", 20)]
)
def test_invalid_inactivity_timeout_is_replaced(written: str, seconds: float) -> None:
    connection = HTTPConnection({"type": "http", "query_string": f"inactivity_timeout={written}".encode()})
    assert asyncio.run(parse_options(connection, "nova")).inactivity_s == seconds


def test_keys_are_read_once_for_routes_and_sockets(small: Callable[..., TTS], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("open sesame\n")
    with small() as tts, live_server(tts, api_key_file=keys) as server:
        keys.write_text("another\n")
        for change in (lambda: None, keys.unlink):
            change()
            for key, is_valid in (("open sesame", True), ("another", False)):
                header = {"xi-api-key": key}
                found = HTTP.get(f"{server.http}/v1/models", headers=header).status_code
                assert found == (200 if is_valid else 401)
                refused = nullcontext() if is_valid else pytest.raises(InvalidStatus, match="401")
                with refused, connect(server.ws + STREAM, additional_headers=header):
                    pass


def test_path_cannot_inject_lines_into_the_log() -> None:
    record = logging.makeLogRecord(
        {"msg": "request", "path": "/x\n12:00:00 info    ready\x1b[2J", "status": 404}
    )
    line = TextFormatter().format(record)
    assert line.isprintable()
    assert "status=404" in line


def test_unfinished_request_is_answered_408(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "BODY_PAUSE_S", 0.2)
    head = "POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(f"{head}content-length: 100\r\n\r\n{{".encode())
        received = b""
        while part := client.recv(4096):  # until the connection is closed
            received += part
    assert received.startswith(b"HTTP/1.1 408")
    assert b"request_timeout" in received


@pytest.mark.parametrize(("length", "status"), [("²", 400), ("9" * 5000, 413), ("-1", 400), ("", 400)])
def test_invalid_content_length_is_a_client_error(length: str, status: int) -> None:
    """uvicorn's parser refuses these today; the middleware does not rely on it."""

    async def run() -> int:
        settings = ServerSettings()
        transport = httpx.ASGITransport(create_app(settings, SpeechService(settings)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"content-length": length.encode("latin-1"), "content-type": "application/json"}
            return (await client.post("/v1/audio/speech", content=b"{", headers=headers)).status_code

    assert asyncio.run(run()) == status


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files by Linux's /proc")
def test_client_that_never_reads_is_disconnected(small: Callable[..., TTS]) -> None:
    """Closing waits until all data was sent, so the kernel has to end the connection."""
    with small(tokens=50) as tts, live_server(tts, send_timeout=0.5) as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            before = _connections(server.port)
            body = b'{"response_format": "wav", "sample_rate": 48000, "input": "%s"}' % LONG.encode()
            head = "POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            deadline = time.monotonic() + 20
            while _connections(server.port) > before - 1 or server.service.metrics.active:
                assert time.monotonic() < deadline, "the connection is still open"
                time.sleep(0.05)
        server.wait_until_idle()


def _connections(port: int) -> int:
    """Count the accepted connections of a port that are open or closing, in the kernel's table."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening, waiting = "0A", "06"
    return sum(int(row[1].split(":")[1], 16) == port and row[3] not in (listening, waiting) for row in rows)


def test_number_of_waiting_uploads_is_limited(
    small: Callable[..., TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(tts: TTS) -> None:
        service, hold = SpeechService(ServerSettings(), tts), threading.Event()
        await service.start()

        def slow(*_: Any) -> None:
            assert hold.wait(10)

        monkeypatch.setattr(service._voices, "add", slow)
        waiting = [asyncio.create_task(service.add_voice(f"v{n}", b"")) for n in range(MAX_PENDING_UPLOADS)]
        await asyncio.sleep(0.05)
        with pytest.raises(QueueFull):
            await service.add_voice("one-more", b"")
        hold.set()
        await asyncio.gather(*waiting)
        await service.add_voice("later", b"")
        await service.stop()

    with small() as tts:
        asyncio.run(asyncio.wait_for(run(tts), 20))


def test_grace_period_is_counted_once(small: Callable[..., TTS], monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn waits for its connections, then the service for its streams; together no longer than set."""

    now_s = 100.0
    clock = SimpleNamespace(monotonic=lambda: now_s)

    async def run(tts: TTS) -> None:
        nonlocal now_s
        service = SpeechService(ServerSettings(), tts)
        await service.start()
        async with await service.open(LONG):
            monkeypatch.setattr(speech_service, "time", clock)
            draining = asyncio.create_task(service.drain(600.0))
            await asyncio.sleep(0)
            assert not service.ready
            now_s += 601.0
            await service.stop(600.0)
            await draining

    with small() as tts:
        asyncio.run(asyncio.wait_for(run(tts), 60))


@pytest.fixture
def steps(small: Callable[..., TTS], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TTS, list[int]]]:
    """Yield an engine and a list that grows with each of its decode steps."""
    with small(tokens=200) as tts:
        taken: list[int] = []
        decode = tts._worker._decode

        def counted() -> None:
            if tts.occupancy.speaking:
                taken.append(1)
            decode()

        monkeypatch.setattr(tts._worker, "_decode", counted)
        yield tts, taken


def test_cancellation_costs_at_most_one_more_decode_step(steps: tuple[TTS, list[int]]) -> None:
    tts, taken = steps
    for _ in range(5):
        session = tts.open(LONG)
        assert session.chunks().__next__()
        session.cancel()
        before = len(taken)
        deadline = time.monotonic() + 10
        while tts.occupancy.speaking:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(0.02)
        assert len(taken) - before <= 1
