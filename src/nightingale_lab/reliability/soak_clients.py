"""The clients of the soak, one coroutine for each kind of use and of misbehaviour."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Hashable
from dataclasses import dataclass, field
from typing import Any

import httpx
from websockets.asyncio.client import connect

from nightingale_lab.reliability.server_process import ServerProcess
from nightingale_lab.reliability.soak_cases import MALFORMED, MALFORMED_MESSAGES, SpeechCase
from nightingale_lab.reliability.soak_protocols import (
    Refused,
    convert,
    digest,
    fetch,
    fetch_elevenlabs_socket,
    fetch_wyoming,
    join,
    refusal_of,
    session_update,
    speak_with_upload,
    speech_body,
    stream_speech,
)

LIMIT_S = 900.0
"""Longest wait for anything: a book among other requests on a busy machine."""
CONVERSION, UPLOADED_VOICE = "conversion", "uploaded voice"
"""Keys of expected answers that no case describes."""
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


@dataclass(slots=True)
class SoakTally:
    """The outcomes of all requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """Counts by kind of client and outcome."""
    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """Everything that must not happen, in words."""
    longest_s: dict[str, float] = field(default_factory=dict)
    """The time that the slowest complete answer took, by kind of client."""

    def problem(self, kind: str, what: object) -> None:
        self.outcomes[f"{kind}: failed"] += 1
        self.problems.append(f"{kind}: {what}"[:400])


@dataclass(slots=True)
class Clients:
    """Everything that clients need: the server, the expected audio, and the tally."""

    server: ServerProcess
    http: httpx.AsyncClient
    expected: dict[Hashable, str]
    """The digest of each case, and of the keys below; empty if audio is not compared."""
    cases: list[SpeechCase]
    books: list[SpeechCase]
    clip: bytes
    """A recording to be converted, or to be uploaded as a voice."""
    tally: SoakTally
    rng: random.Random

    async def listen(self) -> None:
        """Request a short text by one of the protocols, and compare the answer."""
        case = self.rng.choice(self.cases)
        await self._checked(case.transport, case.reference, fetch(self.server, self.http, case))

    async def read_book(self) -> None:
        case = self.rng.choice(self.books)
        await self._checked("book", case.reference, fetch(self.server, self.http, case))

    async def convert(self) -> None:
        """Convert a recording to another voice."""
        await self._checked(
            "conversion", CONVERSION, convert(self.http, self.clip, self.books[0].voice or "")
        )

    async def upload_voice(self) -> None:
        """Upload a voice, speak in it, and delete it."""
        answer = speak_with_upload(self.http, self.clip, f"soak-{self.rng.getrandbits(32)}", self.cases[0])
        await self._checked("uploaded voice", UPLOADED_VOICE, answer)

    async def read_slowly(self) -> None:
        case = self.rng.choice(self.books)
        parts = stream_speech(self.http, case, pause_per_byte_s=1 / SLOW_BYTES_PER_S)
        await self._checked("slow reader", case.reference, join(parts))

    async def _checked(self, kind: str, key: Hashable, answer: Coroutine[Any, Any, bytes]) -> None:
        """Count an answer as right if its bytes are those of the same request alone."""
        begun_s = time.monotonic()
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
        self.tally.longest_s[kind] = max(time.monotonic() - begun_s, self.tally.longest_s.get(kind, 0.0))
        right = self.expected.get(key)
        if right is None:
            self.tally.outcomes[f"{kind}: complete"] += 1
        elif digest(audio) == right:
            self.tally.outcomes[f"{kind}: right"] += 1
        else:
            self.tally.problem(kind, f"other bytes than alone ({len(audio)}) for {key}")

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
            await socket.send(session_update(case))
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
                    self._refused("cancel", refusal_of(event))
                    return

    async def be_killed(self) -> None:
        """Read in another process, and kill that process."""
        case = self.rng.choice(self.books)
        client = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            "-c",
            KILLED_CLIENT,
            str(self.server.port),
            json.dumps(speech_body(case)),
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
        body = json.dumps(speech_body(case)).encode()
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
        kind, speak = self.rng.choice(
            [("wyoming", fetch_wyoming), ("elevenlabs socket", fetch_elevenlabs_socket)]
        )
        try:
            seconds = len(await asyncio.wait_for(speak(self.server, case), LIMIT_S)) / 48_000
        except Refused as refused:
            self._refused(kind, refused)
            return
        if 0.05 < seconds < 2.0 + 0.5 * len(case.text):
            self.tally.outcomes[f"{kind}: complete"] += 1
        else:
            self.tally.problem(kind, f"{seconds:.1f} s for {case.text!r}")

    def _refused(self, kind: str, refused: Refused) -> None:
        self.tally.statuses[refused.status] += 1
        if refused.status == 429:
            self.tally.outcomes[f"{kind}: queue full (429)"] += 1
        else:
            self.tally.problem(kind, refused)
