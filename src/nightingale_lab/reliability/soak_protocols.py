"""The requests of the soak's clients and the answers to them, one function for each protocol."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from urllib.parse import quote

import httpx
from websockets.asyncio.client import connect
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize, SynthesizeVoice

from nightingale_lab.reliability.server_process import ServerProcess
from nightingale_lab.reliability.soak_cases import SpeechCase


class Refused(Exception):
    """The server answered with another status than 200."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:200]}")
        self.status = status


def digest(audio: bytes) -> str:
    """Return the SHA-256 of audio; that of Ogg without the random number that each stream has."""
    if not audio.startswith(b"OggS"):
        return hashlib.sha256(audio).hexdigest()
    plain, start = bytearray(audio), 0
    while plain[start : start + 4] == b"OggS":
        # The header of a page: serial number in bytes 14 to 17, checksum in 22 to 25, sizes from 26 on.
        plain[start + 14 : start + 18] = plain[start + 22 : start + 26] = bytes(4)
        sizes = plain[start + 27 : start + 27 + plain[start + 26]]
        start += 27 + len(sizes) + sum(sizes)
    return hashlib.sha256(plain).hexdigest()


def speech_body(case: SpeechCase) -> dict[str, object]:
    body: dict[str, object] = {"input": case.text, "response_format": case.codec, "seed": case.seed}
    return body if case.voice is None else {**body, "voice": case.voice}


def session_update(case: SpeechCase) -> str:
    options = {"seed": case.seed, "response_format": case.codec, "voice": case.voice}
    return json.dumps({"type": "session.update", "session": options})


def refusal_of(event: dict[str, dict[str, str]]) -> Refused:
    code = event["error"].get("code")
    return Refused(429 if code == "queue_full" else 500, str(event["error"]))


async def stream_speech(
    http: httpx.AsyncClient, case: SpeechCase, *, pause_per_byte_s: float = 0.0
) -> AsyncIterator[bytes]:
    """Yield the audio of a plain request as it arrives."""
    async with http.stream("POST", "/v1/audio/speech", json=speech_body(case)) as answer:
        if answer.status_code != 200:
            raise Refused(answer.status_code, (await answer.aread()).decode(errors="replace"))
        async for part in answer.aiter_raw():
            yield part
            if pause_per_byte_s:
                await asyncio.sleep(len(part) * pause_per_byte_s)


async def join(parts: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in parts])


async def fetch(server: ServerProcess, http: httpx.AsyncClient, case: SpeechCase) -> bytes:
    """Return the audio of a case, by its transport."""
    if case.transport == "websocket":
        return await _fetch_websocket(server, case)
    if case.transport == "sse":
        return await _fetch_events(http, case)
    if case.transport == "elevenlabs":
        path = f"/v1/text-to-speech/{quote(case.voice or 'alloy')}?output_format=pcm_24000"
        return _checked(await http.post(path, json={"text": case.text, "seed": case.seed})).content
    return await join(stream_speech(http, case))


async def _fetch_events(http: httpx.AsyncClient, case: SpeechCase) -> bytes:
    audio, done = b"", False
    body = {**speech_body(case), "stream_format": "sse"}
    async with http.stream("POST", "/v1/audio/speech", json=body) as answer:
        if answer.status_code != 200:
            raise Refused(answer.status_code, (await answer.aread()).decode(errors="replace"))
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line[6:])
                audio += base64.b64decode(event.get("audio", ""))
                done = done or event["type"] == "speech.audio.done"
    if not done:
        raise ConnectionError("the events ended without `done`")
    return audio


async def _fetch_websocket(server: ServerProcess, case: SpeechCase) -> bytes:
    audio = b""
    async with connect(f"{server.websocket_url}/v1/audio/speech/stream", max_size=None) as socket:
        await socket.send(session_update(case))
        for start in range(0, len(case.text), 7):
            text = case.text[start : start + 7]
            await socket.send(json.dumps({"type": "input_text.append", "text": text}))
        await socket.send(json.dumps({"type": "input_text.end"}))
        async for message in socket:
            if isinstance(message, bytes):
                audio += message
            elif (event := json.loads(message))["type"] == "speech.audio.done":
                return audio
            elif event["type"] == "error":
                raise refusal_of(event)
    raise ConnectionError(f"disconnected after {len(audio)} bytes")


async def fetch_wyoming(server: ServerProcess, case: SpeechCase) -> bytes:
    async with AsyncTcpClient("127.0.0.1", server.wyoming_port) as client:
        voice = SynthesizeVoice(name=case.voice) if case.voice else None
        await client.write_event(Synthesize(text=case.text, voice=voice).event())
        audio = b""
        while (event := await client.read_event()) is not None:
            audio += event.payload or b""
            if event.type == "error":
                raise Refused(429 if "QueueFull" in str(event.data) else 500, str(event.data))
            if event.type == "audio-stop":
                return audio
    raise ConnectionError(f"disconnected after {len(audio)} bytes")


async def fetch_elevenlabs_socket(server: ServerProcess, case: SpeechCase) -> bytes:
    path = f"/v1/text-to-speech/{quote(case.voice or 'alloy')}/stream-input?output_format=pcm_24000"
    async with connect(server.websocket_url + path, max_size=None) as socket:
        for text in (" ", case.text + " ", ""):
            await socket.send(json.dumps({"text": text}))
        audio = b""
        async for message in socket:
            event = json.loads(message)
            if event.get("error"):
                raise Refused(429 if event.get("code") == "queue_full" else 500, str(event))
            audio += base64.b64decode(event.get("audio") or "")
            if event.get("isFinal"):
                return audio
    raise ConnectionError(f"disconnected after {len(audio)} bytes")


async def convert(http: httpx.AsyncClient, recording: bytes, voice: str) -> bytes:
    """Return a recording in another voice, with a seed."""
    answer = await http.post(
        f"/v1/speech-to-speech/{quote(voice)}?output_format=pcm_24000",
        files={"audio": ("recording.wav", recording)},
        data={"seed": "1"},
    )
    return _checked(answer).content


async def speak_with_upload(http: httpx.AsyncClient, clip: bytes, name: str, case: SpeechCase) -> bytes:
    """Upload a voice, return a text in it, and delete the voice."""
    _checked(await http.post("/v1/audio/voices", files={"audio": ("clip.wav", clip)}, data={"name": name}))
    try:
        return await join(stream_speech(http, replace(case, voice=name)))
    finally:
        _checked(await http.delete(f"/v1/audio/voices/{name}"))


def _checked(answer: httpx.Response) -> httpx.Response:
    if not answer.is_success:
        raise Refused(answer.status_code, answer.text)
    return answer
