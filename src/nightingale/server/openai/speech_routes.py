"""POST /v1/audio/speech, which always streams, and /v1/audio/speech/captions.

Nothing is sent before the first audio, so that earlier failures become HTTP errors. The connection is watched
all the time, also while the request waits in the queue: if the client disconnects, the request is cancelled.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from typing import Any, Final, get_args

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nightingale.audio.encoders.streaming import FORMATS
from nightingale.errors import ConfigError, NightingaleError
from nightingale.server.http_errors import error_envelope
from nightingale.server.metrics import metrics_json
from nightingale.server.openai.model_routes import check_model
from nightingale.server.openai.schemas import Captions, ResponseFormat, SpeechBody
from nightingale.server.service.audio_output import OutputFormat, TimedSegment, format_srt
from nightingale.server.service.speech_service import Service, SpeechService
from nightingale.server.service.speech_streams import SpeechStream

router = APIRouter(tags=["speech"])
log = logging.getLogger("nightingale.server")

CAPTIONS_PART_BYTES: Final = 1 << 16
"""The document is sent in parts, so that the send timeout applies to each of them."""
BINARY: Final = {"schema": {"type": "string", "format": "binary"}}
MEDIA_TYPES: Final = sorted({FORMATS[name].media_type for name in get_args(ResponseFormat)})
RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Audio while it is rendered; with stream_format=sse, the events speech.audio.delta "
        "(base64), speech.audio.segments (if requested) and speech.audio.done.",
        "content": dict.fromkeys(MEDIA_TYPES, BINARY) | {"text/event-stream": {"schema": {"type": "string"}}},
    },
}


@router.post("/v1/audio/speech", response_class=Response, responses=RESPONSES)
async def create_speech(body: SpeechBody, request: Request, service: Service) -> Response:
    """Speak a text."""
    check_model(body.model, service)
    body.check()
    if body.timestamps == "segment" and body.stream_format != "sse":
        raise ConfigError(
            "an audio stream cannot carry timestamps",
            got='timestamps="segment" with stream_format="audio"',
            allowed='stream_format="sse"',
            fix="Request events, or one document: POST /v1/audio/speech/captions.",
            param="timestamps",
        )
    log.debug("text", extra={"request_id": request.state.request_id, "text": body.input})
    return SpeechResponse(body, service)


@router.post("/v1/audio/speech/captions", response_class=Response, responses={200: {"model": Captions}})
async def create_captions(body: SpeechBody, service: Service) -> Response:
    """Speak a text and say when each part of it is said. Answered when all of it is spoken."""
    check_model(body.model, service)
    body.check()
    return CaptionsResponse(body, service)


class SpeechResponse(Response):
    """Streams the audio of one request, as bytes or as server-sent events."""

    def __init__(self, body: SpeechBody, service: SpeechService, *, bit_rate: int | None = None) -> None:
        """bit_rate: bits per second, for lossy formats."""
        super().__init__()
        self._speech, self._service = body, service
        rate_hz = body.sample_rate or service.sample_rate_hz
        self._output = OutputFormat(body.response_format, rate_hz, bit_rate)
        self._sse = body.stream_format == "sse"
        self._media_type = "text/event-stream" if self._sse else FORMATS[body.response_format].media_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        speaking = asyncio.create_task(self._speak(scope["state"], send))
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

    async def _open(self, log_fields: dict[str, Any]) -> SpeechStream:
        body = self._speech
        stream = await self._service.open(body.input, **body.request())
        log_fields |= {"chars": len(body.input), "format": body.response_format, "voice": stream.voice_name}
        return stream

    async def _speak(self, state: dict[str, Any], send: Send) -> None:
        log_fields = state["log_fields"]
        async with await self._open(log_fields) as stream:
            parts = self._service.open_encoder(self._output).encode(stream)
            # Before the start of the response, so that a failing encoder is an HTTP error, too.
            segments, data = await anext(parts, (list[TimedSegment](), b""))
            await self._start(send, stream, self._media_type)
            try:
                await self._send_part(send, segments, data)
                async for segments, data in parts:
                    await self._send_part(send, segments, data)
                await self._send(send, _event(self._done(stream)) if self._sse else b"")
            except TimeoutError:
                log_fields["stalled"] = True  # without a last part, the connection is closed
            except NightingaleError as error:
                log_fields["failed"] = type(error).__name__
                log.error("speech failed", extra={"request_id": state["request_id"], "error": str(error)})
                if self._sse:
                    await self._send(send, _event({"type": "error", **error_envelope(error)}))
            finally:
                log_fields |= metrics_json(stream.metrics)

    async def _send_part(self, send: Send, segments: list[TimedSegment], data: bytes) -> None:
        if segments and self._speech.timestamps == "segment":
            shown = [segment.model_dump() for segment in segments]
            await self._send(send, _event({"type": "speech.audio.segments", "segments": shown}), more=True)
        if self._sse and data:
            data = _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
        if data:
            await self._send(send, data, more=True)

    async def _start(self, send: Send, stream: SpeechStream, media_type: str) -> None:
        metrics = stream.metrics
        text_ms = metrics.stage_ms.get("text", 0.0)
        headers = {
            "content-type": media_type,
            "server-timing": f"text;dur={text_ms:.1f}, queue;dur={metrics.queue_ms:.1f}, "
            f"ttfa;dur={metrics.ttfa_ms:.1f}",
            "x-sample-rate": str(self._output.sample_rate_hz),
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
        metrics, chars, tokens = stream.metrics, len(self._speech.input), stream.metrics.tokens
        return {
            "type": "speech.audio.done",
            "usage": {"input_tokens": chars, "output_tokens": tokens, "total_tokens": chars + tokens},
            "metrics": metrics_json(metrics, tokens=tokens, seed=stream.seed),
        }


class CaptionsResponse(SpeechResponse):
    """Audio and timestamps as one document, sent at the end, so that all failures are HTTP errors."""

    async def _speak(self, state: dict[str, Any], send: Send) -> None:
        audio, segments = bytearray(), list[TimedSegment]()
        async with await self._open(state["log_fields"]) as stream:
            async for ended, data in self._service.open_encoder(self._output).encode(stream):
                segments += ended
                audio += data
            state["log_fields"] |= metrics_json(stream.metrics)
            captions = Captions(
                audio=base64.b64encode(audio).decode(),
                response_format=self._speech.response_format,
                sample_rate=self._output.sample_rate_hz,
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
