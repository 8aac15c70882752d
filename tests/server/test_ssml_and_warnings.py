"""SSML and warnings over HTTP, our WebSocket, ElevenLabs' routes and Wyoming."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from live_server import LiveServer, live_server
from plain_http import HTTP
from websockets.sync.client import connect

from nightingale import TTS

SSML = '<speak>Hello <break time="1s"/> <emphasis>there</emphasis>.</speak>'
WARNING = "SSML tags without an effect are ignored: <emphasis> (character 33)"


@pytest.fixture(scope="module")
def server(english: TTS) -> Iterator[LiveServer]:
    with live_server(english) as running:
        yield running


def post(server: LiveServer, path: str, **body: Any) -> httpx.Response:
    return HTTP.post(server.http + path, json=body, timeout=30)


def test_openais_route_reads_ssml_and_warns_in_a_header(server: LiveServer) -> None:
    answer = post(server, "/v1/audio/speech", input=SSML, response_format="pcm")
    assert answer.status_code == 200
    assert json.loads(answer.headers["x-warnings"]) == [WARNING]
    plain = post(server, "/v1/audio/speech", input="Hello there.", response_format="pcm")
    assert len(answer.content) - len(plain.content) > 1.5 * 24_000
    malformed = post(server, "/v1/audio/speech", input="<speak>Hello")
    assert malformed.status_code == 400
    assert "not well-formed" in malformed.json()["error"]["message"]


def test_elevenlabs_route_reads_ssml_and_warns_in_a_header(server: LiveServer) -> None:
    answer = post(server, "/v1/text-to-speech/noise?output_format=pcm_24000", text=SSML)
    assert answer.status_code == 200
    assert json.loads(answer.headers["x-warnings"]) == [WARNING]


def test_a_client_cannot_name_a_file_of_the_server_as_a_voice(server: LiveServer) -> None:
    for name in ("/etc/passwd", "../../voice.safetensors"):
        answer = post(server, "/v1/audio/speech", input=f'<speak><voice name="{name}">Hi.</voice></speak>')
        assert answer.status_code == 400
        assert "no such voice" in answer.json()["error"]["message"]


def test_the_websocket_reads_ssml_and_warns_at_the_end_of_a_turn(server: LiveServer) -> None:
    with connect(server.ws + "/v1/audio/speech/stream") as socket:
        for part in (SSML[:3], SSML[3:20], SSML[20:]):
            socket.send(json.dumps({"type": "input_text.append", "text": part}))
        socket.send(json.dumps({"type": "input_text.end"}))
        audio, message = b"", {"type": ""}
        while message["type"] != "speech.audio.done":
            received = socket.recv(20)
            if isinstance(received, bytes):
                audio += received
            else:
                message = json.loads(received)
    assert message["warnings"] == [WARNING]
    assert len(audio) > 2 * 24_000


def test_elevenlabs_socket_reads_ssml_and_logs_the_number_of_warnings(
    server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "nightingale.server"),
        connect(f"{server.ws}/v1/text-to-speech/noise/stream-input?output_format=pcm_24000") as socket,
    ):
        socket.send(json.dumps({"text": SSML}))
        socket.send(json.dumps({"text": ""}))
        messages = []
        while not (messages and messages[-1].get("isFinal")):
            messages.append(json.loads(socket.recv(20)))
    assert sum(len(base64.b64decode(one["audio"])) for one in messages if one["audio"]) > 2 * 24_000
    assert messages[-1] == {"audio": None, "isFinal": True}
    assert [record.warnings for record in caplog.records if record.message == "turn"] == [1]  # type: ignore[attr-defined]


def test_wyoming_reads_ssml(english: TTS) -> None:
    pytest.importorskip("wyoming")
    from wyoming.client import AsyncTcpClient
    from wyoming.tts import Synthesize

    from nightingale.server.service.speech_service import SpeechService
    from nightingale.server.settings import ServerSettings
    from nightingale.server.wyoming.wyoming_server import serve_wyoming

    async def talk() -> int:
        service = SpeechService(ServerSettings(), english)
        await service.start()
        async with serve_wyoming(service, "tcp://127.0.0.1:0") as running:
            port = running.sockets[0].getsockname()[1]
            async with AsyncTcpClient("127.0.0.1", port) as client:
                await client.write_event(Synthesize(text=SSML).event())
                size, kind = 0, ""
                while kind != "audio-stop":
                    event = await client.read_event()
                    assert event is not None
                    kind, size = event.type, size + len(event.payload or b"")
        await service.stop()
        return size

    assert asyncio.run(asyncio.wait_for(talk(), 30)) > 2 * 24_000
