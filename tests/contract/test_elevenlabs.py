"""The package `elevenlabs`: realtime speech over a WebSocket, and HTTP requests."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from live_server import LiveServer

pytestmark = pytest.mark.contract
client_module = pytest.importorskip("elevenlabs.client")
av = pytest.importorskip("av")


@pytest.fixture
def client(server: LiveServer) -> Any:
    client = client_module.ElevenLabs(base_url=server.http, api_key="none")
    # The package always uses TLS here; behind a proxy with TLS, this line is not needed.
    client.text_to_speech._ws_base_url = server.ws
    return client


def words() -> Iterator[str]:
    yield from ["Good", "morning,", "everyone.", "Your", "train", "leaves", "in", "ten", "minutes."]


def seconds_of(data: bytes) -> float:
    with av.open(io.BytesIO(data)) as recording:
        return float(sum(frame.samples / frame.sample_rate for frame in recording.decode(audio=0)))


def test_realtime_speech_from_an_iterator_of_words(client: Any) -> None:
    audio = b"".join(
        client.text_to_speech.convert_realtime("noise", text=words(), model_id="eleven_turbo_v2_5")
    )
    assert seconds_of(audio) > 0.5


@pytest.mark.parametrize("form", ["pcm_16000", "pcm_44100", "ulaw_8000", "mp3_22050_32", "opus_48000_64"])
def test_realtime_speech_in_other_formats(client: Any, form: str) -> None:
    audio = b"".join(client.text_to_speech.convert_realtime("noise", text=words(), output_format=form))
    codec, rate = form.split("_")[:2]
    seconds = {"pcm": len(audio) / 2 / int(rate), "ulaw": len(audio) / 8000}.get(codec) or seconds_of(audio)
    assert 0.5 < seconds < 20


def test_unknown_voice_is_refused(client: Any) -> None:
    with pytest.raises(Exception, match="400"):
        list(client.text_to_speech.convert_realtime("missing", text=words()))


def test_http_requests_and_voices(client: Any) -> None:
    for call in (client.text_to_speech.convert, client.text_to_speech.stream):
        assert seconds_of(b"".join(call("noise", text="Hello there.", output_format="mp3_44100_128"))) > 0.1
    assert [voice.voice_id for voice in client.voices.get_all().voices] == ["noise"]
