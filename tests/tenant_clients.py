"""A server with three tenants, and clients of each of its protocols."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import soundfile
from live_server import LiveServer, live_server
from plain_http import HTTP
from synthetic_clip import voice_like
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from nightingale import TTS
from nightingale.server.tenants.key_file import Tenant, hash_key, write_key_file

KEYS = {name: f"ng_key-of-{name}" for name in ("ann", "bob", "boss")}
PCM = {"input": "Hi.", "response_format": "pcm", "seed": 1}


def tenant(name: str, **fields: Any) -> Tenant:
    return Tenant(name=name, keys=(hash_key(KEYS[name]),), **fields)


def write_tenants(path: Path, *others: Tenant) -> Path:
    """Write ann, bob and the admin boss, each replaced by one of the same name that is given."""
    named = {
        each.name: each for each in (tenant("ann"), tenant("bob"), tenant("boss", role="admin"), *others)
    }
    write_key_file(path, named)
    return path


@contextmanager
def tenant_server(tts: TTS, path: Path, *others: Tenant, **settings: Any) -> Iterator[LiveServer]:
    with live_server(tts, keys_file=write_tenants(path, *others), **settings) as running:
        yield running


def header(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


def speak(server: LiveServer, name: str, **fields: Any) -> httpx.Response:
    return HTTP.post(f"{server.http}/v1/audio/speech", json={**PCM, **fields}, headers=header(name))


def upload(server: LiveServer, name: str, voice: str, clip: bytes, **fields: str) -> httpx.Response:
    files = {"audio": ("clip.wav", clip, "audio/wav")}
    data = {"name": voice, **fields}
    return HTTP.post(f"{server.http}/v1/audio/voices", data=data, files=files, headers=header(name))


def listed(server: LiveServer, name: str) -> set[str]:
    """Return the uploaded voices that a tenant sees."""
    voices = HTTP.get(f"{server.http}/v1/audio/voices", headers=header(name)).json()["voices"]
    return {voice["id"] for voice in voices if not voice["builtin"]}


def clip() -> bytes:
    """Return a wav file of two seconds of sound."""
    file = io.BytesIO()
    soundfile.write(file, voice_like(2.0, 24_000), 24_000, format="WAV")
    return file.getvalue()


def post(path: str, **body: Any) -> Callable[[LiveServer, str, str], str]:
    """Return a client that posts JSON, in which VOICE is the voice; it returns "" or the body of the error."""

    def client(server: LiveServer, name: str, voice: str) -> str:
        filled = json.loads(json.dumps(body).replace("VOICE", voice))
        answer = HTTP.post(f"{server.http}{path.replace('VOICE', voice)}", json=filled, headers=header(name))
        return "" if answer.status_code == 200 else answer.text

    return client


def own_socket(server: LiveServer, name: str, voice: str) -> str:
    """Choose a voice by session.update, and then in the first turn of a new connection."""
    url, messages = f"{server.ws}/v1/audio/speech/stream", []
    for update in ({"voice": voice}, {"voice": {"id": voice}}):
        with connect(url, additional_headers=header(name)) as socket:
            socket.send(json.dumps({"type": "session.update", "session": update}))
            socket.send(json.dumps({"type": "input_text.append", "text": "Hi."}))
            socket.send(json.dumps({"type": "input_text.end"}))
            while True:
                message = socket.recv(20)
                event = json.loads(message) if isinstance(message, str) else {}
                if event.get("type") == "error":
                    messages.append(str(message))
                    break
                if event.get("type") == "speech.audio.done":
                    break
    return "\n".join(messages)


def realtime_socket(server: LiveServer, name: str, voice: str) -> str:
    """Choose a voice by session.update, and then in a response."""
    audio, message = {"output": {"voice": voice}}, {"type": "message", "role": "user"}
    item = {**message, "content": [{"type": "input_text", "text": "Hi."}]}
    with connect(f"{server.ws}/v1/realtime", additional_headers=header(name)) as socket:
        socket.send(json.dumps({"type": "session.update", "session": {"audio": audio}}))
        socket.send(json.dumps({"type": "response.create", "response": {"audio": audio, "input": [item]}}))
        errors = []
        while (event := json.loads(socket.recv(20)))["type"] != "response.done":
            errors += [str(event)] if event["type"] == "error" else []
        return "\n".join([*errors, str(event)]) if event["response"]["status"] == "failed" else ""


def elevenlabs_socket(kind: str) -> Callable[[LiveServer, str, str], str]:
    def client(server: LiveServer, name: str, voice: str) -> str:
        url = f"{server.ws}/v1/text-to-speech/{voice}/{kind}?output_format=pcm_24000"
        try:
            with connect(url, additional_headers={"xi-api-key": KEYS[name]}) as socket:
                socket.send(json.dumps({"text": "Hi. ", "flush": True}))
                return "" if json.loads(socket.recv(20)).get("audio") else "no audio"
        except InvalidStatus as refused:
            return bytes(refused.response.body or b"").decode()

    return client


CLIENTS: dict[str, Callable[[LiveServer, str, str], str]] = {
    "speech": post("/v1/audio/speech", voice="VOICE", **PCM),
    "voice as object": post("/v1/audio/speech", **PCM, voice={"id": "VOICE"}),
    "events": post("/v1/audio/speech", voice="VOICE", **PCM, stream_format="sse"),
    "blend": post("/v1/audio/speech", voice="noise(2)+VOICE", **PCM),
    "ssml": post("/v1/audio/speech", **{**PCM, "input": '<speak><voice name="VOICE">Hi.</voice></speak>'}),
    "captions": post("/v1/audio/speech/captions", voice="VOICE", **PCM),
    "kokoro": post("/dev/captioned_speech", voice="VOICE", **PCM, return_timestamps=False),
    "elevenlabs": post("/v1/text-to-speech/VOICE?output_format=pcm_24000", text="Hi."),
    "elevenlabs stream": post("/v1/text-to-speech/VOICE/stream?output_format=pcm_24000", text="Hi."),
    "our socket": own_socket,
    "openai's socket": realtime_socket,
    "elevenlabs socket": elevenlabs_socket("stream-input"),
    "elevenlabs multi socket": elevenlabs_socket("multi-stream-input"),
}
"""A client of each way to name a voice: it returns "" if it was spoken, else what the error says."""
