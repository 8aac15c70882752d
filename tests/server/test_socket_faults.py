"""Clients that are slow, silent, gone or mad: the others are served as if nobody else were there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from live_server import LiveServer, Talker, live_server
from websockets.sync.client import connect

from nightingale import TTS

NATIVE = "/v1/audio/speech/stream"
MULTI = "/v1/text-to-speech/noise/multi-stream-input?output_format=pcm_24000"
ASK = {
    NATIVE: {"type": "input_text.append", "text": "Hello there, and go on. "},
    MULTI: {"text": "Hello there, and go on. ", "context_id": "a", "flush": True},
}
PATHS = pytest.mark.parametrize("path", [NATIVE, MULTI], ids=["native", "elevenlabs"])


class RawSocket:
    """A WebSocket client without manners: it reads only when told to."""

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
        """As a process that was killed: a reset, and no goodbye."""
        self.raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.raw.close()


def served(server: LiveServer, limit_s: float = 5.0) -> None:
    """Somebody with manners comes, and is served at once."""
    began = time.monotonic()
    with connect(server.ws + NATIVE) as client:
        client.send(json.dumps(ASK[NATIVE]))
        client.send('{"type": "input_text.end"}')
        while isinstance(message := client.recv(5), bytes) or "speech.audio.done" not in message:
            pass
    assert time.monotonic() - began < limit_s


def wait_for(true: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def server(brief: TTS) -> Iterator[LiveServer]:
    with live_server(brief, max_body_bytes=65536) as running:
        yield running


@PATHS
def test_a_client_that_does_not_read_is_sent_little_and_then_let_go(brief: TTS, path: str) -> None:
    talker = Talker(brief, endless=1)
    with live_server(brief, talker, send_timeout=0.5) as server, RawSocket(server, path) as slow:
        slow.send(ASK[path])
        wait_for(lambda: bool(talker.given))
        served(server)
        wait_for(lambda: talker.given[0].cancelled)
        # What the kernel and one buffer hold, and not what an endless speaker has to say.
        assert talker.given[0].taken < 400


@PATHS
def test_a_client_that_reads_slowly_is_waited_for(brief: TTS, path: str) -> None:
    talker = Talker(brief, endless=1)
    with live_server(brief, talker, send_timeout=0.5) as server:
        with RawSocket(server, path) as slow:
            slow.send(ASK[path])
            for _ in range(10):
                time.sleep(0.1)
                left = 100_000
                while left > 0:
                    left -= len(slow.raw.recv(left))
            assert not talker.given[0].cancelled
        wait_for(lambda: talker.given[0].cancelled)


@PATHS
def test_a_client_whose_cable_was_cut_is_noticed_by_its_silence(brief: TTS, path: str) -> None:
    """It answers no ping. Nothing is being sent to it either: its text has not ended."""
    with live_server(brief, ping_s=0.2) as server, RawSocket(server, path) as gone:
        gone.send({**ASK[path], "flush": False})
        wait_for(lambda: server.speaker.meter.active == 1)
        wait_for(lambda: server.speaker.meter.active == 0)
        served(server)


@PATHS
def test_thirty_clients_are_killed_in_mid_word(brief: TTS, path: str) -> None:
    talker = Talker(brief, endless=30)
    with live_server(brief, talker) as server:
        for _ in range(30):
            with RawSocket(server, path) as victim:
                victim.send(ASK[path])
                victim.raw.recv(1000)
        served(server)
        wait_for(lambda: all(session.cancelled for session in talker.given))
        assert len(talker.given) == 30


MAD = {
    "noise": lambda client: client.raw.sendall(os.urandom(2000)),
    "a frame without a mask": lambda client: client.frame(b"{}", masked=False),
    "an unknown opcode": lambda client: client.frame(b"{}", opcode=7),
    "a middle without a beginning": lambda client: client.frame(b"{}", opcode=0),
    "text that is not UTF-8": lambda client: client.frame(b"\xff\xfe"),
    "a message without measure": lambda client: client.frame(b"x" * 70_000),
    "a message in parts without measure": lambda client: [
        client.frame(b"x" * 20_000, opcode=0 if part else 1, final=False) for part in range(4)
    ],
    "a length and no more": lambda client: client.raw.sendall(b"\x81\xff" + b"\x00\x00\x7f" + b"\xff" * 5),
    "half a frame": lambda client: client.raw.sendall(b"\x81\xfe\x10"),
}


@PATHS
@pytest.mark.parametrize("madness", MAD.values(), ids=MAD.keys())
def test_frames_that_are_none(server: LiveServer, path: str, madness: Callable[[RawSocket], object]) -> None:
    with RawSocket(server, path) as client:
        client.send(ASK[path])
        madness(client)
        served(server)
    server.wait_until_idle()


@PATHS
def test_a_flood_of_messages_waits_its_turn(server: LiveServer, path: str) -> None:
    """Whoever sends without reading is read no further than what it can be answered."""
    with RawSocket(server, path) as client:
        client.raw.settimeout(0.5)
        flood = (b"\x81\xfe\x03\xe8" + bytes(4) + b"?" * 1000) * 100  # masked with zeros
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 1000:
                client.raw.sendall(flood)
                sent += 1
        assert 0 < sent < 1000
        served(server)
