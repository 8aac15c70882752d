"""Speech on its way to one HTTP client: bytes as they are rendered, or events with base64.

Nothing is sent before the first sound, so that what fails until then is an honest HTTP error. The client is
watched all the while, also while it waits in line: when it leaves, the engine is told at once.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nightingale.audio.encoders.streaming import Encoder, check_format, open_encoder
from nightingale.errors import NightingaleError
from nightingale.server.bodies import SpeechBody
from nightingale.server.problems import envelope
from nightingale.server.speaker import Speaker
from nightingale.server.speech import Speech
from nightingale.server.timeline import Segment, Timeline
from nightingale.types import AudioChunk, Metrics, Samples

log = logging.getLogger("nightingale.server")

INLINE_SECONDS: Final = 0.5
"""Less audio than this is encoded where it is (a few milliseconds); more would hold up other listeners."""


FIRST_SECONDS: Final = 0.1
"""The first bytes are encoded from so much at a time. Each frame that FFmpeg encodes hands Python's lock to
the engine and waits to get it back; a whole chunk of them would be heard in the time to first sound."""
_NOTHING: Final = np.zeros(0, np.float32)


class SpeechReply(Response):
    """The answer to one request for speech."""

    def __init__(
        self, body: SpeechBody, speaker: Speaker, pool: ThreadPoolExecutor, *, bit_rate: int | None = None
    ) -> None:
        """bit_rate: bits per second, for formats that lose something; None is the format's own."""
        super().__init__()
        self._speech_body, self._speaker, self._pool = body, speaker, pool
        self._bit_rate = bit_rate
        self._rate_hz = body.sample_rate or speaker.sample_rate_hz
        self._form = check_format(body.response_format, self._rate_hz)
        self._sse = body.stream_format == "sse"
        self._timeline = Timeline() if body.timestamps == "segment" else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        speaking = asyncio.create_task(self._speak(scope, send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait((speaking, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not speaking.done():
                scope["state"]["notes"]["left"] = True
                speaking.cancel()
            await asyncio.wait((speaking, leaving))
        if not speaking.cancelled():
            speaking.result()

    async def _open(self, scope: Scope) -> Speech:
        """In the engine's line, and in the log."""
        body, state = self._speech_body, scope["state"]
        voice = body.voice if body.voice is None or isinstance(body.voice, str) else body.voice.id
        speech = await self._speaker.open(
            body.input, voice=voice, request_id=state["request_id"], **body.controls()
        )
        notes = {"chars": len(body.input), "format": body.response_format, "voice": speech.voice_name}
        state["notes"].update(notes)
        return speech

    def _encoder(self) -> Encoder:
        return open_encoder(
            self._speech_body.response_format,
            sample_rate_hz=self._rate_hz,
            bit_rate=self._bit_rate,
            source_rate_hz=self._speaker.sample_rate_hz,
        )

    async def _speak(self, scope: Scope, send: Send) -> None:
        notes = scope["state"]["notes"]
        async with await self._open(scope) as speech:
            encoder = self._encoder()
            first = await anext(speech, None)
            data, rest = (b"", _NOTHING) if first is None else self._begin(encoder, first.samples)
            await self._put(send, self._start(speech, self._media_type))
            try:
                if first is not None:
                    self._time(first)
                if data:
                    await self._put(send, self._part(data))
                if data := await self._encoded(encoder, rest):
                    await self._put(send, self._part(data))
                async for chunk in speech:
                    await self._tell(send, self._time(chunk))
                    if data := await self._encoded(encoder, chunk.samples):
                        await self._put(send, self._part(data))
                if data := encoder.finish():
                    await self._put(send, self._part(data))
                await self._tell(send, [] if self._timeline is None else self._timeline.finish())
                end = _event(self._done(speech)) if self._sse else b""
                await self._put(send, {"type": "http.response.body", "body": end})
            except TimeoutError:
                notes["stalled"] = True  # and the connection is cut, for want of an end
            except NightingaleError as error:
                notes["failed"] = type(error).__name__
                log.error("speech failed", extra={"request_id": speech.request_id, "error": str(error)})
                if self._sse:
                    event = _event({"type": "error", **envelope(error)})
                    await self._put(send, {"type": "http.response.body", "body": event})
            finally:
                notes |= summary(speech.metrics)

    def _time(self, chunk: AudioChunk) -> list[Segment]:
        """What has been said to its end before this chunk."""
        return [] if self._timeline is None else self._timeline.heard(chunk)

    async def _tell(self, send: Send, segments: list[Segment]) -> None:
        if segments:
            shown = [segment.model_dump() for segment in segments]
            event = _event({"type": "speech.audio.segments", "segments": shown})
            await self._put(send, {"type": "http.response.body", "body": event, "more_body": True})

    def _begin(self, encoder: Encoder, samples: Samples) -> tuple[bytes, Samples]:
        """The first bytes that can be had of the first chunk, and the samples that are left of it."""
        step = len(samples) if self._form.cheap else round(FIRST_SECONDS * self._speaker.sample_rate_hz)
        for at in range(0, len(samples), step):
            if data := encoder.feed(samples[at : at + step]):
                return data, samples[at + step :]
        return b"", _NOTHING

    async def _encoded(self, encoder: Encoder, samples: Samples) -> bytes:
        if not len(samples):
            return b""
        if self._form.cheap or len(samples) < INLINE_SECONDS * self._speaker.sample_rate_hz:
            return encoder.feed(samples)
        return await asyncio.get_running_loop().run_in_executor(self._pool, encoder.feed, samples)

    async def _put(self, send: Send, message: dict[str, Any]) -> None:
        """Send, and give up on a client that takes nothing for too long: it holds a slot meanwhile."""
        async with asyncio.timeout(self._speaker.settings.send_timeout):
            await send(message)

    @property
    def _media_type(self) -> str:
        return "text/event-stream" if self._sse else self._form.media_type

    def _start(self, speech: Speech, media_type: str) -> dict[str, Any]:
        cost = speech.metrics
        spans = {"text": cost.stage_ms.get("text", 0.0), "queue": cost.queue_ms, "ttfa": cost.ttfa_ms}
        headers = {
            "content-type": media_type,
            "server-timing": ", ".join(f"{name};dur={ms:.1f}" for name, ms in spans.items()),
            "x-sample-rate": str(self._rate_hz),
            "x-seed": str(speech.seed),
            "cache-control": "no-store",
            "x-accel-buffering": "no",  # nginx would otherwise collect it
        }
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        return {"type": "http.response.start", "status": 200, "headers": raw}

    def _part(self, data: bytes) -> dict[str, Any]:
        if self._sse:
            data = _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
        return {"type": "http.response.body", "body": data, "more_body": True}

    def _done(self, speech: Speech) -> dict[str, Any]:
        cost = speech.metrics
        read, spoken = len(self._speech_body.input), cost.tokens
        return {
            "type": "speech.audio.done",
            "usage": {"input_tokens": read, "output_tokens": spoken, "total_tokens": read + spoken},
            "metrics": {**summary(cost), "tokens": cost.tokens, "seed": speech.seed},
        }


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(message: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(message, separators=(',', ':'))}\n\n".encode()


def summary(cost: Metrics) -> dict[str, Any]:
    return {
        "ttfa_ms": round(cost.ttfa_ms, 1),
        "queue_ms": round(cost.queue_ms, 1),
        "total_ms": round(cost.total_ms, 1),
        "audio_seconds": round(cost.audio_seconds, 3),
        "rtf": round(cost.rtf, 4) if cost.audio_seconds else None,
        "tokens_per_s": round(cost.tokens_per_s, 1),
    }
