"""POST /v1/audio/speech over a real socket: formats, fields, errors, events."""

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

from nightingale.request_options import NUMBERS
from nightingale.server.openai.speech_routes import SpeechBody

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


def post(server: LiveServer, **body: Any) -> httpx.Response:
    return HTTP.post(f"{server.http}/v1/audio/speech", json={"input": HELLO, **body}, timeout=30)


def error_of(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    """Check the status and the envelope of an error response; return the error."""
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
def test_every_format_is_valid(server: LiveServer, form: str) -> None:
    pcm = post(server, response_format="pcm", seed=1).content
    answer = post(server, response_format=form, seed=1)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == TYPES[form]
    assert "content-length" not in answer.headers, "it was not streamed"
    if form != "pcm":
        assert seconds_of(answer.content) == pytest.approx(len(pcm) / 48_000, abs=0.12)


def test_mp3_is_the_default(server: LiveServer) -> None:
    assert post(server).headers["content-type"] == "audio/mpeg"


def test_audio_equals_the_engine_s(server: LiveServer) -> None:
    received = np.frombuffer(post(server, response_format="pcm", seed=7).content, "<i2")
    said = server.service._given_tts.say(HELLO, seed=7)  # type: ignore[union-attr]
    assert received.tobytes() == said.pcm16
    assert post(server, response_format="wav", seed=7).content[44:] == said.pcm16


def test_headers_contain_timing_rate_and_seed(server: LiveServer) -> None:
    answer = post(server, seed=5)
    timing = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    assert set(timing) == {"text", "queue", "ttfa"}
    assert float(timing["ttfa"]) > 0
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["x-sample-rate"] == "24000"
    assert answer.headers["x-seed"] == "5"


def test_valid_request_id_of_a_client_is_kept(server: LiveServer) -> None:
    for given, kept in (("abc-123", True), ("a b\tc", False), ("x" * 300, False)):
        answer = HTTP.get(f"{server.http}/health", headers={"x-request-id": given})
        assert (answer.headers["x-request-id"] == given) is kept


def test_sample_rate_is_converted(server: LiveServer) -> None:
    plain = post(server, response_format="pcm", seed=1)
    other = post(server, response_format="pcm", seed=1, sample_rate=48_000)
    assert other.headers["x-sample-rate"] == "48000"
    assert len(other.content) == pytest.approx(2 * len(plain.content), rel=0.01)
    assert error_of(post(server, response_format="opus", sample_rate=44_100))["code"] == "invalid_value"
    error_of(post(server, sample_rate=7))


def test_speed_changes_the_length(server: LiveServer) -> None:
    plain = post(server, response_format="pcm", seed=1)
    for speed in (0.25, 2, 4.0):
        other = post(server, response_format="pcm", seed=1, speed=speed)
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
def test_voice_may_be_given_in_many_ways(server: LiveServer, voice: Any) -> None:
    assert post(server, voice=voice).status_code == 200


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
def test_every_openai_name_is_a_voice(server: LiveServer, name: str) -> None:
    assert post(server, voice=name).status_code == 200


@pytest.mark.parametrize(
    "voice",
    ["missing", "../../etc/passwd", "/etc/passwd", "README.md", "a(0)+b", "a++b", "+".join("abcdefghij")],
)
def test_unknown_voice_is_refused_and_no_path_is_read(server: LiveServer, voice: str) -> None:
    assert error_of(post(server, voice=voice))["param"] == "voice"


def test_voice_of_the_wrong_type_is_refused(server: LiveServer) -> None:
    assert error_of(post(server, voice=5))["param"] == "voice"
    assert error_of(post(server, voice={"name": "x"}))["param"] == "voice"


@pytest.mark.parametrize(
    "model", ["tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15", "noise"]
)
def test_usual_model_names_mean_the_loaded_model(server: LiveServer, model: str) -> None:
    assert post(server, model=model).status_code == 200


@pytest.mark.parametrize("model", ["turbo", "ResembleAI/chatterbox", "tts-2"])
def test_other_model_is_refused_and_never_downloaded(server: LiveServer, model: str) -> None:
    error = error_of(post(server, model=model))
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
def test_invalid_field_is_refused_by_name(server: LiveServer, body: Any, param: str | None) -> None:
    error = error_of(post(server, **body))
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_ignored_openai_fields_are_accepted(server: LiveServer) -> None:
    assert post(server, instructions="Whisper.", stream=True, user="me", timestamps="none").status_code == 200


def test_null_means_left_out(server: LiveServer) -> None:
    """Some clients send all of their fields, with null in those that are not set."""
    fields = set(SpeechBody.model_fields) - {"input", "seed"}
    answer = post(server, **dict.fromkeys(fields), seed=1)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/mpeg"
    assert answer.content == post(server, seed=1).content
    assert error_of(post(server, input=None))["code"] == "missing_required_parameter"


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
def test_wrong_content_type_is_named_in_the_error(server: LiveServer, kind: str | None) -> None:
    """`curl -d` sends application/x-www-form-urlencoded."""
    headers = {} if kind is None else {"content-type": kind}
    answer = HTTP.post(f"{server.http}/v1/audio/speech", content=b'{"input": "Hello."}', headers=headers)
    error = error_of(answer)
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
def test_malformed_body_is_refused(server: LiveServer, content: bytes, code: str) -> None:
    headers = {"content-type": "application/json"}
    answer = HTTP.post(f"{server.http}/v1/audio/speech", content=content, headers=headers)
    assert error_of(answer)["code"] == code


def test_large_body_is_refused_and_the_next_request_is_served(server: LiveServer) -> None:
    assert error_of(post(server, input="word " * 250_000), 413)["code"] == "request_too_large"
    assert post(server).status_code == 200


def test_chunked_body_over_the_limit_is_not_read_to_its_end(server: LiveServer) -> None:
    parts, sent = 5000, 0

    def body() -> Any:
        nonlocal sent
        yield b'{"input": "'
        while sent < parts:
            sent += 1
            yield b"x" * 10_000

    headers = {"content-type": "application/json"}
    try:
        answer = HTTP.post(f"{server.http}/v1/audio/speech", content=body(), headers=headers)
    except httpx.TransportError:
        pass  # the server closed the connection while the client was still sending
    else:
        error_of(answer, 413)
    assert 0 < sent < parts, "the server has read fifty times as much as it allows"
    assert post(server).status_code == 200


def test_events_contain_the_same_audio_and_the_metrics(server: LiveServer) -> None:
    plain = post(server, response_format="pcm", seed=3)
    answer = post(server, response_format="pcm", seed=3, stream_format="sse")
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
def test_unknown_routes_are_answered_in_the_envelope(
    server: LiveServer, method: str, path: str, status: int
) -> None:
    error = error_of(HTTP.request(method, server.http + path), status)
    assert error["code"] == {404: "not_found", 405: "method_not_allowed"}[status]


def test_long_text_is_streamed(server: LiveServer) -> None:
    sizes = []
    body = {"input": "One sentence, and then another one. " * 60, "response_format": "pcm"}
    with HTTP.stream("POST", f"{server.http}/v1/audio/speech", json=body, timeout=30) as answer:
        active = []
        for part in answer.iter_raw():
            sizes.append(len(part))
            active.append(server.service.metrics.active)
    assert len(sizes) > 3
    assert active[0] == 1
    server.wait_until_idle()


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_of_a_request_is_a_field_and_its_range_is_checked(server: LiveServer, name: str) -> None:
    assert post(server, **{name: NUMBERS[name].kind(NUMBERS[name].limits[1])}).status_code == 200
    error = error_of(post(server, **{name: NUMBERS[name].limits[1] + 1}))
    assert (error["param"], error["code"]) == (name, "invalid_value")
