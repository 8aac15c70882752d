"""Access control of WebSockets: keys, origins, and errors during the handshake."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from live_server import live_server
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from nightingale import TTS
from nightingale.errors import QueueFull
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.settings import ServerSettings

PATH = "/v1/audio/speech/stream"


def test_key_is_required_in_header_or_subprotocol(brief: TTS) -> None:
    with live_server(brief, api_key="s3cret!") as server:
        url = server.ws + PATH
        for rejected in (
            {},
            {"additional_headers": {"Authorization": "Bearer wrong"}},
            {"subprotocols": ["nightingale.v1", "nightingale.key." + coded("wrong")]},
            {"subprotocols": ["nightingale.v1", "nightingale.key.***"]},
        ):
            with pytest.raises(InvalidStatus) as caught:
                open_and_close(url, **rejected)
            assert caught.value.response.status_code == 401
            assert json.loads(caught.value.response.body)["error"]["code"] == "invalid_api_key"
        with pytest.raises(InvalidStatus):  # URLs are logged, so a key in one is ignored
            open_and_close(url + "?api_key=s3cret!")
        for header in ({"Authorization": "Bearer s3cret!"}, {"xi-api-key": "s3cret!"}):
            open_and_close(url, additional_headers=header)
        offers = ["nightingale.v1", "nightingale.key." + coded("s3cret!")]
        with connect(url, subprotocols=offers) as connection:
            assert connection.subprotocol == "nightingale.v1"


def open_and_close(url: str, **how: Any) -> None:
    with connect(url, **how):
        pass


def coded(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def test_foreign_origin_is_denied(brief: TTS) -> None:
    with live_server(brief, cors=["https://friend.example"]) as server:
        with pytest.raises(InvalidStatus) as caught:
            open_and_close(server.ws + PATH, origin="https://evil.example")
        assert caught.value.response.status_code == 403
        for origin in (server.http, "https://friend.example"):
            open_and_close(server.ws + PATH, origin=origin)


def test_full_queue_is_reported(brief: TTS) -> None:
    class FullService(SpeechService):
        async def session(self, **_: Any) -> Any:
            raise QueueFull("too many requests")

    with (
        live_server(brief, FullService(ServerSettings(), brief)) as server,
        connect(server.ws + PATH) as socket,
    ):
        assert json.loads(socket.recv(5))["type"] == "session.created"
        socket.send(json.dumps({"type": "input_text.append", "text": "Hello."}))
        event = json.loads(socket.recv(5))
        assert (event["type"], event["error"]["code"]) == ("error", "queue_full")
