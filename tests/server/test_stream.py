"""The native socket: text in as it is written, sound out, one socket for a whole conversation."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from live_server import LiveServer, live_server
from websockets.sync.client import ClientConnection, connect

from nightingale import TTS
from nightingale.server import turn as turn_module
from nightingale.server.routes.stream import SpeechSession
from nightingale.voices import library

PATH = "/v1/audio/speech/stream"
LONG = "This is one of very many sentences that nobody will ever listen to. " * 40


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


def tell(socket: ClientConnection, kind: str, **more: Any) -> None:
    socket.send(json.dumps({"type": kind, **more}))


def hear(socket: ClientConnection, *kinds: str) -> tuple[list[dict[str, Any]], bytes]:
    """Everything up to the first message of one of these kinds: (messages, binary sound)."""
    messages: list[dict[str, Any]] = []
    sound = b""
    while not messages or messages[-1]["type"] not in kinds:
        message = socket.recv(20)
        if isinstance(message, bytes):
            sound += message
        else:
            messages.append(json.loads(message))
    return messages, sound


def test_a_turn_is_start_then_sound_then_done_with_its_cost(socket: ClientConnection) -> None:
    tell(socket, "input_text.append", text="Hello the")
    tell(socket, "input_text.append", text="re. How are you?")
    tell(socket, "input_text.end")
    messages, sound = hear(socket, "speech.audio.done")
    assert [message["type"] for message in messages] == ["speech.audio.start", "speech.audio.done"]
    assert messages[0] == {
        "type": "speech.audio.start", "id": "r1", "sample_rate": 24000, "response_format": "pcm"
    }  # fmt: skip
    cost = messages[1]["metrics"]
    assert len(sound) / 2 / 24000 == pytest.approx(cost["audio_seconds"], abs=0.001)
    assert 0 < cost["ttfa_ms"] <= cost["total_ms"]
    assert cost["rtf"] > 0
    assert cost["tokens"] > 0


def test_the_sound_is_what_the_engine_says_alone(tts: TTS, socket: ClientConnection) -> None:
    text = "One sentence here, and then. Another sentence."
    with tts.session(seed=5) as session:
        session.push(text)
        session.end()
        alone = b"".join(chunk.pcm16 for chunk in session)
    tell(socket, "session.update", session={"seed": 5})
    for character in text:
        tell(socket, "input_text.append", text=character)
    tell(socket, "input_text.end")
    _, sound = hear(socket, "speech.audio.done")
    assert sound == alone


def test_sound_comes_while_the_text_is_still_being_written(socket: ClientConnection) -> None:
    tell(socket, "input_text.append", text="Good morning, everyone, and welcome back to")
    messages, _ = hear(socket, "speech.audio.start")
    assert messages[-1]["id"] == "r1"
    tell(socket, "input_text.append", text=" the show.")
    tell(socket, "input_text.end")
    hear(socket, "speech.audio.done")


def test_flush_speaks_half_a_sentence(socket: ClientConnection) -> None:
    tell(socket, "input_text.append", text="Well")
    tell(socket, "input_text.flush")
    hear(socket, "speech.audio.start")
    tell(socket, "input_text.end")
    hear(socket, "speech.audio.done")


def test_a_writer_who_falls_silent_is_spoken_as_far_as_the_text_goes(
    socket: ClientConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_module, "IDLE_FLUSH_S", 0.1)
    tell(socket, "input_text.append", text="Well")
    hear(socket, "speech.audio.start")
    tell(socket, "response.cancel")
    hear(socket, "speech.audio.cancelled")


def test_an_abandoned_turn_ends_of_itself(socket: ClientConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_module.Turn.__init__, "__kwdefaults__", {"after": None, "abandoned_s": 0.2})
    tell(socket, "input_text.append", text="Hello.")
    hear(socket, "speech.audio.done")


def test_one_socket_carries_many_turns_in_order(socket: ClientConnection) -> None:
    for text in ("First.", "Second.", "Third."):
        tell(socket, "input_text.append", text=text)
        tell(socket, "input_text.end")
    heard = []
    for _ in range(3):
        messages, sound = hear(socket, "speech.audio.done")
        assert sound
        heard += [(message["id"], message["type"].rsplit(".")[-1]) for message in messages]
    assert heard == [(f"r{n}", what) for n in (1, 2, 3) for what in ("start", "done")]


def test_an_empty_turn_is_done_at_once(socket: ClientConnection) -> None:
    tell(socket, "input_text.append", text="  ")
    tell(socket, "input_text.end")
    messages, sound = hear(socket, "speech.audio.done")
    assert (len(messages), sound) == (1, b"")
    assert messages[0]["metrics"]["audio_seconds"] == 0


def test_base64_mp3_at_another_rate(socket: ClientConnection) -> None:
    av = pytest.importorskip("av")
    import io

    tell(socket, "session.update", session={"binary": False, "response_format": "mp3", "sample_rate": 16000})
    assert hear(socket, "session.updated")[0][0]["session"]["sample_rate"] == 16000
    tell(socket, "input_text.append", text="Hello there.")
    tell(socket, "input_text.end")
    messages, sound = hear(socket, "speech.audio.done")
    assert not sound
    data = b"".join(base64.b64decode(m["audio"]) for m in messages if m["type"] == "speech.audio.delta")
    with av.open(io.BytesIO(data)) as recording:
        frames = list(recording.decode(audio=0))
    assert frames[0].sample_rate == 16000
    seconds = sum(frame.samples for frame in frames) / 16000
    assert seconds == pytest.approx(messages[-1]["metrics"]["audio_seconds"], abs=0.2)


def test_null_in_an_update_is_the_default_again(socket: ClientConnection) -> None:
    default = SpeechSession().model_dump()
    tell(socket, "session.update", session={"response_format": "mp3", "seed": 3, "binary": False})
    hear(socket, "session.updated")
    tell(socket, "session.update", session=dict.fromkeys(default))
    messages, _ = hear(socket, "session.updated", "error")
    assert messages[-1].get("session") == default, messages[-1]


def test_another_rate_is_as_long(socket: ClientConnection) -> None:
    tell(socket, "session.update", session={"sample_rate": 8000})
    tell(socket, "input_text.append", text="Hello there.")
    tell(socket, "input_text.end")
    messages, sound = hear(socket, "speech.audio.done")
    samples = np.frombuffer(sound, "<i2")
    assert len(samples) / 8000 == pytest.approx(messages[-1]["metrics"]["audio_seconds"], abs=0.01)
    assert samples.any()


def test_cancel_stops_the_engine_within_a_step_and_the_socket_goes_on(
    server: LiveServer, socket: ClientConnection
) -> None:
    tell(socket, "input_text.append", text=LONG)
    tell(socket, "input_text.end")
    tell(socket, "input_text.append", text="And this waits behind it.")
    hear(socket, "speech.audio.start")
    tell(socket, "response.cancel")
    messages, _ = hear(socket, "speech.audio.cancelled")
    assert messages[-1]["id"] == "r1"
    assert messages[-1]["metrics"]["audio_seconds"] < 60
    assert hear(socket, "speech.audio.cancelled")[0][-1]["id"] == "r2"
    assert server.wait_until_idle() < 2
    tell(socket, "input_text.append", text="Yes?")
    tell(socket, "input_text.end")
    assert hear(socket, "speech.audio.done")[0][-1]["id"] == "r3"


def test_text_after_a_cancel_begins_a_new_turn_though_the_old_one_was_never_ended(
    socket: ClientConnection,
) -> None:
    tell(socket, "input_text.append", text="Once upon a time there was")
    tell(socket, "response.cancel")
    tell(socket, "input_text.append", text="Yes?")
    tell(socket, "input_text.end")
    messages, sound = hear(socket, "speech.audio.done")
    ends = [(message["type"], message["id"]) for message in messages if "metrics" in message]
    assert ends == [("speech.audio.cancelled", "r1"), ("speech.audio.done", "r2")]
    assert sound


def test_text_beyond_the_limit_ends_the_turn_with_one_error(socket: ClientConnection) -> None:
    for _ in range(4):
        tell(socket, "input_text.append", text=LONG)
    tell(socket, "input_text.end")
    messages, _ = hear(socket, "error")
    assert messages[-1]["id"] == "r1"
    assert messages[-1]["error"]["code"] == "input_too_long"
    tell(socket, "input_text.append", text="Next.")
    tell(socket, "input_text.end")
    messages, _ = hear(socket, "speech.audio.done", "error")
    assert messages[-1]["type"] == "speech.audio.done"


def test_a_voice_that_goes_away_is_one_error_however_many_tokens_follow(
    tts: TTS, socket: ClientConnection
) -> None:
    assert tts.default_voice is not None
    library.add("anna", tts.default_voice)
    tell(socket, "session.update", session={"voice": "anna"})
    hear(socket, "session.updated")
    library.remove("anna")
    for word in ("Hello ", "there. ", "And ", "more."):
        tell(socket, "input_text.append", text=word)
    tell(socket, "input_text.end")
    messages, _ = hear(socket, "error")
    assert messages[-1]["id"] == "r1"
    assert messages[-1]["error"]["code"] == "voice_not_found"
    assert messages[-1]["error"]["param"] == "voice"
    tell(socket, "ping")
    assert [message["type"] for message in hear(socket, "pong")[0]] == ["pong"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"voice": "nobody"}, "voice"),
        ({"voice": {"id": "nobody"}}, "voice"),
        ({"voice": "noise+nobody"}, "voice"),
        ({"voice": "stranger"}, "voice"),
        ({"speed": 9}, "speed"),
        ({"speed": "fast"}, "speed"),
        ({"seed": -1}, "seed"),
        ({"temperature": 99.0}, "temperature"),
        ({"language": "xx"}, "language"),
        ({"sample_rate": 12345}, "sample_rate"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_set_and_nothing_changes(
    tts: TTS, socket: ClientConnection, changes: dict[str, Any], param: str
) -> None:
    assert tts.default_voice is not None
    library.add("stranger", replace(tts.default_voice, family="turbo"))
    tell(socket, "session.update", session={"seed": 5, **changes})
    messages, _ = hear(socket, "error", "session.updated")
    assert messages[-1]["type"] == "error"
    assert messages[-1]["error"]["param"] == param
    assert "id" not in messages[-1], "no turn is at fault"
    tell(socket, "session.update", session={})
    messages, _ = hear(socket, "session.updated")
    assert messages[-1]["session"] == SpeechSession().model_dump()
    tell(socket, "input_text.append", text="Hello.")
    tell(socket, "input_text.end")
    assert hear(socket, "speech.audio.done", "error")[0][-1]["type"] == "speech.audio.done"


def test_too_many_turns_at_once_are_refused_and_the_rest_is_heard(socket: ClientConnection) -> None:
    for _ in range(6):
        tell(socket, "input_text.append", text="A sentence that takes a while to say, does it not?")
        tell(socket, "input_text.end")
    messages, _ = hear(socket, "error")
    assert "too many turns" in messages[-1]["error"]["message"]
    tell(socket, "response.cancel")


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
def test_a_malformed_message_is_told_so_and_the_socket_goes_on(
    socket: ClientConnection, frame: str | bytes
) -> None:
    socket.send(frame)
    messages, _ = hear(socket, "error")
    assert messages[-1]["error"]["type"] == "invalid_request_error"
    tell(socket, "ping")
    hear(socket, "pong")


def test_half_an_emoji_is_left_out(socket: ClientConnection) -> None:
    socket.send('{"type": "input_text.append", "text": "Hello \\ud83d"}')
    socket.send('{"type": "input_text.append", "text": "\\ude00 there."}')
    tell(socket, "input_text.end")
    hear(socket, "speech.audio.done")


def test_whoever_leaves_frees_the_engine(server: LiveServer) -> None:
    for _ in range(3):
        with connect(server.ws + PATH) as connection:
            tell(connection, "input_text.append", text=LONG)
            hear(connection, "speech.audio.start")
    assert server.wait_until_idle() < 5


def test_turns_of_two_sockets_are_heard_together(server: LiveServer) -> None:
    with connect(server.ws + PATH) as one, connect(server.ws + PATH) as two:
        tell(one, "input_text.append", text=LONG)
        hear(one, "speech.audio.start")
        began = time.monotonic()
        tell(two, "input_text.append", text="Hello.")
        tell(two, "input_text.end")
        hear(two, "speech.audio.done")
        assert time.monotonic() - began < 10
