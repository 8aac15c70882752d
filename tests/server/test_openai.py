"""OpenAI's own Python client against a real server."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_server import LiveServer, live_server
from plain_http import HTTP

from nightingale import TTS

openai = pytest.importorskip("openai")

HELLO = "Hello there."


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Any:
    with openai.OpenAI(base_url=f"{server.http}/v1", api_key="unused", timeout=30) as made:
        yield made


def test_whole_file(client: Any, tmp_path: Path) -> None:
    spoken = client.audio.speech.create(model="tts-1", voice="alloy", input=HELLO)
    assert spoken.response.headers["content-type"] == "audio/mpeg"
    spoken.write_to_file(tmp_path / "hello.mp3")
    assert (tmp_path / "hello.mp3").stat().st_size > 500


def test_stream_in_every_format(client: Any) -> None:
    for form in ("mp3", "opus", "aac", "flac", "wav", "pcm"):
        with client.audio.speech.with_streaming_response.create(
            model="gpt-4o-mini-tts", voice="coral", input=HELLO, response_format=form, instructions="Softly."
        ) as answer:
            assert sum(len(part) for part in answer.iter_bytes(1024)) > 500
            assert answer.headers["x-request-id"]


def test_our_fields_are_accepted_in_extra_body(client: Any) -> None:
    def say(**extra: Any) -> bytes:
        answer = client.audio.speech.create(
            model="tts-1", voice="nova", input=HELLO, response_format="pcm", speed=1.0, extra_body=extra
        )
        data: bytes = answer.read()
        return data

    assert say(seed=1) == say(seed=1)
    assert say(seed=1) != say(seed=2)
    assert len(say(seed=1, sample_rate=48_000)) == pytest.approx(2 * len(say(seed=1)), rel=0.01)


def test_server_sent_events(client: Any) -> None:
    sound, kinds = b"", []
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="ash", input=HELLO, response_format="pcm", stream_format="sse"
    ) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                kinds.append(event["type"])
                sound += base64.b64decode(event.get("audio", ""))
    assert kinds[-1] == "speech.audio.done"
    assert kinds[0] == "speech.audio.delta"
    assert len(sound) > 10_000


def test_error_has_code_param_type_and_request_id(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(model="no-such-model", voice="alloy", input=HELLO)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(model="tts-1", voice="missing", input=HELLO)
    assert caught.value.code == "voice_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(model="tts-1", voice="alloy", input=HELLO, speed=9)
    assert caught.value.param == "speed"


def test_models_are_listed_and_retrieved(client: Any) -> None:
    assert "tts-1" in {model.id for model in client.models.list()}
    assert client.models.retrieve("tts-1").id == "tts-1"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_wrong_key_is_an_authentication_error(small: Callable[..., TTS]) -> None:
    with small() as tts, live_server(tts, api_key="right") as server:
        for key in ("wrong", "right"):
            with openai.OpenAI(base_url=f"{server.http}/v1", api_key=key, max_retries=0) as client:
                if key == "right":
                    assert client.audio.speech.create(model="tts-1", voice="alloy", input=HELLO).read()
                else:
                    with pytest.raises(openai.AuthenticationError):
                        client.audio.speech.create(model="tts-1", voice="alloy", input=HELLO)


def test_full_queue_is_retried_by_the_client(small: Callable[..., TTS]) -> None:
    """Twelve requests, one slot and two places in the queue: the client retries as the header says."""

    async def run(server: LiveServer) -> int:
        async with openai.AsyncOpenAI(base_url=f"{server.http}/v1", api_key="-", max_retries=30) as client:

            async def say(seed: int) -> bytes:
                async with client.audio.speech.with_streaming_response.create(
                    model="tts-1",
                    voice="alloy",
                    input=HELLO,
                    response_format="pcm",
                    extra_body={"seed": seed},
                ) as answer:
                    return b"".join([part async for part in answer.iter_bytes()])

            spoken = await asyncio.gather(*(say(seed) for seed in range(12)))
            assert len(set(spoken)) == 12
            return min(len(sound) for sound in spoken)

    with small(slots=1, queue=2) as tts, live_server(tts) as server:
        assert asyncio.run(asyncio.wait_for(run(server), 60)) > 10_000
        text = HTTP.get(f"{server.http}/metrics").text
        assert 'route="/v1/audio/speech",status="429"' in text, "no request was rejected"


def test_client_that_stops_reading_frees_the_engine(client: Any, server: LiveServer) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input="A sentence that goes on. " * 200, response_format="pcm"
    ) as answer:
        next(iter(answer.iter_bytes(1024)))
    server.wait_until_idle(2)
