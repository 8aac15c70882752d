"""What one client does must not cost the others anything: leaving, stalling, lying, crowding."""

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
from live_server import LiveServer, in_hand, live_server
from plain_http import HTTP

from nightingale import TTS
from nightingale.engine.session import Session
from nightingale.server.app import create_app
from nightingale.server.settings import Settings
from nightingale.server.speaker import Speaker

LONG = "This is one of very many sentences that nobody will ever listen to. " * 100


def request_bytes(**body: Any) -> bytes:
    content = json.dumps({"input": LONG, "response_format": "pcm", **body}).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def listener(server: LiveServer, data: bytes, *, read: int = 1) -> socket.socket:
    """A raw client that has asked, and heard its first bytes."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    client.sendall(data)
    if read:
        assert client.recv(read)
    return client


def says_hello(server: LiveServer) -> None:
    answer = HTTP.post(f"{server.http}/v1/audio/speech", json={"input": "Hello.", "response_format": "pcm"})
    assert answer.status_code == 200
    assert answer.content


def test_who_leaves_frees_the_slot_within_a_few_steps(server: LiveServer) -> None:
    client = listener(server, request_bytes())
    assert server.speaker.meter.active == 1
    cancelled = server.speaker.meter.cancelled._value.get()
    client.close()
    assert server.wait_until_idle() < 1.0, "the text takes a hundred times as long"
    assert server.speaker.meter.cancelled._value.get() == cancelled + 1
    says_hello(server)


def test_who_leaves_while_waiting_in_line_is_forgotten(small: Callable[..., TTS]) -> None:
    with small(slots=1) as tts, live_server(tts) as server:
        first = listener(server, request_bytes())
        second = listener(server, request_bytes(), read=0)
        while not server.speaker.occupancy.waiting:
            time.sleep(0.005)
        second.close()
        deadline = time.monotonic() + 5
        while server.speaker.meter.active > 1:
            assert time.monotonic() < deadline, "it is still in line"
            time.sleep(0.005)
        first.close()
        server.wait_until_idle()


def test_who_leaves_while_the_request_is_still_read_leaves_nothing_behind(
    small: Callable[..., TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(tts: TTS) -> None:
        speaker = Speaker(Settings(), tts)
        await speaker.start()
        hold, entered = threading.Event(), threading.Event()

        def slow(*_: Any) -> None:
            entered.set()
            assert hold.wait(10)

        monkeypatch.setattr(speaker._roster, "resolve", slow)
        opening = asyncio.create_task(speaker.open(LONG))
        while not entered.is_set():
            await asyncio.sleep(0.005)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert speaker.meter.active == 0
        hold.set()
        await asyncio.sleep(0.1)
        deadline = time.monotonic() + 10
        while in_hand(speaker):
            assert time.monotonic() < deadline, "a session that nobody listens to was left in the engine"
            await asyncio.sleep(0.01)
        await speaker.stop()

    with small() as tts:
        asyncio.run(asyncio.wait_for(story(tts), 20))


NURSERY = """
import os, signal, socket, sys
port, request = int(sys.argv[1]), sys.stdin.buffer.read()
for wave in range(WAVES):
    heard, tell = os.pipe()
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
        child = children[os.read(heard, 1)[0]]
        os.kill(child, signal.SIGKILL)
        ends.append(os.WTERMSIG(os.waitpid(child, 0)[1]))
    os.close(heard)
    print("killed", ends.count(signal.SIGKILL), flush=True)
"""
"""Forks listeners that are in the middle of their streams, and kills them. A small process: forking the
tests' own, with its threads and its torch, would be slow and unsafe."""


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def busy_threads() -> int:
    """All but those of the speaker's desk, which are at most four and come when they are needed."""
    return sum(not thread.name.startswith("nightingale-desk") for thread in threading.enumerate())


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files by Linux's /proc")
def test_a_hundred_client_processes_killed_in_mid_stream_leave_nothing_behind(
    small: Callable[..., TTS],
) -> None:
    waves, each = 10, 10
    body = {"input": "Others are killed, and I am served.", "response_format": "pcm", "seed": 1}
    served: list[tuple[int, bytes]] = []
    over = threading.Event()

    def another() -> None:
        while not over.is_set():
            answer = HTTP.post(f"{server.http}/v1/audio/speech", json=body)
            served.append((answer.status_code, answer.content))
            time.sleep(0.05)

    with small(slots=4, tokens=2) as tts, live_server(tts) as server:
        alone = HTTP.post(f"{server.http}/v1/audio/speech", json=body).content
        server.wait_until_idle()
        files, threads = open_files(), busy_threads()
        cancelled = server.speaker.meter.cancelled._value.get()
        script = NURSERY.replace("WAVES", str(waves)).replace("EACH", str(each))
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", script, str(server.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as nursery:
            client = threading.Thread(target=another)
            client.start()
            try:
                told, _ = nursery.communicate(request_bytes(input=LONG[:1000]), timeout=180)
            finally:
                over.set()
                client.join(30)
                nursery.kill()
        assert told.split(b"\n")[:-1] == [b"killed %d" % each] * waves
        server.wait_until_idle(5)
        assert len(served) >= waves, "the other client was not served meanwhile"
        assert all(status == 200 and len(sound) == len(alone) for status, sound in served)
        assert server.speaker.meter.cancelled._value.get() - cancelled == waves * each
        assert not server.speaker._open
        assert not tts._worker._jobs
        assert tts.occupancy.speaking == tts.occupancy.waiting == 0
        deadline = time.monotonic() + 5
        while open_files() > files or busy_threads() > threads:
            assert time.monotonic() < deadline, (
                f"{open_files() - files} files, {busy_threads() - threads} threads are left over"
            )
            time.sleep(0.01)
        says_hello(server)


def test_a_listener_that_takes_nothing_is_dropped(small: Callable[..., TTS]) -> None:
    """A half-open socket: nothing is read, and nobody says goodbye. Its slot must not be held for ever."""
    settings = Settings(send_timeout=0.2)
    content = json.dumps({"input": LONG, "response_format": "pcm"}).encode()
    scope = {
        "type": "http", "method": "POST", "path": "/v1/audio/speech", "query_string": b"", "root_path": "",
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    sent: list[str] = []

    async def story(tts: TTS) -> float:
        asked = False
        speaker = Speaker(settings, tts)
        await speaker.start()

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked:
                await asyncio.Event().wait()
            asked = True
            return {"type": "http.request", "body": content}

        async def send(message: Any) -> None:
            sent.append(message["type"])
            if len(sent) > 2:
                await asyncio.Event().wait()

        await create_app(settings, speaker)(scope, receive, send)
        while speaker.occupancy.speaking:
            await asyncio.sleep(0.01)
        return float(speaker.meter.cancelled._value.get())

    with small() as tts:
        assert asyncio.run(asyncio.wait_for(story(tts), 20)) == 1
    assert sent == ["http.response.start", "http.response.body", "http.response.body"]


def test_a_slow_listener_hears_everything(server: LiveServer) -> None:
    body = {"input": "One sentence, and then another one. " * 30, "response_format": "pcm", "seed": 1}
    whole = HTTP.post(f"{server.http}/v1/audio/speech", json=body).content
    heard = b""
    with HTTP.stream("POST", f"{server.http}/v1/audio/speech", json=body) as answer:
        for part in answer.iter_raw(4096):
            heard += part
            time.sleep(0.001)
    assert heard == whole


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\ncontent-length: 99999\r\n\r\n{",
        b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_half_requests_and_noise_do_not_disturb(server: LiveServer, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as client:
        client.sendall(data)
        says_hello(server)


def test_a_fault_before_the_first_sound_is_an_error_and_after_it_a_cut(
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
    says_hello(server)


def test_a_fault_of_our_own_says_so_and_names_its_line_in_the_log(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(server.speaker, "voices", broken)
    answer = HTTP.get(f"{server.http}/v1/audio/voices", headers={"x-request-id": "r-1"})
    assert answer.status_code == 500
    assert "r-1" in answer.json()["error"]["message"]
    assert "secret" not in answer.text


def test_a_crowd_is_shed_with_a_time_to_come_back_and_then_served(small: Callable[..., TTS]) -> None:
    body = {"input": "One sentence, and then another one. " * 20, "response_format": "pcm", "seed": 1}

    async def story(server: LiveServer) -> None:
        async with httpx.AsyncClient(verify=False, timeout=60) as client:

            async def ask() -> httpx.Response:
                return await client.post(f"{server.http}/v1/audio/speech", json=body)

            alone = (await ask()).content
            asking = [asyncio.create_task(ask()) for _ in range(24)]
            await asyncio.sleep(0.2)
            began = time.monotonic()
            assert (await client.get(f"{server.http}/health")).status_code == 200
            assert time.monotonic() - began < 1.0
            answers = await asyncio.gather(*asking)
            served = [answer for answer in answers if answer.status_code == 200]
            shed = [answer for answer in answers if answer.status_code == 429]
            assert len(served) + len(shed) == 24
            assert len(served) >= 6
            assert shed
            assert all(len(answer.content) == len(alone) for answer in served)
            for answer in shed:
                assert answer.json()["error"]["code"] == "queue_full"
                assert 100 <= int(answer.headers["retry-after-ms"]) <= 30_000
                assert int(answer.headers["retry-after"]) >= 1
            assert (await ask()).status_code == 200

    with small(slots=2, queue=4) as tts, live_server(tts) as server:
        asyncio.run(asyncio.wait_for(story(server), 60))
        server.wait_until_idle()


def test_thirty_two_listeners_at_once_hear_their_own(small: Callable[..., TTS]) -> None:
    """More than asyncio's pool has threads: nobody waits in one. Seeds tell whose sound it is."""

    async def story(server: LiveServer) -> None:
        async with httpx.AsyncClient(verify=False, timeout=60) as client:

            async def ask(seed: int) -> bytes:
                body = {"input": "Hello there, all of you.", "response_format": "pcm", "seed": seed}
                return (await client.post(f"{server.http}/v1/audio/speech", json=body)).content

            heard = await asyncio.gather(*(ask(seed) for seed in range(32)))
            assert len({bytes(sound) for sound in heard}) == 32
            assert all(len(sound) == len(heard[0]) > 0 for sound in heard)

    with small(slots=8) as tts, live_server(tts) as server:
        asyncio.run(asyncio.wait_for(story(server), 60))
