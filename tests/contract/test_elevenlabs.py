"""The package `elevenlabs`: realtime speech over a WebSocket, and HTTP requests."""

from __future__ import annotations

import base64
import io
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
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


def test_models_and_the_user(client: Any) -> None:
    (model,) = client.models.list()
    assert (model.model_id, model.can_do_text_to_speech) == ("noise", True)
    user = client.user.get()
    assert user.subscription.character_limit > user.subscription.character_count
    subscription = client.user.subscription.get()
    assert (subscription.status, subscription.can_use_instant_voice_cloning) == ("active", True)


def test_a_cloned_voice_is_searched_described_and_deleted(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path))
    t = np.arange(48_000) / 24_000
    wave = 0.3 * np.sin(2 * np.pi * 150 * t) * (1 + np.sin(2 * np.pi * 3 * t))
    clip = io.BytesIO()
    soundfile.write(clip, wave, 24_000, format="WAV")
    clips = [io.BytesIO(clip.getvalue()), io.BytesIO(clip.getvalue())]
    voice_id = client.voices.ivc.create(name="My Voice", files=clips).voice_id
    assert client.voices.get(voice_id).category == "cloned"
    found = client.voices.search(search="my-v", page_size=5)
    assert ([voice.voice_id for voice in found.voices], found.has_more) == ([voice_id], False)
    assert seconds_of(b"".join(client.text_to_speech.convert(voice_id, text="Hello there."))) > 0.1
    client.voices.delete(voice_id)
    with pytest.raises(Exception, match="404"):
        client.voices.get(voice_id)


def test_timestamps(client: Any) -> None:
    whole = client.text_to_speech.convert_with_timestamps("noise", text="Hello there.")
    assert seconds_of(base64.b64decode(whole.audio_base_64)) > 0.1
    parts = list(client.text_to_speech.stream_with_timestamps("noise", text="Hello there."))
    assert seconds_of(b"".join(base64.b64decode(part.audio_base_64) for part in parts)) > 0.1


def test_every_format_of_the_client_is_spoken(client: Any) -> None:
    from elevenlabs.text_to_speech.types import text_to_speech_convert_request_output_format as request

    (literal, _any) = typing.get_args(request.TextToSpeechConvertRequestOutputFormat)
    forms = typing.get_args(literal)
    assert {"ulaw_8000", "alaw_8000", "wav_48000", "pcm_8000"} <= set(forms)
    for form in forms:
        audio = b"".join(client.text_to_speech.convert("noise", text="Hello there.", output_format=form))
        assert len(audio) > 500, form
