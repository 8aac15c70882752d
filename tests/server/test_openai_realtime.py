"""The speech of OpenAI's Realtime API over a WebSocket, event by event, and with OpenAI's client."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from live_server import LiveServer, live_server
from websockets.sync.client import ClientConnection, connect

from nightingale import TTS

LONG = "This is one of very many sentences that are only here to make the text long. " * 40


@pytest.fixture(scope="module")
def server(tts_with: Callable[..., TTS]) -> Iterator[LiveServer]:
    with live_server(tts_with(defaults={"max_new_tokens": 25}), max_text_chars=5000) as running:
        yield running


@pytest.fixture
def socket(server: LiveServer) -> Iterator[ClientConnection]:
    with connect(f"{server.ws}/v1/realtime?model=gpt-realtime") as connection:
        assert [event["type"] for event in receive(connection, "conversation.created")] == [
            "session.created",
            "conversation.created",
        ]
        yield connection
    server.wait_until_idle()


def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    socket.send(json.dumps({"type": kind, **fields}))


def receive(socket: ClientConnection, *kinds: str) -> list[dict[str, Any]]:
    """Return the events up to the first one of these kinds."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in kinds:
        events.append(json.loads(socket.recv(20)))
    return events


def message(text: str, role: str = "user", kind: str = "input_text") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def output(kind: str, **fields: Any) -> dict[str, Any]:
    return {"audio": {"output": {"format": {"type": kind, **fields}, "voice": {"id": "noise"}}}}


def error_of(socket: ClientConnection) -> dict[str, Any]:
    error: dict[str, Any] = receive(socket, "error")[-1]["error"]
    return error


def audio_of(events: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(e["delta"]) for e in events if e["type"].endswith("audio.delta"))


def spoken(events: list[dict[str, Any]]) -> str:
    (transcript,) = [e["transcript"] for e in events if e["type"].endswith("audio_transcript.done")]
    return str(transcript)


def test_a_message_is_spoken_with_the_events_of_a_response(socket: ClientConnection) -> None:
    send(socket, "conversation.item.create", item=message("Good morning."))
    added, done = receive(socket, "conversation.item.done")
    assert added["item"] == done["item"]
    send(socket, "response.create", response={"metadata": {"topic": "hello"}})
    events = receive(socket, "response.done")
    kinds = [event["type"] for event in events if event["type"] != "response.output_audio.delta"]
    assert kinds == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    assert len({event["event_id"] for event in events}) == len(events)
    response = events[-1]["response"]
    assert (response["status"], response["metadata"]) == ("completed", {"topic": "hello"})
    assert response["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24000}
    (item,) = response["output"]
    assert (item["role"], item["content"][0]) == (
        "assistant",
        {"type": "output_audio", "transcript": "Good morning."},
    )
    assert len(audio_of(events)) > 4800
    assert response["usage"]["output_tokens"] > 0
    # The answer is part of the conversation; a further response has nothing to say.
    send(socket, "conversation.item.retrieve", item_id=item["id"])
    assert receive(socket, "conversation.item.retrieved")[-1]["item"] == item
    send(socket, "conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=100)
    assert receive(socket, "conversation.item.truncated")[-1]["audio_end_ms"] == 100
    send(socket, "response.create", event_id="mine")
    error = error_of(socket)
    assert (error["code"], error["event_id"]) == ("empty_input", "mine")


@pytest.mark.parametrize(
    ("items", "response", "text"),
    [
        (["One."], {"input": [message("Two.", "assistant", "output_text")]}, "Two."),
        (["One.", "Two."], {"instructions": "Be polite."}, "One.\nTwo."),
        ([], {"instructions": "Say this."}, "Say this."),
        ([], {"input": [message("No.", "system"), message("Yes.")], "conversation": "none"}, "Yes."),
    ],
    ids=["input", "messages", "instructions", "no system messages"],
)
def test_the_text_of_a_response(
    socket: ClientConnection, items: list[str], response: dict[str, Any], text: str
) -> None:
    for item in items:
        send(socket, "conversation.item.create", item=message(item))
    send(socket, "response.create", response=response)
    events = receive(socket, "response.done")
    assert spoken(events) == text
    is_out_of_band = response.get("conversation") == "none"
    assert (events[-1]["response"]["conversation_id"] is None) == is_out_of_band
    after = [event["type"] for event in events[[e["type"] for e in events].index("response.created") :]]
    assert ("conversation.item.added" in after) == (not is_out_of_band)


def test_an_input_may_refer_to_a_message_and_a_deleted_one_is_not_spoken(socket: ClientConnection) -> None:
    for name in ("a", "b"):
        send(socket, "conversation.item.create", item={"id": name, **message(f"This is {name}.")})
    send(socket, "response.create", response={"input": [{"type": "item_reference", "id": "b"}]})
    assert spoken(receive(socket, "response.done")) == "This is b."
    send(socket, "conversation.item.delete", item_id="a")
    assert receive(socket, "conversation.item.deleted")[-1]["item_id"] == "a"
    send(socket, "response.create")
    assert spoken(receive(socket, "response.done")) == "This is b."
    send(socket, "conversation.item.delete", item_id="a")
    assert error_of(socket)["param"] == "item_id"


@pytest.mark.parametrize(
    ("session", "bytes_per_s", "described"),
    [
        (output("audio/pcm", rate=24000) | {"tools": [], "type": "realtime"}, 48_000, "audio/pcm"),
        (output("audio/pcmu"), 8_000, "audio/pcmu"),
        (output("audio/pcma"), 8_000, "audio/pcma"),
        ({"voice": "marin", "output_audio_format": "g711_alaw", "seed": 7}, 8_000, "audio/pcma"),
    ],
)
def test_settings_of_the_session(
    socket: ClientConnection, session: dict[str, Any], bytes_per_s: int, described: str
) -> None:
    request = {"input": [message("Hello there.")]}
    send(socket, "session.update", session={"seed": 1, "audio": {"output": {"speed": 1.0}}})
    send(socket, "response.create", response=request)
    seconds = len(audio_of(receive(socket, "response.done"))) / 48_000
    send(socket, "session.update", session=session)
    updated = receive(socket, "session.updated")[-1]["session"]
    assert updated["audio"]["output"]["format"]["type"] == described
    send(socket, "response.create", response=request)
    assert len(audio_of(receive(socket, "response.done"))) / bytes_per_s == pytest.approx(seconds, abs=0.35)


def test_the_beta_version_has_its_own_names(server: LiveServer) -> None:
    headers = {"OpenAI-Beta": "realtime=v1"}
    with connect(f"{server.ws}/v1/realtime", additional_headers=headers) as socket:
        session = receive(socket, "conversation.created")[0]["session"]
        assert (session["output_audio_format"], session["modalities"]) == ("pcm16", ["audio", "text"])
        send(socket, "conversation.item.create", item=message("Good morning."))
        send(socket, "response.create", response={"modalities": ["text", "audio"], "voice": "noise"})
        events = receive(socket, "response.done")
    kinds = {event["type"] for event in events}
    assert {"response.audio.delta", "response.audio.done", "response.audio_transcript.done"} <= kinds
    assert "conversation.item.created" in kinds
    assert not any("output_audio" in kind for kind in kinds)
    assert not kinds & {"conversation.item.added", "conversation.item.done"}
    assert events[-1]["response"]["output"][0]["content"][0]["type"] == "audio"
    server.wait_until_idle()


def test_a_response_is_cancelled_and_the_next_one_follows(
    server: LiveServer, socket: ClientConnection
) -> None:
    send(socket, "response.cancel")
    assert "no response is active" in error_of(socket)["message"]
    send(socket, "response.create", response={"input": [message(LONG)]})
    first = receive(socket, "response.output_audio.delta")
    send(socket, "response.cancel", response_id=first[0]["response"]["id"])
    response = receive(socket, "response.done")[-1]["response"]
    assert (response["status"], response["status_details"]["reason"]) == ("cancelled", "client_cancelled")
    assert response["output"][0]["status"] == "incomplete"
    server.wait_until_idle()
    send(socket, "response.create", response={"input": [message("Hello.")]})
    assert receive(socket, "response.done")[-1]["response"]["status"] == "completed"


def test_a_response_that_cannot_be_spoken_has_failed(socket: ClientConnection) -> None:
    send(socket, "response.create", response={"voice": "missing", "input": [message("Hello.")]})
    created, done = receive(socket, "response.done")
    assert created["type"] == "response.created"
    assert (done["response"]["status"], done["response"]["output"]) == ("failed", [])
    assert done["response"]["status_details"]["error"]["code"] == "voice_not_found"


@pytest.mark.parametrize(
    ("event", "param"),
    [
        ({"type": "session.update", "session": {"audio": {"output": {"voice": "missing"}}}}, "voice"),
        ({"type": "session.update", "session": {"audio": {"output": {"speed": 9}}}}, "speed"),
        ({"type": "session.update", "session": {"output_audio_format": "mp3"}}, "format"),
        ({"type": "session.update", "session": {"output_modalities": ["text"]}}, "output_modalities"),
        ({"type": "session.update"}, "session"),
        ({"type": "response.create", "response": []}, "input"),
        ({"type": "response.create", "response": {"input": [1]}}, "item"),
        ({"type": "response.create", "response": {"input": [message("x" * 5001)]}}, "input"),
        ({"type": "conversation.item.create", "item": {"type": "function_call"}}, "item"),
        ({"type": "conversation.item.create", "item": message("Hi.", kind="input_image")}, "item"),
        ({"type": "conversation.item.truncate", "item_id": "x", "content_index": 0}, "audio_end_ms"),
        ({"type": "input_audio_buffer.append", "audio": ""}, "type"),
        ({"type": "nonsense"}, "type"),
        ({}, "type"),
    ],
)
def test_an_invalid_event_is_an_error_and_the_session_goes_on(
    socket: ClientConnection, event: dict[str, Any], param: str
) -> None:
    socket.send(json.dumps({**event, "event_id": "mine"}))
    error = error_of(socket)
    assert (error["param"], error["event_id"]) == (param, "mine")
    socket.send("no JSON")
    assert error_of(socket)["event_id"] is None
    send(socket, "session.update", session={})
    receive(socket, "session.updated")


def test_recorded_audio_is_refused_only_once(socket: ClientConnection) -> None:
    for _ in range(3):
        send(socket, "input_audio_buffer.append", audio="AAAA")
    send(socket, "response.create", response={"input": [message("Hello.")]})
    kinds = [event["type"] for event in receive(socket, "response.done")]
    assert kinds.count("error") == 1


def test_openai_client(server: LiveServer) -> None:
    openai = pytest.importorskip("openai")

    async def run() -> tuple[list[str], bytes, str]:
        client = openai.AsyncOpenAI(base_url=f"{server.http}/v1", api_key="none")
        kinds, audio, text = [], b"", ""
        async with client.realtime.connect(model="gpt-realtime") as connection, asyncio.timeout(30):
            await connection.session.update(
                session={"type": "realtime", "audio": {"output": {"voice": "marin"}}}
            )
            await connection.conversation.item.create(item=message("Good morning."))
            await connection.response.create()
            async for event in connection:
                kinds.append(event.type)
                if event.type == "response.output_audio.delta":
                    audio += base64.b64decode(event.delta)
                elif event.type == "response.output_audio_transcript.done":
                    text = event.transcript
                elif event.type == "response.done":
                    assert event.response.status == "completed"
                    break
        return kinds, audio, text

    kinds, audio, text = asyncio.run(run())
    assert {"session.created", "session.updated", "response.created"} <= set(kinds)
    assert (len(audio) > 4800, text) == (True, "Good morning.")
    server.wait_until_idle()


WRONG = [5, "x", [], {}, [5], {"a": 5}, True, 1e300, "\ud800", [[]], -1]
SESSION_FIELDS = [
    "output_modalities",
    "modalities",
    "voice",
    "speed",
    "language",
    "seed",
    "output_audio_format",
]


def test_values_of_a_wrong_type_are_errors_and_the_session_goes_on(socket: ClientConnection) -> None:
    events: list[dict[str, Any]] = [{"type": value} for value in WRONG]
    for value in WRONG:
        events += [{"type": "session.update", "session": {name: value}} for name in SESSION_FIELDS]
        events += [
            {"type": "session.update", "session": value},
            {"type": "session.update", "event_id": value},
        ]
        for audio in (value, {"output": value}, {"output": {"format": value}}, {"output": {"voice": value}}):
            events.append({"type": "session.update", "session": {"audio": audio}})
        for name in ("delete", "retrieve", "truncate"):
            events.append({"type": f"conversation.item.{name}", "item_id": value, "audio_end_ms": value})
        for item in (
            value,
            {"type": "message", "role": value, "content": value},
            message("", role="system") | {"id": value},
        ):
            events.append({"type": "conversation.item.create", "item": item})
        events.append({"type": "response.cancel", "response_id": value})
        events.append({"type": "response.create", "response": {"input": value, "output_modalities": 5}})
    for event in events:
        socket.send(json.dumps(event))
    send(socket, "conversation.item.retrieve", item_id="the last")
    while "the last" not in error_of(socket)["message"]:
        pass
    send(socket, "session.update", session={"output_modalities": 5})
    assert error_of(socket)["param"] == "output_modalities"
