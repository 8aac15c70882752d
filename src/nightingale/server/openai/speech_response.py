"""Responses with speech: audio bytes or events while it is rendered, or one JSON document at the end.

Nothing is sent before the first audio, so that earlier failures become HTTP errors. The connection is watched
all the time, also while the request waits in the queue: if the client disconnects, the request is cancelled.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from typing import Any, Final

import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nightingale.audio.encoders.streaming import check_format
from nightingale.errors import NightingaleError
from nightingale.server.http_errors import error_envelope
from nightingale.server.metrics import metrics_json
from nightingale.server.openai.schemas import Captions, SpeechBody
from nightingale.server.service.async_encoder import AsyncEncoder
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.service.speech_streams import SpeechStream
from nightingale.server.service.timestamps import SegmentTimer, TimedSegment, format_srt

log = logging.getLogger("nightingale.server")

CAPTIONS_PART_BYTES: Final = 1 << 16
"""The document is sent in parts, so that the send timeout applies to each of them."""
_NO_SAMPLES: Final = np.zeros(0, np.float32)


class SpeechResponse(Response):
    """Streams the audio of one request, as bytes or as server-sent events."""

    def __init__(self, body: SpeechBody, service: SpeechService, *, bit_rate: int | None = None) -> None:
        """bit_rate: bits per second, for lossy formats."""
        super().__init__()
        self._speech, self._service, self._bit_rate = body, service, bit_rate
        self._rate_hz = body.sample_rate or service.sample_rate_hz
        self._media_type = check_format(body.response_format, self._rate_hz).media_type
        self._sse = body.stream_format == "sse"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        speaking = asyncio.create_task(self._speak(scope, send))
        disconnected = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((speaking, disconnected), return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnected.cancel()
            if not speaking.done():
                scope["state"]["log_fields"]["left"] = True
                speaking.cancel()
            await asyncio.wait((speaking, disconnected))
        if not speaking.cancelled():
            speaking.result()

    async def _open(self, scope: Scope) -> SpeechStream:
        body = self._speech
        stream = await self._service.open(body.input, **body.request())
        scope["state"]["log_fields"] |= {
            "chars": len(body.input),
            "format": body.response_format,
            "voice": stream.voice_name,
        }
        return stream

    def _encoder(self) -> AsyncEncoder:
        return self._service.open_encoder(self._speech.response_format, self._rate_hz, self._bit_rate)

    async def _speak(self, scope: Scope, send: Send) -> None:
        log_fields = scope["state"]["log_fields"]
        timer = SegmentTimer(enabled=self._speech.timestamps == "segment")
        async with await self._open(scope) as stream:
            encoder, chunks = self._encoder(), aiter(stream)
            first = await anext(chunks, None)
            # Before the start of the response, so that a failing encoder is an HTTP error, too.
            data, rest = encoder.encode_first(_NO_SAMPLES if first is None else first.samples)
            await self._start(send, stream, "text/event-stream" if self._sse else self._media_type)
            try:
                if first is not None:
                    timer.add(first)
                await self._send_audio(send, data)
                await self._send_audio(send, await encoder.encode(rest))
                async for chunk in chunks:
                    await self._send_segments(send, timer.add(chunk))
                    await self._send_audio(send, await encoder.encode(chunk.samples))
                await self._send_audio(send, encoder.finish())
                await self._send_segments(send, timer.finish())
                await self._send(send, _event(self._done(stream)) if self._sse else b"")
            except TimeoutError:
                log_fields["stalled"] = True  # without a last part, the connection is closed
            except NightingaleError as error:
                log_fields["failed"] = type(error).__name__
                request_id = scope["state"]["request_id"]
                log.error("speech failed", extra={"request_id": request_id, "error": str(error)})
                if self._sse:
                    await self._send(send, _event({"type": "error", **error_envelope(error)}))
            finally:
                log_fields |= metrics_json(stream.metrics)

    async def _send_audio(self, send: Send, data: bytes) -> None:
        if self._sse and data:
            data = _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
        if data:
            await self._send(send, data, more=True)

    async def _send_segments(self, send: Send, segments: list[TimedSegment]) -> None:
        if segments:
            shown = [segment.model_dump() for segment in segments]
            await self._send(send, _event({"type": "speech.audio.segments", "segments": shown}), more=True)

    async def _start(self, send: Send, stream: SpeechStream, media_type: str) -> None:
        metrics = stream.metrics
        spans = {
            "text": metrics.stage_ms.get("text", 0.0),
            "queue": metrics.queue_ms,
            "ttfa": metrics.ttfa_ms,
        }
        headers = {
            "content-type": media_type,
            "server-timing": ", ".join(f"{name};dur={ms:.1f}" for name, ms in spans.items()),
            "x-sample-rate": str(self._rate_hz),
            "x-seed": str(stream.seed),
            "cache-control": "no-store",
            "x-accel-buffering": "no",  # otherwise nginx buffers the stream
        }
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send_message(send, {"type": "http.response.start", "status": 200, "headers": raw})

    async def _send(self, send: Send, data: bytes, *, more: bool = False) -> None:
        await self._send_message(send, {"type": "http.response.body", "body": data, "more_body": more})

    async def _send_message(self, send: Send, message: dict[str, Any]) -> None:
        """Send, and give up on a stalled client, which occupies a slot meanwhile."""
        async with asyncio.timeout(self._service.settings.send_timeout):
            await send(message)

    def _done(self, stream: SpeechStream) -> dict[str, Any]:
        metrics, chars = stream.metrics, len(self._speech.input)
        usage = {
            "input_tokens": chars,
            "output_tokens": metrics.tokens,
            "total_tokens": chars + metrics.tokens,
        }
        shown = metrics_json(metrics, tokens=metrics.tokens, seed=stream.seed)
        return {"type": "speech.audio.done", "usage": usage, "metrics": shown}


class CaptionsResponse(SpeechResponse):
    """Audio and timestamps as one document, sent at the end, so that all failures are HTTP errors."""

    async def _speak(self, scope: Scope, send: Send) -> None:
        async with await self._open(scope) as stream:
            encoder, timer = self._encoder(), SegmentTimer()
            audio, segments = bytearray(), list[TimedSegment]()
            async for chunk in stream:
                segments += timer.add(chunk)
                audio += await encoder.encode(chunk.samples)
            segments += timer.finish()
            audio += encoder.finish()
            scope["state"]["log_fields"] |= metrics_json(stream.metrics)
            captions = Captions(
                audio=base64.b64encode(audio).decode(),
                response_format=self._speech.response_format,
                sample_rate=self._rate_hz,
                segments=segments,
                srt=format_srt(segments),
                metrics=metrics_json(stream.metrics, seed=stream.seed),
            )
            await self._start(send, stream, "application/json")
        document = captions.model_dump_json().encode()
        for start in range(0, len(document), CAPTIONS_PART_BYTES):
            end = start + CAPTIONS_PART_BYTES
            await self._send(send, document[start:end], more=end < len(document))


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(message: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(message, separators=(',', ':'))}\n\n".encode()
