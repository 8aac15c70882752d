"""OpenAI's client with the Realtime API: its events are those of the client's types, and audio arrives."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pydantic
import pytest
from live_server import LiveServer
from websockets.sync.client import connect

pytestmark = pytest.mark.contract
openai = pytest.importorskip("openai")

GREETING = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Good morning."}]}


def test_asynchronous_client_speaks_and_interrupts(server: LiveServer) -> None:
    async def run() -> None:
        client = openai.AsyncOpenAI(base_url=f"{server.http}/v1", api_key="none")
        async with client.realtime.connect(model="gpt-realtime") as connection, asyncio.timeout(60):
            await connection.session.update(
                session={
                    "type": "realtime",
                    "audio": {"output": {"voice": "marin", "format": {"type": "audio/pcmu"}}},
                }
            )
            await connection.conversation.item.create(item=GREETING)
            await connection.response.create()
            spoken = await audio_of(connection)
            assert len(spoken) > 800
            long = {**GREETING, "content": [{"type": "input_text", "text": "Wait for me, please. " * 200}]}
            await connection.response.create(response={"conversation": "none", "input": [long]})
            assert len(await audio_of(connection, interrupt=True)) > 0

    async def audio_of(connection: Any, *, interrupt: bool = False) -> bytes:
        audio = b""
        async for event in connection:
            if event.type == "response.output_audio.delta":
                if interrupt and not audio:
                    await connection.response.cancel()
                audio += base64.b64decode(event.delta)
            elif event.type == "response.done":
                assert event.response.status == ("cancelled" if interrupt else "completed")
                break
        return audio

    asyncio.run(run())


def test_synchronous_client_gets_errors_as_events(server: LiveServer) -> None:
    client = openai.OpenAI(base_url=f"{server.http}/v1", api_key="none")
    with client.realtime.connect(model="gpt-realtime") as connection:
        connection.response.create()
        while (event := connection.recv()).type != "error":
            assert event.type in ("session.created", "conversation.created")
        assert event.error.code == "empty_input"


def test_every_event_is_valid_for_the_clients_types(server: LiveServer) -> None:
    from openai.types.realtime import RealtimeServerEvent

    types: Any = pydantic.TypeAdapter(RealtimeServerEvent)
    sent = [
        {"type": "session.update", "session": {"type": "realtime", "audio": {"output": {"voice": "marin"}}}},
        {"type": "conversation.item.create", "item": {"id": "first", **GREETING}},
        {"type": "conversation.item.retrieve", "item_id": "first"},
        {"type": "conversation.item.delete", "item_id": "first"},
        {"type": "nonsense"},
        {"type": "conversation.item.create", "item": GREETING},
        {"type": "response.create"},
    ]
    seen = set()
    with connect(f"{server.ws}/v1/realtime?model=gpt-realtime") as socket:
        for event in sent:
            socket.send(json.dumps(event))
        while "response.done" not in seen:
            event = json.loads(socket.recv(20))
            assert types.validate_python(event).type == event["type"]
            seen.add(event["type"])
    assert {"session.updated", "conversation.item.retrieved", "response.output_audio.delta", "error"} <= seen
