"""Clients that disconnect, stall, send garbage or overload the server do not affect other clients."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from live_server import LiveServer, engine_jobs, live_server
from plain_http import HTTP

from nightingale import TTS
from nightingale.engine.session import Session
from nightingale.server.app import create_app
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.settings import ServerSettings

LONG = "This is one of very many sentences that are only here to make the text long. " * 100


def request_bytes(**body: Any) -> bytes:
    content = json.dumps({"input": LONG, "response_format": "pcm", **body}).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def open_client(server: LiveServer, data: bytes, *, read: int = 1) -> socket.socket:
    """Open a raw connection, send a request, and read the first bytes of the response."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    client.sendall(data)
    if read:
        assert client.recv(read)
    return client


def check_serves(server: LiveServer) -> None:
    answer = HTTP.post(f"{server.http}/v1/audio/speech", json={"input": "Hello.", "response_format": "pcm"})
    assert answer.status_code == 200
    assert answer.content


def test_disconnect_frees_the_slot_within_a_few_steps(server: LiveServer) -> None:
    client = open_client(server, request_bytes())
    assert server.service.metrics.active == 1
    cancelled = server.cancelled()
    client.close()
    assert server.wait_until_idle() < 1.0, "the text takes a hundred times as long"
    assert server.cancelled() == cancelled + 1
    check_serves(server)


def test_disconnect_in_the_queue_removes_the_request(small: Callable[..., TTS]) -> None:
    with small(slots=1) as tts, live_server(tts) as server:
        first = open_client(server, request_bytes())
        second = open_client(server, request_bytes(), read=0)
        while not server.service.occupancy.waiting:
            time.sleep(0.005)
        second.close()
        deadline = time.monotonic() + 5
        while server.service.metrics.active > 1:
            assert time.monotonic() < deadline, "it is still in the queue"
            time.sleep(0.005)
        first.close()
        server.wait_until_idle()


def test_cancelling_an_opening_request_leaves_no_session(
    small: Callable[..., TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(tts: TTS) -> None:
        service = SpeechService(ServerSettings(), tts)
        await service.start()
        hold, entered = threading.Event(), threading.Event()

        def slow(*_: Any) -> None:
            entered.set()
            assert hold.wait(10)

        monkeypatch.setattr(service._voices, "resolve", slow)
        opening = asyncio.create_task(service.open(LONG))
        while not entered.is_set():
            await asyncio.sleep(0.005)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert service.metrics.active == 0
        hold.set()
        await asyncio.sleep(0.1)
        deadline = time.monotonic() + 10
        while engine_jobs(service):
            assert time.monotonic() < deadline, "an abandoned session was left in the engine"
            await asyncio.sleep(0.01)
        await service.stop()

    with small() as tts:
        asyncio.run(asyncio.wait_for(run(tts), 20))


CLIENT_SCRIPT = """
import os, signal, socket, sys
port, request = int(sys.argv[1]), sys.stdin.buffer.read()
for wave in range(WAVES):
    received, tell = os.pipe()
    children = []
    for number in range(EACH):
        child = os.fork()
        if child == 0:
            client = socket.create_connection(("127.0.0.1", port))
            client.sendall(request)
            assert client.recv(2000)  # the head of the answer, and its first sound
            os.write(tell, bytes([number]))
            signal.pause()
        children.append(child)
    os.close(tell)
    ends = []
    for _ in children:
        child = children[os.read(received, 1)[0]]
        os.kill(child, signal.SIGKILL)
        ends.append(os.WTERMSIG(os.waitpid(child, 0)[1]))
    os.close(received)
    print("killed", ends.count(signal.SIGKILL), flush=True)
"""
"""Forks clients and kills them in the middle of their streams. A process of its own: forking the tests'
process, with its threads, would be slow and unsafe."""


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def busy_threads() -> int:
    """Count threads except those of the service's pool, which start on demand."""
    return sum(not thread.name.startswith("nightingale-service") for thread in threading.enumerate())


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files by Linux's /proc")
def test_hundred_killed_client_processes_leak_nothing(
    small: Callable[..., TTS],
) -> None:
    waves, each = 10, 10
    body = {"input": "This client is not killed.", "response_format": "pcm", "seed": 1}
    served: list[tuple[int, bytes]] = []
    done = threading.Event()

    def other_client() -> None:
        while not done.is_set():
            answer = HTTP.post(f"{server.http}/v1/audio/speech", json=body)
            served.append((answer.status_code, answer.content))
            time.sleep(0.05)

    with small(slots=4) as tts, live_server(tts) as server:
        alone = HTTP.post(f"{server.http}/v1/audio/speech", json=body).content
        server.wait_until_idle()
        files, threads = open_files(), busy_threads()
        cancelled = server.cancelled()
        script = CLIENT_SCRIPT.replace("WAVES", str(waves)).replace("EACH", str(each))
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", script, str(server.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as parent:
            client = threading.Thread(target=other_client)
            client.start()
            try:
                output, _ = parent.communicate(request_bytes(), timeout=180)
            finally:
                done.set()
                client.join(30)
                parent.kill()
        assert output.split(b"\n")[:-1] == [b"killed %d" % each] * waves
        server.wait_until_idle(5)
        assert len(served) >= waves, "the other client was not served meanwhile"
        assert all(status == 200 and len(sound) == len(alone) for status, sound in served)
        assert server.cancelled() - cancelled == waves * each
        assert not server.service._open_streams
        assert not tts._worker._jobs
        assert tts.occupancy.speaking == tts.occupancy.waiting == 0
        deadline = time.monotonic() + 5
        while open_files() > files or busy_threads() > threads:
            assert time.monotonic() < deadline, (
                f"{open_files() - files} files, {busy_threads() - threads} threads leaked"
            )
            time.sleep(0.01)
        check_serves(server)


def test_stalled_client_is_dropped(small: Callable[..., TTS]) -> None:
    """A half-open connection: the client neither reads nor disconnects, and must not keep its slot."""
    settings = ServerSettings(send_timeout=0.2)
    content = json.dumps({"input": LONG, "response_format": "pcm"}).encode()
    scope = {
        "type": "http", "method": "POST", "path": "/v1/audio/speech", "query_string": b"", "root_path": "",
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    sent: list[str] = []

    async def run(tts: TTS) -> float:
        sent_body = False
        service = SpeechService(settings, tts)
        await service.start()

        async def receive() -> dict[str, Any]:
            nonlocal sent_body
            if sent_body:
                await asyncio.Event().wait()
            sent_body = True
            return {"type": "http.request", "body": content}

        async def send(message: Any) -> None:
            sent.append(message["type"])
            if len(sent) > 2:
                await asyncio.Event().wait()

        await create_app(settings, service)(scope, receive, send)
        while service.occupancy.speaking:
            await asyncio.sleep(0.01)
        return float(service.metrics.cancelled._value.get())

    with small() as tts:
        assert asyncio.run(asyncio.wait_for(run(tts), 20)) == 1
    assert sent == ["http.response.start", "http.response.body", "http.response.body"]


def test_slow_client_receives_everything(server: LiveServer) -> None:
    body = {"input": "One sentence, and then another one. " * 30, "response_format": "pcm", "seed": 1}
    whole = HTTP.post(f"{server.http}/v1/audio/speech", json=body).content
    received = b""
    with HTTP.stream("POST", f"{server.http}/v1/audio/speech", json=body) as answer:
        for part in answer.iter_raw(4096):
            received += part
            time.sleep(0.001)
    assert received == whole


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999\r\n\r\n{",
        b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_incomplete_requests_and_garbage_do_not_disturb(server: LiveServer, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as client:
        client.sendall(data)
        check_serves(server)


def test_failure_before_the_first_audio_is_an_error_and_later_closes_the_connection(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, count = Session.put, 0

    def broken(self: Session, samples: Any) -> None:
        nonlocal count
        count += 1
        if count == breaks_at:
            raise ZeroDivisionError
        put(self, samples)

    monkeypatch.setattr(Session, "put", broken)
    address, body = f"{server.http}/v1/audio/speech", {"input": LONG, "response_format": "pcm"}
    breaks_at = 1
    early = HTTP.post(address, json=body)
    assert (early.status_code, early.json()["error"]["code"]) == (503, "engine_fault")
    breaks_at, count = 3, 0
    with pytest.raises(httpx.RemoteProtocolError):
        HTTP.post(address, json=body)
    breaks_at, count = 3, 0
    events = HTTP.post(address, json={**body, "stream_format": "sse"}).text
    assert '"type":"error"' in events
    assert "speech.audio.done" not in events
    check_serves(server)


def test_internal_error_names_the_request_id_and_no_details(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(server.service, "voices", broken)
    answer = HTTP.get(f"{server.http}/v1/audio/voices", headers={"x-request-id": "r-1"})
    assert answer.status_code == 500
    assert "r-1" in answer.json()["error"]["message"]
    assert "secret" not in answer.text


def test_overload_is_rejected_with_a_retry_time(small: Callable[..., TTS]) -> None:
    body = {"input": "One sentence, and then another one. " * 20, "response_format": "pcm", "seed": 1}

    async def run(server: LiveServer) -> None:
        async with httpx.AsyncClient(verify=False, timeout=60) as client:

            async def speak() -> httpx.Response:
                return await client.post(f"{server.http}/v1/audio/speech", json=body)

            alone = (await speak()).content
            pending = [asyncio.create_task(speak()) for _ in range(24)]
            await asyncio.sleep(0.2)
            assert (await client.get(f"{server.http}/health")).status_code == 200
            assert not all(speaking.done() for speaking in pending), "health waited for the requests"
            answers = await asyncio.gather(*pending)
            served = [answer for answer in answers if answer.status_code == 200]
            rejected = [answer for answer in answers if answer.status_code == 429]
            assert len(served) + len(rejected) == 24
            assert len(served) >= 6
            assert rejected
            assert all(len(answer.content) == len(alone) for answer in served)
            for answer in rejected:
                assert answer.json()["error"]["code"] == "queue_full"
                assert 100 <= int(answer.headers["retry-after-ms"]) <= 30_000
                assert int(answer.headers["retry-after"]) >= 1
            assert (await speak()).status_code == 200

    with small(slots=2, queue=4) as tts, live_server(tts) as server:
        asyncio.run(asyncio.wait_for(run(server), 60))
        server.wait_until_idle()


def test_thirty_two_concurrent_clients_receive_their_own_audio(small: Callable[..., TTS]) -> None:
    """More clients than asyncio's pool has threads. The seed identifies the audio."""

    async def run(server: LiveServer) -> None:
        async with httpx.AsyncClient(verify=False, timeout=60) as client:

            async def speak(seed: int) -> bytes:
                body = {"input": "Hello there, all of you.", "response_format": "pcm", "seed": seed}
                return (await client.post(f"{server.http}/v1/audio/speech", json=body)).content

            received = await asyncio.gather(*(speak(seed) for seed in range(32)))
            assert len({bytes(sound) for sound in received}) == 32
            assert all(len(sound) == len(received[0]) > 0 for sound in received)

    with small(slots=8) as tts, live_server(tts) as server:
        asyncio.run(asyncio.wait_for(run(server), 60))
