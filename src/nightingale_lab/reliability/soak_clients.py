"""The clients of the soak, one coroutine for each protocol and for each kind of misbehaviour."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
from websockets.asyncio.client import connect
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize, SynthesizeVoice

from nightingale_lab.reliability.server_process import ServerProcess
from nightingale_lab.reliability.soak_cases import MALFORMED, MALFORMED_MESSAGES, SpeechCase

LIMIT_S = 900.0
"""Longest wait for anything: a book among other requests on a busy machine."""
SLOW_BYTES_PER_S = 60_000
"""A little more than real time: 48,000 bytes of PCM are a second."""
KILLED_CLIENT = """
import socket, sys, time
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
body = sys.argv[2].encode()
client.sendall(b"POST /v1/audio/speech HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nContent-Type: application/json\\r\\n"
               b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
while client.recv(1000):
    time.sleep(0.05)
"""


class Refused(Exception):
    """The server answered with another status than 200."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:200]}")
        self.status = status


@dataclass(slots=True)
class SoakTally:
    """The outcomes of all requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """Counts by kind of client and outcome."""
    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """Everything that must not happen, in words."""

    def problem(self, kind: str, what: object) -> None:
        self.outcomes[f"{kind}: failed"] += 1
        self.problems.append(f"{kind}: {what}"[:400])


@dataclass(slots=True)
class Clients:
    """Everything that clients need: the server, the expected audio, and the tally."""

    server: ServerProcess
    http: httpx.AsyncClient
    expected: dict[SpeechCase, str]
    """The digest of each case; empty if audio is not compared."""
    cases: list[SpeechCase]
    books: list[SpeechCase]
    tally: SoakTally
    rng: random.Random

    async def listen(self) -> None:
        """Request a short text by one of the protocols, and compare the answer."""
        case = self.rng.choice(self.cases)
        await self._checked(case.transport, case, fetch(self.server, self.http, case))

    async def read_book(self) -> None:
        case = self.rng.choice(self.books)
        await self._checked("book", case, fetch(self.server, self.http, case))

    async def read_slowly(self) -> None:
        case = self.rng.choice(self.books)
        parts = stream_speech(self.http, case, pause_per_byte_s=1 / SLOW_BYTES_PER_S)
        await self._checked("slow reader", case, join(parts))

    async def _checked(self, kind: str, case: SpeechCase, answer: Coroutine[Any, Any, bytes]) -> None:
        """Count an answer as right if its bytes are those of the same request alone."""
        try:
            audio = await asyncio.wait_for(answer, LIMIT_S)
        except Refused as refused:
            self.tally.statuses[refused.status] += 1
            if refused.status == 429:
                self.tally.outcomes[f"{kind}: queue full (429)"] += 1
                await asyncio.sleep(1.0)
            else:
                self.tally.problem(kind, refused)
            return
        except Exception as error:
            self.tally.problem(kind, repr(error))
            return
        self.tally.statuses[200] += 1
        right = self.expected.get(case.reference)
        if right is None:
            self.tally.outcomes[f"{kind}: complete"] += 1
        elif digest(audio) == right:
            self.tally.outcomes[f"{kind}: right"] += 1
        else:
            self.tally.problem(kind, f"other bytes than alone ({len(audio)}) for {case}")

    async def cancel(self) -> None:
        """Close the connection after a part of the audio, or interrupt a turn of the WebSocket."""
        case = self.rng.choice(self.books)
        if self.rng.random() < 0.5:
            await self._interrupt(case)
            return
        left = self.rng.randrange(1, 200_000)
        try:
            async for part in stream_speech(self.http, case):
                left -= len(part)
                if left <= 0:
                    break
            self.tally.outcomes["cancel: disconnected"] += 1
        except Refused as refused:
            self._refused("cancel", refused)

    async def _interrupt(self, case: SpeechCase) -> None:
        async with connect(f"{self.server.websocket_url}/v1/audio/speech/stream", max_size=None) as socket:
            await socket.send(_update(case))
            await socket.send(json.dumps({"type": "input_text.append", "text": case.text}))
            left = self.rng.randrange(1, 5)
            async for message in socket:
                if isinstance(message, bytes):
                    left -= 1
                    if left == 0:
                        await socket.send(json.dumps({"type": "response.cancel"}))
                elif (event := json.loads(message))["type"] == "speech.audio.cancelled":
                    self.tally.outcomes["cancel: interrupted"] += 1
                    return
                elif event["type"] == "error":
                    self._refused("cancel", _refusal(event))
                    return

    async def be_killed(self) -> None:
        """Read in another process, and kill that process."""
        case = self.rng.choice(self.books)
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", KILLED_CLIENT, str(self.server.port), json.dumps(_body(case))
        )
        try:
            await asyncio.wait_for(client.wait(), self.rng.uniform(0.2, 5.0))
        except TimeoutError:
            client.send_signal(signal.SIGKILL)
            await client.wait()
        self.tally.outcomes["killed client: gone"] += 1

    async def stall(self) -> None:
        """Send a request and read nothing: the server disconnects after its send timeout."""
        case = self.rng.choice(self.books)
        body = json.dumps(_body(case)).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, limit=1024)
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        await writer.drain()
        await asyncio.sleep(self.rng.uniform(5.0, 25.0))
        writer.transport.abort()
        del reader
        self.tally.outcomes["stalled client: gone"] += 1

    async def send_malformed(self) -> None:
        """Send what must be refused, over HTTP or over the WebSocket."""
        if self.rng.random() < 0.3:
            await self._send_malformed_messages()
            return
        bad = self.rng.choice(MALFORMED)
        headers = {"content-type": bad.content_type}
        answer = await self.http.request(bad.method, bad.path, content=bad.body, headers=headers)
        self.tally.statuses[answer.status_code] += 1
        if 400 <= answer.status_code < 500:
            self.tally.outcomes["malformed: refused"] += 1
        else:
            self.tally.problem("malformed", f"{answer.status_code} for {bad.path} {bad.body[:80]!r}")

    async def _send_malformed_messages(self) -> None:
        async with connect(f"{self.server.websocket_url}/v1/audio/speech/stream") as socket:
            await socket.recv()
            for message in MALFORMED_MESSAGES:
                await socket.send(message)
                event = json.loads(await asyncio.wait_for(socket.recv(), LIMIT_S))
                if event["type"] != "error":
                    self.tally.problem("malformed", f"{event} for the message {message!r}")
                    return
        self.tally.outcomes["malformed: messages refused"] += 1

    async def ask_without_seed(self) -> None:
        """Speak over the protocols that take no seed: the audio must be complete and of a sensible length."""
        case = self.rng.choice(self.cases)
        kind, speak = self.rng.choice([("wyoming", self._wyoming), ("elevenlabs socket", self._elevenlabs)])
        try:
            seconds = len(await asyncio.wait_for(speak(case), LIMIT_S)) / 48_000
        except Refused as refused:
            self._refused(kind, refused)
            return
        if 0.05 < seconds < 2.0 + 0.5 * len(case.text):
            self.tally.outcomes[f"{kind}: complete"] += 1
        else:
            self.tally.problem(kind, f"{seconds:.1f} s for {case.text!r}")

    async def _wyoming(self, case: SpeechCase) -> bytes:
        async with AsyncTcpClient("127.0.0.1", self.server.wyoming_port) as client:
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

    async def _elevenlabs(self, case: SpeechCase) -> bytes:
        path = f"/v1/text-to-speech/{quote(case.voice or 'alloy')}/stream-input?output_format=pcm_24000"
        async with connect(self.server.websocket_url + path, max_size=None) as socket:
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

    def _refused(self, kind: str, refused: Refused) -> None:
        self.tally.statuses[refused.status] += 1
        if refused.status == 429:
            self.tally.outcomes[f"{kind}: queue full (429)"] += 1
        else:
            self.tally.problem(kind, refused)


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


def _body(case: SpeechCase) -> dict[str, object]:
    body: dict[str, object] = {"input": case.text, "response_format": case.codec, "seed": case.seed}
    return body if case.voice is None else {**body, "voice": case.voice}


def _update(case: SpeechCase) -> str:
    options = {"seed": case.seed, "response_format": case.codec, "voice": case.voice}
    return json.dumps({"type": "session.update", "session": options})


def _refusal(event: dict[str, dict[str, str]]) -> Refused:
    code = event["error"].get("code")
    return Refused(429 if code == "queue_full" else 500, str(event["error"]))


async def stream_speech(
    http: httpx.AsyncClient, case: SpeechCase, *, pause_per_byte_s: float = 0.0
) -> AsyncIterator[bytes]:
    """Yield the audio of a plain request as it arrives."""
    async with http.stream("POST", "/v1/audio/speech", json=_body(case)) as answer:
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
        answer = await http.post(path, json={"text": case.text, "seed": case.seed})
        if answer.status_code != 200:
            raise Refused(answer.status_code, answer.text)
        return answer.content
    return await join(stream_speech(http, case))


async def _fetch_events(http: httpx.AsyncClient, case: SpeechCase) -> bytes:
    audio, done = b"", False
    body = {**_body(case), "stream_format": "sse"}
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
        await socket.send(_update(case))
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
                raise _refusal(event)
    raise ConnectionError(f"disconnected after {len(audio)} bytes")
