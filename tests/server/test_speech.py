"""POST /v1/audio/speech over a real socket: formats, fields, refusals, events."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import httpx
import numpy as np
import pytest
from live_server import LiveServer
from plain_http import HTTP

from nightingale.server.bodies import SpeechBody

av = pytest.importorskip("av")

HELLO = "Hello there."
TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


def ask(server: LiveServer, **body: Any) -> httpx.Response:
    return HTTP.post(f"{server.http}/v1/audio/speech", json={"input": HELLO, **body}, timeout=30)


def refused(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of a refusal, whose envelope must be complete."""
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def seconds_of(data: bytes) -> float:
    with av.open(io.BytesIO(data)) as file:
        return float(sum(frame.samples / frame.sample_rate for frame in file.decode(audio=0)))


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line]


@pytest.mark.parametrize("form", TYPES)
def test_every_format_is_what_it_says(server: LiveServer, form: str) -> None:
    pcm = ask(server, response_format="pcm", seed=1).content
    answer = ask(server, response_format=form, seed=1)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == TYPES[form]
    assert "content-length" not in answer.headers, "it was not streamed"
    if form != "pcm":
        assert seconds_of(answer.content) == pytest.approx(len(pcm) / 48_000, abs=0.12)


def test_mp3_is_the_default(server: LiveServer) -> None:
    assert ask(server).headers["content-type"] == "audio/mpeg"


def test_the_sound_is_the_engine_s_own(server: LiveServer) -> None:
    heard = np.frombuffer(ask(server, response_format="pcm", seed=7).content, "<i2")
    said = server.speaker._given.say(HELLO, seed=7)  # type: ignore[union-attr]
    assert heard.tobytes() == said.pcm16
    assert ask(server, response_format="wav", seed=7).content[44:] == said.pcm16


def test_the_headers_tell_what_it_cost(server: LiveServer) -> None:
    answer = ask(server, seed=5)
    timing = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    assert set(timing) == {"text", "queue", "ttfa"}
    assert float(timing["ttfa"]) > 0
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["x-sample-rate"] == "24000"
    assert answer.headers["x-seed"] == "5"


def test_a_client_s_own_request_id_comes_back_and_a_bad_one_does_not(server: LiveServer) -> None:
    for given, kept in (("abc-123", True), ("a b\tc", False), ("x" * 300, False)):
        answer = HTTP.get(f"{server.http}/health", headers={"x-request-id": given})
        assert (answer.headers["x-request-id"] == given) is kept


def test_another_sample_rate(server: LiveServer) -> None:
    plain = ask(server, response_format="pcm", seed=1)
    other = ask(server, response_format="pcm", seed=1, sample_rate=48_000)
    assert other.headers["x-sample-rate"] == "48000"
    assert len(other.content) == pytest.approx(2 * len(plain.content), rel=0.01)
    assert refused(ask(server, response_format="opus", sample_rate=44_100))["code"] == "invalid_value"
    refused(ask(server, sample_rate=7))


def test_speed_changes_the_length(server: LiveServer) -> None:
    plain = ask(server, response_format="pcm", seed=1)
    for speed in (0.25, 2, 4.0):
        other = ask(server, response_format="pcm", seed=1, speed=speed)
        assert len(other.content) == pytest.approx(len(plain.content) / speed, rel=0.02)


@pytest.mark.parametrize(
    "voice",
    [
        None,
        "",
        "default",
        "noise",
        "Noise",
        {"id": "noise"},
        {"id": "nova"},
        "noise(2)+alloy",
        "coral + echo(0.5)",
    ],
)
def test_a_voice_may_be_written_in_many_ways(server: LiveServer, voice: Any) -> None:
    assert ask(server, voice=voice).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        "alloy",
        "ash",
        "ballad",
        "cedar",
        "coral",
        "echo",
        "fable",
        "marin",
        "nova",
        "onyx",
        "sage",
        "shimmer",
        "verse",
    ],
)
def test_every_name_of_openai_is_a_voice(server: LiveServer, name: str) -> None:
    assert ask(server, voice=name).status_code == 200


@pytest.mark.parametrize(
    "voice",
    ["nobody", "../../etc/passwd", "/etc/passwd", "README.md", "a(0)+b", "a++b", "+".join("abcdefghij")],
)
def test_nobody_is_refused_and_no_path_is_read(server: LiveServer, voice: str) -> None:
    assert refused(ask(server, voice=voice))["param"] == "voice"


def test_a_voice_of_the_wrong_kind_is_refused(server: LiveServer) -> None:
    assert refused(ask(server, voice=5))["param"] == "voice"
    assert refused(ask(server, voice={"name": "x"}))["param"] == "voice"


@pytest.mark.parametrize(
    "model", ["tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15", "noise"]
)
def test_every_usual_model_name_is_the_model_that_is_loaded(server: LiveServer, model: str) -> None:
    assert ask(server, model=model).status_code == 200


@pytest.mark.parametrize("model", ["turbo", "ResembleAI/chatterbox", "tts-2"])
def test_another_model_is_refused_and_never_fetched(server: LiveServer, model: str) -> None:
    error = refused(ask(server, model=model))
    assert (error["code"], error["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": " \n "}, "input"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": "x" * 10_001}, "input"),
        ({"input": "[pause:99s] hi"}, "input"),
        ({"response_format": "midi"}, "response_format"),
        ({"stream_format": "carrier pigeon"}, "stream_format"),
        ({"speed": 0.2}, "speed"),
        ({"speed": 4.1}, "speed"),
        ({"speed": "fast"}, "speed"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 70}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"temperature": 99}, "temperature"),
        ({"exaggeration": -1}, "exaggeration"),
        ({"cfg_weight": 11}, "cfg_weight"),
        ({"sample_rate": 7}, "sample_rate"),
        ({"sample_rate": 44_100, "response_format": "opus"}, "sample_rate"),
        ({"timestamps": "word"}, "timestamps"),
        ({"timestamps": "segment"}, "timestamps"),
        ({"timestamps": "phone"}, "timestamps"),
        ({"language": "x" * 50}, "language"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(server: LiveServer, body: Any, param: str | None) -> None:
    error = refused(ask(server, **body))
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_fields_that_openai_has_and_we_ignore_are_accepted(server: LiveServer) -> None:
    assert ask(server, instructions="Whisper.", stream=True, user="me", timestamps="none").status_code == 200


def test_null_is_the_same_as_left_out(server: LiveServer) -> None:
    """Some clients send every field they know, with null in those that nobody set."""
    fields = set(SpeechBody.model_fields) - {"input", "seed"}
    answer = ask(server, **dict.fromkeys(fields), seed=1)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/mpeg"
    assert answer.content == ask(server, seed=1).content
    assert refused(ask(server, input=None))["code"] == "missing_required_parameter"


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
def test_json_that_does_not_say_so_is_told_which_header_to_send(server: LiveServer, kind: str | None) -> None:
    """`curl -d` calls whatever it sends a form."""
    headers = {} if kind is None else {"content-type": kind}
    answer = HTTP.post(f"{server.http}/v1/audio/speech", content=b'{"input": "Hello."}', headers=headers)
    error = refused(answer)
    assert "Content-Type: application/json" in error["message"]
    assert (kind or "no Content-Type") in error["message"]
    assert error["code"] == "invalid_content_type"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", "invalid_json"),
        (b"", "missing_required_parameter"),
        (b"[]", "invalid_value"),
        (b'{"input": "\\ud800"}', "invalid_value"),
        (b'{"input": "hi", "speed": NaN}', "invalid_value"),
        (b'{"input": "' + b"[" * 1000 + b'"}', "empty_input"),
    ],
)
def test_a_body_that_is_no_request_is_refused(server: LiveServer, content: bytes, code: str) -> None:
    headers = {"content-type": "application/json"}
    answer = HTTP.post(f"{server.http}/v1/audio/speech", content=content, headers=headers)
    assert refused(answer)["code"] == code


def test_a_megabyte_of_text_is_refused_and_the_next_is_served(server: LiveServer) -> None:
    assert refused(ask(server, input="word " * 250_000), 413)["code"] == "request_too_large"
    assert ask(server).status_code == 200


def test_a_body_that_hides_its_length_is_cut_off(server: LiveServer) -> None:
    def endless() -> Any:
        yield b'{"input": "'
        for _ in range(200):
            yield b"x" * 10_000

    headers = {"content-type": "application/json"}
    try:
        answer = HTTP.post(f"{server.http}/v1/audio/speech", content=endless(), headers=headers)
    except httpx.TransportError:
        pass  # cut off while it was still talking
    else:
        refused(answer, 413)
    assert ask(server).status_code == 200


def test_events_hold_the_same_sound_and_what_it_cost(server: LiveServer) -> None:
    plain = ask(server, response_format="pcm", seed=3)
    answer = ask(server, response_format="pcm", seed=3, stream_format="sse")
    assert answer.headers["content-type"].startswith("text/event-stream")
    *deltas, done = events_of(answer.text)
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == plain.content
    assert done["type"] == "speech.audio.done"
    assert done["usage"]["total_tokens"] == len(HELLO) + done["usage"]["output_tokens"]
    assert done["metrics"]["audio_seconds"] == pytest.approx(len(plain.content) / 48_000, abs=0.001)
    assert done["metrics"]["seed"] == 3


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/v1/nope", 404),
        ("PUT", "/v1/audio/speech", 405),
        ("GET", "/v1/audio/speech", 405),
        ("DELETE", "/health", 405),
    ],
)
def test_a_wrong_address_is_answered_in_the_envelope(
    server: LiveServer, method: str, path: str, status: int
) -> None:
    error = refused(HTTP.request(method, server.http + path), status)
    assert error["code"] == {404: "not_found", 405: "method_not_allowed"}[status]


def test_long_text_arrives_while_it_is_still_spoken(server: LiveServer) -> None:
    sizes = []
    body = {"input": "One sentence, and then another one. " * 60, "response_format": "pcm"}
    with HTTP.stream("POST", f"{server.http}/v1/audio/speech", json=body, timeout=30) as answer:
        active = []
        for part in answer.iter_raw():
            sizes.append(len(part))
            active.append(server.speaker.meter.active)
    assert len(sizes) > 3
    assert active[0] == 1
    server.wait_until_idle()
