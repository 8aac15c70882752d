"""ElevenLabs' protocol, message by message. tests/contract uses the real clients."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from live_server import LiveServer, live_server
from plain_http import HTTP
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from nightingale import TTS
from nightingale.server.elevenlabs import elevenlabs_routes
from nightingale.server.elevenlabs.elevenlabs_routes import MAX_CONTEXTS

LONG = "This is one of very many sentences that are only here to make the text long. " * 40


@pytest.fixture(scope="module")
def server(tts_with: Callable[..., TTS]) -> Iterator[LiveServer]:
    with live_server(tts_with(defaults={"max_new_tokens": 25}), max_text_chars=5000) as running:
        yield running


def url(server: LiveServer, kind: str, voice: str = "noise", **query: str) -> str:
    options = "&".join(f"{name}={value}" for name, value in {"output_format": "pcm_24000", **query}.items())
    return f"{server.ws}/v1/text-to-speech/{voice}/{kind}?{options}"


@pytest.fixture
def multi(server: LiveServer) -> Iterator[ClientConnection]:
    with connect(url(server, "multi-stream-input")) as connection:
        yield connection
    server.wait_until_idle()


def send(socket: ClientConnection, **message: Any) -> None:
    socket.send(json.dumps(message))


def receive(socket: ClientConnection, finals: int = 1) -> list[dict[str, Any]]:
    """Return all messages up to the given number of final ones."""
    messages: list[dict[str, Any]] = []
    while sum(message.get("isFinal") is True for message in messages) < finals:
        messages.append(json.loads(socket.recv(20)))
    return messages


def seconds_of(messages: list[dict[str, Any]], context: str | None = None) -> float:
    mine = [m for m in messages if context is None or m.get("contextId") == context]
    return sum(len(base64.b64decode(m["audio"])) for m in mine if m.get("audio")) / 48000


def test_stream_input_speaks_one_answer_and_closes(server: LiveServer) -> None:
    with connect(url(server, "stream-input")) as socket:
        send(socket, text=" ", voice_settings={"stability": 0.5}, generation_config={})
        send(socket, text="Hello there. ", try_trigger_generation=True)
        send(socket, text="How are you? ")
        send(socket, text="")
        messages = receive(socket)
        assert seconds_of(messages) > 0.5
        assert messages[0].keys() == {"audio", "isFinal", "alignment", "normalizedAlignment"}
        assert messages[-1]["audio"] is None
        with pytest.raises(ConnectionClosed):
            socket.recv(5)
        assert socket.close_code == 1000


def test_flush_speaks_at_once_on_stream_input(server: LiveServer) -> None:
    with connect(url(server, "stream-input")) as socket:
        send(socket, text="Well", flush=True)
        assert json.loads(socket.recv(5))["audio"]


def test_contexts_have_their_own_audio_and_end_when_closed(multi: ClientConnection) -> None:
    for name in ("a", "b"):
        send(multi, text=" ", voice_settings={}, context_id=name)
        send(multi, text="Hello there. ", context_id=name)
        send(multi, context_id=name, flush=True)
        send(multi, context_id=name, close_context=True)
    messages = receive(multi, finals=2)
    assert {message["contextId"] for message in messages} == {"a", "b"}
    assert min(seconds_of(messages, "a"), seconds_of(messages, "b")) > 0.2


def test_closing_a_context_without_flush_cancels_it(server: LiveServer, multi: ClientConnection) -> None:
    before = server.cancelled()
    send(multi, text=LONG, context_id="a")
    assert json.loads(multi.recv(10))["audio"]
    send(multi, context_id="a", close_context=True)
    assert receive(multi)[-1]["contextId"] == "a"
    assert server.wait_until_idle() < 2
    assert server.cancelled() == before + 1


def test_closing_a_context_twice_cancels_it(server: LiveServer, multi: ClientConnection) -> None:
    before = server.cancelled()
    send(multi, text=LONG, context_id="a", flush=True)
    send(multi, context_id="a", close_context=True)
    assert json.loads(multi.recv(10))["audio"]
    send(multi, context_id="a", close_context=True)
    receive(multi)
    assert server.cancelled() == before + 1


def test_name_of_a_closed_context_can_be_reused(multi: ClientConnection) -> None:
    for _ in range(2):
        send(multi, text="Hello. ", context_id="a", flush=True)
        send(multi, context_id="a", close_context=True)
    assert len([m for m in receive(multi, finals=2) if m.get("isFinal")]) == 2


def test_auto_mode_speaks_each_message_at_once(server: LiveServer) -> None:
    with connect(url(server, "multi-stream-input", auto_mode="true")) as socket:
        send(socket, text="Well", context_id="a")
        assert json.loads(socket.recv(5))["audio"]


def test_keep_alives_open_no_session(
    server: LiveServer, multi: ClientConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(server.service, "session", lambda **request: opened.append(request))
    send(multi, text="")
    send(multi, text=" ", context_id="a")
    send(multi, text="", context_id="a")
    send(multi, context_id="a", close_context=True)
    assert receive(multi) == [{"audio": None, "isFinal": True, "contextId": "a"}]
    assert not opened


def test_flush_of_an_unknown_context_opens_none(multi: ClientConnection) -> None:
    """Pipecat sends such flushes for answers that were interrupted before their first word."""
    for number in range(MAX_CONTEXTS + 1):
        send(multi, context_id=str(number), flush=True)
    send(multi, text="Hello. ", context_id="a", flush=True)
    send(multi, context_id="a", close_context=True)
    assert {message["contextId"] for message in receive(multi)} == {"a"}


def test_flush_without_a_name_is_for_the_default_context(multi: ClientConnection) -> None:
    send(multi, text="Well")
    send(multi, flush=True)
    assert json.loads(multi.recv(10))["contextId"] == "default"


def test_closing_an_unknown_context_is_confirmed(multi: ClientConnection) -> None:
    send(multi, context_id="unknown", close_context=True)
    assert receive(multi)[0]["contextId"] == "unknown"


def test_abandoned_context_ends_by_itself(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elevenlabs_routes, "MIN_INACTIVITY_S", 0.2)
    with connect(url(server, "multi-stream-input", inactivity_timeout="0.2")) as socket:
        send(socket, text="Hello.", context_id="a")
        assert seconds_of(receive(socket)) > 0


def test_close_socket_sends_flushed_audio_first(server: LiveServer) -> None:
    with connect(url(server, "multi-stream-input")) as socket:
        send(socket, text="Hello there. ", context_id="a", flush=True)
        send(socket, close_socket=True)
        assert seconds_of(receive(socket)) > 0.2
        with pytest.raises(ConnectionClosed):
            socket.recv(5)
        assert socket.close_code == 1000


def test_error_in_one_context_does_not_affect_another(multi: ClientConnection) -> None:
    """An error message is followed by a final message: LiveKit waits for the one, Pipecat for the other."""
    send(multi, text="Hello there. ", context_id="good")
    for _ in range(3):
        send(multi, text=LONG, context_id="bad")
    messages = receive(multi)
    error = next(message for message in messages if "error" in message)
    assert (error["contextId"], error["error"]) == ("bad", "input_too_long")
    assert messages[-1]["contextId"] == "bad"
    send(multi, text="", context_id="good", flush=True)
    send(multi, context_id="good", close_context=True)
    assert "error" not in str(receive(multi))


def test_too_many_contexts_are_refused(multi: ClientConnection) -> None:
    for number in range(MAX_CONTEXTS + 1):
        send(multi, text=" ", context_id=str(number))
    refused = json.loads(multi.recv(5))
    assert refused["contextId"] == str(MAX_CONTEXTS)
    assert "too many contexts" in refused["message"]


@pytest.mark.parametrize("frame", ["x", "[]", b"\x00", '{"text": 7, "context_id": "a"}'])
def test_malformed_message_is_an_error_and_the_socket_stays_open(
    multi: ClientConnection, frame: str | bytes
) -> None:
    multi.send(frame)
    assert json.loads(multi.recv(5))["error"] == "invalid_value"
    send(multi, context_id="a", close_context=True)
    receive(multi)


def test_malformed_message_closes_stream_input(server: LiveServer) -> None:
    with connect(url(server, "stream-input")) as socket:
        socket.send("hello")
        assert "cannot be read" in receive(socket)[0]["message"]
        with pytest.raises(ConnectionClosed):
            socket.recv(5)
        assert socket.close_code == 1008


def test_invalid_url_denies_the_handshake(server: LiveServer) -> None:
    for address, code in (
        (url(server, "multi-stream-input", voice="missing"), "voice_not_found"),
        (url(server, "stream-input", output_format="vinyl_33"), "invalid_value"),
    ):
        with pytest.raises(InvalidStatus) as caught, connect(address):
            pass
        assert caught.value.response.status_code == 400
        assert json.loads(caught.value.response.body)["error"]["code"] == code


def test_speed_is_read_from_voice_settings(server: LiveServer) -> None:
    lengths = []
    for speed in (1.0, 2.0):
        with connect(url(server, "stream-input")) as socket:
            send(socket, text=" ", voice_settings={"speed": speed})
            send(socket, text="Hello there.")
            send(socket, text="")
            lengths.append(seconds_of(receive(socket)))
    assert lengths[1] < 0.75 * lengths[0]


@pytest.mark.parametrize(("codec", "rates"), [("mp3_44100", (32, 192)), ("opus_48000", (32, 128))])
def test_http_response_has_the_bit_rate_of_its_format(
    server: LiveServer, codec: str, rates: tuple[int, int]
) -> None:
    def size(kbps: int) -> int:
        address = f"{server.http}/v1/text-to-speech/noise?output_format={codec}_{kbps}"
        answer = HTTP.post(address, json={"text": "Hello there.", "seed": 1})
        assert answer.status_code == 200, answer.text
        return len(answer.content)

    small, large = (size(kbps) for kbps in rates)
    assert large / small == pytest.approx(rates[1] / rates[0], rel=0.25)


def test_http_requests_and_the_list_of_voices(server: LiveServer) -> None:
    base = f"{server.http}/v1/text-to-speech/noise"
    for path in ("", "/stream"):
        answer = HTTP.post(f"{base}{path}?output_format=pcm_16000", json={"text": "Hello.", "model_id": "x"})
        assert answer.status_code == 200
        assert len(answer.content) > 1000
    assert HTTP.post(base, json={}).json()["error"]["param"] == "text"
    bad = HTTP.post(base, json={"text": "Hello.", "voice_settings": {"speed": "fast"}})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "speed")
    voices = HTTP.get(f"{server.http}/v1/voices").json()["voices"]
    assert [(voice["voice_id"], voice["category"]) for voice in voices] == [("noise", "premade")]
