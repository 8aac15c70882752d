"""Slow, silent, disconnected and malformed WebSocket clients do not affect other clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from live_server import EndlessService, LiveServer, live_server
from starlette.websockets import WebSocket, WebSocketState
from websockets.sync.client import connect

from nightingale import TTS
from nightingale.server.service.speech_turns import ClientGone
from nightingale.server.websocket_io import ClientSocket
from nightingale.server.websocket_protocol import LimitedWebSocketProtocol

NATIVE = "/v1/audio/speech/stream"
MULTI = "/v1/text-to-speech/noise/multi-stream-input?output_format=pcm_24000"
ASK = {
    NATIVE: {"type": "input_text.append", "text": "Hello there, and go on. "},
    MULTI: {"text": "Hello there, and go on. ", "context_id": "a", "flush": True},
}
PATHS = pytest.mark.parametrize("path", [NATIVE, MULTI], ids=["native", "elevenlabs"])


class RawSocket:
    """A WebSocket client on a raw TCP socket, which reads only on demand."""

    def __init__(self, server: LiveServer, path: str) -> None:
        self.raw = socket.socket()
        self.raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.raw.settimeout(5)
        self.raw.connect(("127.0.0.1", server.port))
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: websocket\r\n"
        head += "Connection: Upgrade\r\nSec-WebSocket-Key: bmlnaHRpbmdhbGVfXzEyMw==\r\n"
        self.raw.sendall(f"{head}Sec-WebSocket-Version: 13\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.raw.recv(1)
        assert b" 101 " in answer

    def send(self, message: dict[str, Any]) -> None:
        self.frame(json.dumps(message).encode())

    def frame(self, data: bytes, opcode: int = 1, final: bool = True, masked: bool = True) -> None:
        size = len(data)
        length = struct.pack("!BQ", 127, size)
        if size <= 65535:
            length = struct.pack("!B", size) if size < 126 else struct.pack("!BH", 126, size)
        head = bytes([opcode | 128 * final, length[0] | 128 * masked]) + length[1:]
        mask = os.urandom(4)
        body = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data)) if masked else data
        self.raw.sendall(head + (mask if masked else b"") + body)

    def __enter__(self) -> RawSocket:
        return self

    def __exit__(self, *_: object) -> None:
        """Reset the connection, as when the process of a client is killed."""
        self.raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.raw.close()


def check_served(server: LiveServer) -> None:
    """Check that another client is served."""
    with connect(server.ws + NATIVE) as client:
        client.send(json.dumps(ASK[NATIVE]))
        client.send('{"type": "input_text.end"}')
        while isinstance(message := client.recv(60), bytes) or "speech.audio.done" not in message:
            pass


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def server(brief: TTS) -> Iterator[LiveServer]:
    with live_server(brief, max_body_bytes=65536) as running:
        yield running


@PATHS
def test_stalled_client_is_sent_little_and_then_dropped(brief: TTS, path: str) -> None:
    service = EndlessService(brief, endless=1)
    with live_server(brief, service, send_timeout=0.5) as server, RawSocket(server, path) as slow:
        slow.send(ASK[path])
        wait_for(lambda: bool(service.streams))
        check_served(server)
        wait_for(lambda: service.streams[0].cancelled)
        # As much as the kernel and one buffer hold.
        assert service.streams[0].chunks_read < 400


@PATHS
def test_slow_client_is_waited_for(brief: TTS, path: str) -> None:
    service = EndlessService(brief, endless=1)
    with live_server(brief, service, send_timeout=0.5) as server:
        with RawSocket(server, path) as slow:
            slow.send(ASK[path])
            for _ in range(10):
                time.sleep(0.1)
                left = 100_000
                while left > 0:
                    left -= len(slow.raw.recv(left))
            assert not service.streams[0].cancelled
        wait_for(lambda: service.streams[0].cancelled)


@PATHS
def test_client_that_answers_no_ping_is_dropped(brief: TTS, path: str) -> None:
    """Nothing is being sent to the client either, because its text has not ended."""
    with live_server(brief, ping_s=0.2) as server, RawSocket(server, path) as silent:
        silent.send({**ASK[path], "flush": False})
        wait_for(lambda: server.service.metrics.active == 1)
        wait_for(lambda: server.service.metrics.active == 0)
        check_served(server)


@PATHS
def test_thirty_killed_clients_are_cancelled(brief: TTS, path: str) -> None:
    service = EndlessService(brief, endless=30)
    with live_server(brief, service) as server:
        for _ in range(30):
            with RawSocket(server, path) as victim:
                victim.send(ASK[path])
                victim.raw.recv(1000)
        check_served(server)
        wait_for(lambda: all(session.cancelled for session in service.streams))
        assert len(service.streams) == 30


MALFORMED = {
    "random bytes": lambda client: client.raw.sendall(os.urandom(2000)),
    "a frame without a mask": lambda client: client.frame(b"{}", masked=False),
    "an unknown opcode": lambda client: client.frame(b"{}", opcode=7),
    "a continuation without a start": lambda client: client.frame(b"{}", opcode=0),
    "text that is not UTF-8": lambda client: client.frame(b"\xff\xfe"),
    "a message over the limit": lambda client: client.frame(b"x" * 70_000),
    "a fragmented message over the limit": lambda client: [
        client.frame(b"x" * 20_000, opcode=0 if part else 1, final=False) for part in range(4)
    ],
    "a length without data": lambda client: client.raw.sendall(b"\x81\xff" + b"\x00\x00\x7f" + b"\xff" * 5),
    "half a frame": lambda client: client.raw.sendall(b"\x81\xfe\x10"),
}


@PATHS
@pytest.mark.parametrize("send_malformed", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_frames_affect_no_other_client(
    server: LiveServer, path: str, send_malformed: Callable[[RawSocket], object]
) -> None:
    with RawSocket(server, path) as client:
        client.send(ASK[path])
        send_malformed(client)
        check_served(server)
    server.wait_until_idle()


@PATHS
def test_flood_of_messages_is_held_back(server: LiveServer, path: str) -> None:
    """A client that does not read the responses is not read any further (backpressure)."""
    with RawSocket(server, path) as client:
        client.raw.settimeout(0.5)
        flood = (b"\x81\xfe\x03\xe8" + bytes(4) + b"?" * 1000) * 100  # masked with zeros
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 1000:
                client.raw.sendall(flood)
                sent += 1
        assert 0 < sent < 1000
        check_served(server)


INPUT = "/v1/text-to-speech/noise/stream-input?output_format=pcm_24000"
LAST = {NATIVE: {"type": "ping"}, INPUT: {"text": ""}}


@pytest.mark.parametrize("path", LAST)
@pytest.mark.parametrize("text", ["- - - - - ", "-C![①-C![①"])
def test_small_messages_cost_as_much_at_the_end_of_a_long_text(
    server: LiveServer, path: str, text: str
) -> None:
    def cpu_s(messages: int) -> float:
        start_s = time.process_time()
        with connect(server.ws + path) as client:
            for _ in range(messages):
                client.send(json.dumps({**ASK[NATIVE], "text": text} if path == NATIVE else {"text": text}))
            client.send(json.dumps(LAST[path]))
            while isinstance(message := client.recv(60), bytes) or not (
                '"pong"' in message or '"isFinal": true' in message
            ):
                pass
        server.wait_until_idle()
        return time.process_time() - start_s

    cpu_s(10)
    assert cpu_s(900) < 12 * max(0.05, cpu_s(225)), "four times the text is quadratic at 16, cubic at 64"


REALTIME = "/v1/realtime"


@pytest.mark.parametrize("path", [NATIVE, MULTI, REALTIME])
def test_text_that_is_not_utf8_is_one_line_in_the_log(
    server: LiveServer, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with RawSocket(server, path) as client:
        client.frame(b"\xff\xfe")
        wait_for(lambda: any("not UTF-8" in record.msg for record in caplog.records))
    server.wait_until_idle()
    assert all(record.levelno <= logging.INFO and not record.exc_info for record in caplog.records)


@pytest.mark.parametrize("path", [NATIVE, REALTIME])
def test_a_client_that_leaves_in_the_greeting_is_one_line_in_the_log(
    server: LiveServer, path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(_socket: ClientSocket, _message: dict[str, Any]) -> None:
        raise ClientGone

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(ClientSocket, "json", gone)
    with RawSocket(server, path):
        wait_for(lambda: any("left before" in record.msg for record in caplog.records))
    server.wait_until_idle()
    assert all(record.levelno <= logging.INFO and not record.exc_info for record in caplog.records)


def test_pings_of_a_client_that_does_not_read_take_no_memory_and_end_the_connection(brief: TTS) -> None:
    pings = (b"\x89\xfd" + bytes(4) + b"?" * 125) * 1000  # masked with zeros
    pending: list[int] = []

    class Watched(LimitedWebSocketProtocol):
        def handle_ping(self) -> None:
            super().handle_ping()
            pending.append(self.transport.get_write_buffer_size())

    def flood(client: RawSocket) -> None:
        for _ in range(2000):
            client.raw.sendall(pings)

    with (
        live_server(brief, send_timeout=0.5, websockets=Watched) as server,
        RawSocket(server, NATIVE) as client,
    ):
        with pytest.raises(ConnectionError):
            flood(client)
        check_served(server)
    assert len(pending) > 3000, "more was sent than the kernel's buffers hold"
    assert max(pending) < 500_000


def test_messages_that_arrive_at_once_are_not_handled_at_once() -> None:
    """Other tasks of the event loop run between them."""

    class Queued:
        client_state, left = WebSocketState.CONNECTED, 100

        async def receive(self) -> dict[str, Any]:
            self.left -= 1
            return {"type": "websocket.receive" if self.left >= 0 else "websocket.disconnect", "text": "{}"}

    async def run() -> int:
        rounds, handled = 0, asyncio.Event()

        async def count() -> None:
            nonlocal rounds
            while not handled.is_set():
                rounds += 1
                await asyncio.sleep(0)

        async def handle(_message: str | bytes) -> None:
            pass

        other = asyncio.create_task(count())
        await ClientSocket(cast(WebSocket, Queued()), 1.0).receive(handle)
        handled.set()
        await other
        return rounds

    assert asyncio.run(run()) >= 100
