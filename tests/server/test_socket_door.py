"""Who may open a socket, and what is said to those who may not."""

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
from nightingale.server.settings import Settings
from nightingale.server.speaker import Speaker

PATH = "/v1/audio/speech/stream"


def test_keys_are_asked_for_by_header_or_subprotocol(brief: TTS) -> None:
    with live_server(brief, api_key="s3cret!") as server:
        url = server.ws + PATH
        for refused in (
            {},
            {"additional_headers": {"Authorization": "Bearer wrong"}},
            {"subprotocols": ["nightingale.v1", "nightingale.key." + coded("wrong")]},
            {"subprotocols": ["nightingale.v1", "nightingale.key.***"]},
        ):
            with pytest.raises(InvalidStatus) as caught:
                open_and_close(url, **refused)
            assert caught.value.response.status_code == 401
            assert json.loads(caught.value.response.body)["error"]["code"] == "invalid_api_key"
        with pytest.raises(InvalidStatus):  # addresses are logged: a key in one is not read
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


def test_a_page_of_another_site_is_turned_away(brief: TTS) -> None:
    with live_server(brief, cors=["https://friend.example"]) as server:
        with pytest.raises(InvalidStatus) as caught:
            open_and_close(server.ws + PATH, origin="https://evil.example")
        assert caught.value.response.status_code == 403
        for origin in (server.http, "https://friend.example"):
            open_and_close(server.ws + PATH, origin=origin)


def test_a_full_line_is_said_so(brief: TTS) -> None:
    class Full(Speaker):
        async def session(self, **_: Any) -> Any:
            raise QueueFull("too many", got="many", allowed="few", fix="Try again.")

    with live_server(brief, Full(Settings(), brief)) as server, connect(server.ws + PATH) as socket:
        assert json.loads(socket.recv(5))["type"] == "session.created"
        socket.send(json.dumps({"type": "input_text.append", "text": "Hello."}))
        told = json.loads(socket.recv(5))
        assert (told["type"], told["error"]["code"]) == ("error", "queue_full")
