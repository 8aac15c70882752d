"""Our own WebSocket protocol: text in as it is written, audio out, many turns on one socket."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from live_server import LiveServer, live_server
from websockets.sync.client import ClientConnection, connect

from nightingale import TTS
from nightingale.request_options import CONTROLS
from nightingale.server.realtime.speech_socket import SessionOptions
from nightingale.server.service import speech_turns
from nightingale.server.service.speech_streams import LiveSpeechStream
from nightingale.voices import library

PATH = "/v1/audio/speech/stream"
LONG = "This is one of very many sentences that are only here to make the text long. " * 40


@pytest.fixture(scope="module")
def tts(tts_with: Callable[..., TTS]) -> TTS:
    return tts_with(defaults={"max_new_tokens": 25})


@pytest.fixture(scope="module")
def server(tts: TTS) -> Iterator[LiveServer]:
    with live_server(tts, max_text_chars=5000) as running:
        yield running


@pytest.fixture
def socket(server: LiveServer) -> Iterator[ClientConnection]:
    with connect(server.ws + PATH) as connection:
        assert json.loads(connection.recv(5))["type"] == "session.created"
        yield connection
    server.wait_until_idle()


def send(socket: ClientConnection, kind: str, **more: Any) -> None:
    socket.send(json.dumps({"type": kind, **more}))


def receive(socket: ClientConnection, *kinds: str) -> tuple[list[dict[str, Any]], bytes]:
    """Return (messages, binary audio) up to the first message of one of these kinds."""
    messages: list[dict[str, Any]] = []
    audio = b""
    while not messages or messages[-1]["type"] not in kinds:
        message = socket.recv(20)
        if isinstance(message, bytes):
            audio += message
        else:
            messages.append(json.loads(message))
    return messages, audio


def test_turn_is_start_then_audio_then_done_with_metrics(socket: ClientConnection) -> None:
    send(socket, "input_text.append", text="Hello the")
    send(socket, "input_text.append", text="re. How are you?")
    send(socket, "input_text.end")
    messages, audio = receive(socket, "speech.audio.done")
    assert [message["type"] for message in messages] == ["speech.audio.start", "speech.audio.done"]
    assert messages[0] == {
        "type": "speech.audio.start", "id": "r1", "sample_rate": 24000, "response_format": "pcm"
    }  # fmt: skip
    metrics = messages[1]["metrics"]
    assert len(audio) / 2 / 24000 == pytest.approx(metrics["audio_seconds"], abs=0.001)
    assert 0 < metrics["ttfa_ms"] <= metrics["total_ms"]
    assert metrics["rtf"] > 0
    assert metrics["tokens"] > 0


def test_audio_equals_that_of_a_session_of_the_engine(tts: TTS, socket: ClientConnection) -> None:
    text = "One sentence here, and then. Another sentence."
    with tts.session(seed=5) as session:
        session.push(text)
        session.end()
        alone = b"".join(chunk.pcm16 for chunk in session)
    send(socket, "session.update", session={"seed": 5})
    for character in text:
        send(socket, "input_text.append", text=character)
    send(socket, "input_text.end")
    _, audio = receive(socket, "speech.audio.done")
    assert audio == alone


def test_audio_is_sent_while_the_text_is_still_being_written(socket: ClientConnection) -> None:
    send(socket, "input_text.append", text="Good morning, everyone, and welcome back to")
    messages, _ = receive(socket, "speech.audio.start")
    assert messages[-1]["id"] == "r1"
    send(socket, "input_text.append", text=" the show.")
    send(socket, "input_text.end")
    receive(socket, "speech.audio.done")


def test_flush_speaks_half_a_sentence(socket: ClientConnection) -> None:
    send(socket, "input_text.append", text="Well")
    send(socket, "input_text.flush")
    receive(socket, "speech.audio.start")
    send(socket, "input_text.end")
    receive(socket, "speech.audio.done")


def test_text_without_continuation_is_flushed(
    socket: ClientConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speech_turns, "IDLE_FLUSH_S", 0.1)
    send(socket, "input_text.append", text="Well")
    receive(socket, "speech.audio.start")
    send(socket, "response.cancel")
    receive(socket, "speech.audio.cancelled")


def test_abandoned_turn_ends_by_itself(socket: ClientConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech_turns, "ABANDONED_S", 0.2)
    send(socket, "input_text.append", text="Hello.")
    receive(socket, "speech.audio.done")


def test_one_socket_carries_many_turns_in_order(socket: ClientConnection) -> None:
    for text in ("First.", "Second.", "Third."):
        send(socket, "input_text.append", text=text)
        send(socket, "input_text.end")
    events = []
    for _ in range(3):
        messages, audio = receive(socket, "speech.audio.done")
        assert audio
        events += [(message["id"], message["type"].rsplit(".")[-1]) for message in messages]
    assert events == [(f"r{n}", what) for n in (1, 2, 3) for what in ("start", "done")]


def test_empty_turn_is_done_at_once(socket: ClientConnection) -> None:
    send(socket, "input_text.append", text="  ")
    send(socket, "input_text.end")
    messages, audio = receive(socket, "speech.audio.done")
    assert (len(messages), audio) == (1, b"")
    assert messages[0]["metrics"]["audio_seconds"] == 0


def test_base64_mp3_at_another_rate(socket: ClientConnection) -> None:
    av = pytest.importorskip("av")
    import io

    send(socket, "session.update", session={"binary": False, "response_format": "mp3", "sample_rate": 16000})
    assert receive(socket, "session.updated")[0][0]["session"]["sample_rate"] == 16000
    send(socket, "input_text.append", text="Hello there.")
    send(socket, "input_text.end")
    messages, audio = receive(socket, "speech.audio.done")
    assert not audio
    data = b"".join(base64.b64decode(m["audio"]) for m in messages if m["type"] == "speech.audio.delta")
    with av.open(io.BytesIO(data)) as recording:
        frames = list(recording.decode(audio=0))
    assert frames[0].sample_rate == 16000
    seconds = sum(frame.samples for frame in frames) / 16000
    assert seconds == pytest.approx(messages[-1]["metrics"]["audio_seconds"], abs=0.2)


def test_null_in_an_update_restores_the_default(socket: ClientConnection) -> None:
    default = SessionOptions().model_dump()
    send(socket, "session.update", session={"response_format": "mp3", "seed": 3, "binary": False})
    receive(socket, "session.updated")
    send(socket, "session.update", session=dict.fromkeys(default))
    messages, _ = receive(socket, "session.updated", "error")
    assert messages[-1].get("session") == default, messages[-1]


def test_sample_rate_does_not_change_the_duration(socket: ClientConnection) -> None:
    send(socket, "session.update", session={"sample_rate": 8000})
    send(socket, "input_text.append", text="Hello there.")
    send(socket, "input_text.end")
    messages, audio = receive(socket, "speech.audio.done")
    samples = np.frombuffer(audio, "<i2")
    assert len(samples) / 8000 == pytest.approx(messages[-1]["metrics"]["audio_seconds"], abs=0.01)
    assert samples.any()


def test_cancel_stops_the_engine_and_the_socket_stays_open(
    server: LiveServer, socket: ClientConnection
) -> None:
    cancelled = server.cancelled()
    send(socket, "input_text.append", text=LONG)
    send(socket, "input_text.end")
    send(socket, "input_text.append", text="And this waits behind it.")
    receive(socket, "speech.audio.start")
    send(socket, "response.cancel")
    messages, _ = receive(socket, "speech.audio.cancelled")
    assert messages[-1]["id"] == "r1"
    assert receive(socket, "speech.audio.cancelled")[0][-1]["id"] == "r2"
    assert server.wait_until_idle() < 2
    assert server.cancelled() == cancelled + 2
    send(socket, "input_text.append", text="Yes?")
    send(socket, "input_text.end")
    assert receive(socket, "speech.audio.done")[0][-1]["id"] == "r3"


def test_text_after_a_cancel_starts_a_new_turn(
    socket: ClientConnection,
) -> None:
    send(socket, "input_text.append", text="Once upon a time there was")
    send(socket, "response.cancel")
    send(socket, "input_text.append", text="Yes?")
    send(socket, "input_text.end")
    messages, audio = receive(socket, "speech.audio.done")
    ends = [(message["type"], message["id"]) for message in messages if "metrics" in message]
    assert ends == [("speech.audio.cancelled", "r1"), ("speech.audio.done", "r2")]
    assert audio


def test_text_over_the_limit_ends_the_turn_with_one_error(socket: ClientConnection) -> None:
    for _ in range(4):
        send(socket, "input_text.append", text=LONG)
    send(socket, "input_text.end")
    messages, _ = receive(socket, "error")
    assert messages[-1]["id"] == "r1"
    assert messages[-1]["error"]["code"] == "input_too_long"
    send(socket, "input_text.append", text="Next.")
    send(socket, "input_text.end")
    messages, _ = receive(socket, "speech.audio.done", "error")
    assert messages[-1]["type"] == "speech.audio.done"


def test_removed_voice_is_one_error_per_turn(tts: TTS, socket: ClientConnection) -> None:
    assert tts.default_voice is not None
    library.add("anna", tts.default_voice)
    send(socket, "session.update", session={"voice": "anna"})
    receive(socket, "session.updated")
    library.remove("anna")
    for word in ("Hello ", "there. ", "And ", "more."):
        send(socket, "input_text.append", text=word)
    send(socket, "input_text.end")
    messages, _ = receive(socket, "error")
    assert messages[-1]["id"] == "r1"
    assert messages[-1]["error"]["code"] == "voice_not_found"
    assert messages[-1]["error"]["param"] == "voice"
    send(socket, "ping")
    assert [message["type"] for message in receive(socket, "pong")[0]] == ["pong"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"voice": "missing"}, "voice"),
        ({"voice": {"id": "missing"}}, "voice"),
        ({"voice": "noise+missing"}, "voice"),
        ({"voice": "other_family"}, "voice"),
        ({"speed": 9}, "speed"),
        ({"speed": "fast"}, "speed"),
        ({"seed": -1}, "seed"),
        *(({name: option.limits[1] + 1}, name) for name, option in CONTROLS.items()),
        ({"language": "xx"}, "language"),
        ({"sample_rate": 12345}, "sample_rate"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_invalid_update_is_refused_and_changes_nothing(
    tts: TTS, socket: ClientConnection, changes: dict[str, Any], param: str
) -> None:
    assert tts.default_voice is not None
    library.add("other_family", replace(tts.default_voice, family="turbo"))
    send(socket, "session.update", session={"seed": 5, **changes})
    messages, _ = receive(socket, "error", "session.updated")
    assert messages[-1]["type"] == "error"
    assert messages[-1]["error"]["param"] == param
    assert "id" not in messages[-1], "the error belongs to no turn"
    send(socket, "session.update", session={})
    messages, _ = receive(socket, "session.updated")
    assert messages[-1]["session"] == SessionOptions().model_dump()
    send(socket, "input_text.append", text="Hello.")
    send(socket, "input_text.end")
    assert receive(socket, "speech.audio.done", "error")[0][-1]["type"] == "speech.audio.done"


def test_too_many_pending_turns_are_refused(socket: ClientConnection) -> None:
    for _ in range(6):
        send(socket, "input_text.append", text="A sentence that takes a while to say, does it not?")
        send(socket, "input_text.end")
    messages, _ = receive(socket, "error")
    assert "too many turns" in messages[-1]["error"]["message"]
    send(socket, "response.cancel")


MALFORMED = {
    "not json": "hello",
    "not an object": "[1]",
    "bytes": b"\x00\x01",
    "no type": "{}",
    "a strange type": '{"type": ["x"]}',
    "text that is a number": '{"type": "input_text.append", "text": 7}',
    "no text": '{"type": "input_text.append"}',
    "no session": '{"type": "session.update"}',
    "an unknown field": '{"type": "session.update", "session": {"colour": "red"}}',
    "a strange format": '{"type": "session.update", "session": {"response_format": "8-track"}}',
    "a strange rate": '{"type": "session.update", "session": {"sample_rate": 12345}}',
    "not a number": '{"type": "session.update", "session": {"speed": NaN}}',
    "deep": "[" * 20_000,
}


@pytest.mark.parametrize("frame", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_message_is_an_error_and_the_socket_stays_open(
    socket: ClientConnection, frame: str | bytes
) -> None:
    socket.send(frame)
    messages, _ = receive(socket, "error")
    assert messages[-1]["error"]["type"] == "invalid_request_error"
    send(socket, "ping")
    receive(socket, "pong")


def test_half_a_surrogate_pair_is_left_out(socket: ClientConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[str] = []
    push = LiveSpeechStream.push

    def record(stream: LiveSpeechStream, text: str) -> None:
        pushed.append(text)
        push(stream, text)

    monkeypatch.setattr(LiveSpeechStream, "push", record)
    socket.send('{"type": "input_text.append", "text": "Hello \\ud83d"}')
    socket.send('{"type": "input_text.append", "text": "\\ude00 there."}')
    send(socket, "input_text.end")
    messages, audio = receive(socket, "speech.audio.done", "error")
    assert messages[-1]["type"] == "speech.audio.done"
    assert pushed == ["Hello ", " there."]
    assert audio


def test_disconnect_frees_the_engine(server: LiveServer) -> None:
    for _ in range(3):
        with connect(server.ws + PATH) as connection:
            send(connection, "input_text.append", text=LONG)
            receive(connection, "speech.audio.start")
    assert server.wait_until_idle() < 5


def test_turns_of_two_sockets_are_decoded_together(server: LiveServer) -> None:
    with connect(server.ws + PATH) as one, connect(server.ws + PATH) as two:
        send(one, "input_text.append", text=LONG)
        receive(one, "speech.audio.start")
        send(two, "input_text.append", text="Hello.")
        send(two, "input_text.end")
        receive(two, "speech.audio.done")
        assert server.service.metrics.active == 1, "the second turn waited for the first"
