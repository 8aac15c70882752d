"""ElevenLabs' speech-to-speech over HTTP, and the tags that a model offers."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from live_server import LiveServer
from plain_http import HTTP
from synthetic_clip import voice_like

RATE_HZ = 16_000
CLIP = voice_like(2.0, RATE_HZ)


def wav() -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, CLIP, RATE_HZ, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def url(server: LiveServer, path: str = "", voice: str = "noise", output: str = "pcm_24000") -> str:
    return f"{server.http}/v1/speech-to-speech/{voice}{path}?output_format={output}"


@pytest.mark.parametrize("path", ["", "/stream"])
def test_a_recording_is_converted(server: LiveServer, path: str) -> None:
    answer = HTTP.post(
        url(server, path), files={"audio": ("a.wav", wav())}, data={"seed": "1", "model_id": "x"}
    )
    assert answer.status_code == 200, answer.text
    assert len(answer.content) / 48_000 == pytest.approx(2.0, abs=0.05)
    assert answer.headers["x-seed"] == "1"
    again = HTTP.post(url(server, path), files={"audio": ("a.wav", wav())}, data={"seed": "1"})
    assert again.content == answer.content
    server.wait_until_idle()


def test_raw_samples_are_taken(server: LiveServer) -> None:
    data = {"seed": "1", "file_format": "pcm_s16le_16"}
    raw = (CLIP * 32767).astype("<i2").tobytes()
    answer = HTTP.post(url(server), files={"audio": ("a.raw", raw)}, data=data)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) / 48_000 == pytest.approx(2.0, abs=0.05)
    odd = HTTP.post(url(server), files={"audio": ("a.raw", b"x")}, data=data)
    assert odd.status_code == 400


def test_formats_are_those_of_text_to_speech(server: LiveServer) -> None:
    answer = HTTP.post(url(server, output="mp3_44100_64"), files={"audio": ("a.wav", wav())})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "audio/mpeg"
    samples, rate_hz = soundfile.read(io.BytesIO(answer.content))
    assert rate_hz == 44_100
    assert len(samples) / rate_hz == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize(
    ("voice", "files", "status", "words"),
    [
        ("missing", {"audio": ("a.wav", b"")}, 400, ""),
        ("noise", {"audio": ("a.wav", b"no audio")}, 400, "decoded"),
        ("noise", {"other": ("a.wav", b"")}, 400, "audio"),
    ],
)
def test_mistakes_are_client_errors(
    server: LiveServer, voice: str, files: dict[str, tuple[str, bytes]], status: int, words: str
) -> None:
    answer = HTTP.post(url(server, voice=voice), files=files)
    assert answer.status_code == status, answer.text
    assert words in answer.text
    assert server.wait_until_idle() < 5


def test_a_large_upload_is_allowed_up_to_the_limit_of_uploads(server: LiveServer) -> None:
    limit = server.service.settings.max_body_bytes
    silence = io.BytesIO()
    soundfile.write(silence, np.zeros(limit // 2 + 1000, np.float32), 48_000, format="WAV", subtype="PCM_16")
    answer = HTTP.post(url(server), files={"audio": ("a.wav", silence.getvalue())})
    assert answer.status_code == 200, answer.text


def test_the_page_learns_which_tags_a_model_knows(server: LiveServer) -> None:
    (card, *_) = HTTP.get(f"{server.http}/v1/models").json()["data"]
    assert card["tags"] == []
