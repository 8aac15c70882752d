"""POST /v1/audio/speech, which always streams, and /v1/audio/speech/captions.

Nothing is sent before the first audio, so that earlier failures become HTTP errors. The connection is watched
all the time, also while the request waits in the queue: if the client disconnects, the request is cancelled.
Unknown fields of a request are ignored: clients send what the newest of OpenAI's servers accepts.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final, Literal, get_args

from fastapi import APIRouter, Request
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nightingale.audio.encoders.streaming import FORMATS, RATES_HZ
from nightingale.errors import ConfigError, NightingaleError
from nightingale.server.http_errors import http_error
from nightingale.server.metrics import metrics_json
from nightingale.server.openai.catalog_routes import check_model
from nightingale.server.service.speech_service import Service, SpeechService
from nightingale.server.service.speech_streams import OutputFormat, SpeechStream, TimedSegment, format_srt

router = APIRouter(tags=["speech"])
log = logging.getLogger("nightingale.server")

CAPTIONS_PART_BYTES: Final = 1 << 16
"""The document is sent in parts, so that the send timeout applies to each of them."""
ResponseFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
REQUEST_FIELDS = {
    "voice", "language", "seed", "normalize", "speed", "exaggeration", "cfg_weight", "temperature",
}  # fmt: skip
"""Fields that are arguments of `SpeechService.open` and `SpeechService.session`."""
BINARY: Final = {"schema": {"type": "string", "format": "binary"}}
EVENT_DATA: Final = {"type": "string", "contentMediaType": "application/json"}
EVENTS: Final = {"schema": {"type": "object", "required": ["data"], "properties": {"data": EVENT_DATA}}}
"""Of a stream, OpenAPI before 3.2 describes each event."""
MEDIA_TYPES: Final = sorted({FORMATS[name].media_type for name in get_args(ResponseFormat)})
RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Audio while it is rendered; with stream_format=sse, the events speech.audio.delta "
        "(base64), speech.audio.segments (if requested) and speech.audio.done.",
        "content": dict.fromkeys(MEDIA_TYPES, BINARY) | {"text/event-stream": EVENTS},
    },
}


def check_timestamps(value: Any) -> Any:
    if value == "word":
        raise PydanticCustomError("word", 'word timestamps are not available; use "segment" or "none"')
    return value


# Half of a surrogate pair, escaped in JSON, cannot be encoded.
UnicodeText = Annotated[str, AfterValidator(lambda text: text.encode().decode())]
Timestamps = Annotated[Literal["none", "segment"], BeforeValidator(check_timestamps)]


class NullableBody(BaseModel):
    """A request body in which null means the same as leaving the field out."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        return {name: value for name, value in body.items() if value is not None}


class VoiceRef(BaseModel):
    """A voice as an object, as OpenAI's client may send it."""

    id: str


class SpeechBody(NullableBody):
    """The body of POST /v1/audio/speech."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: str = Field("nightingale", max_length=200, description="The loaded model, or a name of OpenAI's.")
    input: UnicodeText = Field(description="The text to speak. `[pause:500ms]` is silence.")
    voice: str | VoiceRef | None = Field(None, description="A name, an alias, or a blend: heart(2)+emma.")
    response_format: ResponseFormat = Field("mp3", description="24 kHz mono unless sample_rate is given.")
    speed: Annotated[float, Field(ge=0.25, le=4.0, description="The pitch does not change.")] = 1.0
    stream_format: Literal["audio", "sse"] = Field("audio", description="Bytes, or events with base64.")
    instructions: str | None = Field(None, description="Accepted and ignored.")

    language: str | None = Field(None, max_length=35, description="Language code, for multilingual models.")
    seed: int | None = Field(None, description="The same seed gives the same bytes for a request by itself.")
    exaggeration: float | None = Field(None, description="Strength of emotion, if the model supports it.")
    cfg_weight: float | None = Field(None, description="Weight of guidance, if the model supports it.")
    temperature: float | None = Field(None, description="Sampling temperature.")
    sample_rate: int | None = Field(None, description=f"In hertz, one of {', '.join(map(str, RATES_HZ))}.")
    timestamps: Timestamps | None = Field(
        None, description='"segment", with stream_format=sse: time of each sentence; not "word".'
    )
    normalize: bool | None = Field(None, description="false: do not write out digits and symbols in words.")

    def request(self) -> dict[str, Any]:
        """Return the arguments of `SpeechService.open` besides the text."""
        return self.model_dump(include=REQUEST_FIELDS, exclude_defaults=True)


class Captions(BaseModel):
    """The response of POST /v1/audio/speech/captions."""

    audio: str
    """The encoded audio in base64."""
    response_format: ResponseFormat
    sample_rate: int
    segments: list[TimedSegment]
    srt: str
    """The segments as subtitles."""
    metrics: dict[str, float | None]


@router.post("/v1/audio/speech", response_class=Response, responses=RESPONSES)
async def create_speech(body: SpeechBody, request: Request, service: Service) -> Response:
    """Speak a text."""
    check_model(body.model, service)
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

    async def _speak(self, state: dict[str, Any], send: Send) -> None:
        body, log_fields = self._speech, state["log_fields"]
        async with await self._service.open(body.input, **body.request()) as stream:
            log_fields |= {"chars": len(body.input), "format": body.response_format}
            log_fields["voice"] = stream.voice_name
            parts = self._parts(stream)
            # Before the start of the response, so that a failing encoder is an HTTP error, too.
            first = await anext(parts, b"")
            await self._send(send, self._start(stream))
            try:
                await self._send(send, _body(first, more=True))
                async for part in parts:
                    await self._send(send, _body(part, more=True))
                await self._send(send, _body(b""))
            except TimeoutError:
                log_fields["stalled"] = True  # without a last part, the connection is closed
            except NightingaleError as error:
                log_fields["failed"] = type(error).__name__
                log.error("speech failed", extra={"request_id": state["request_id"], "error": str(error)})
                if self._sse:
                    await self._send(send, _body(_event("error", **http_error(error).envelope)))
            finally:
                log_fields |= metrics_json(stream.metrics)

    async def _parts(self, stream: SpeechStream) -> AsyncGenerator[bytes, None]:
        """Yield the parts of the body."""
        async for segments, data in self._service.open_encoder(self._output).encode(stream):
            if segments and self._speech.timestamps == "segment":
                yield _event("speech.audio.segments", segments=[each.model_dump() for each in segments])
            if data and self._sse:
                yield _event("speech.audio.delta", audio=base64.b64encode(data).decode())
            elif data:
                yield data
        if self._sse:
            metrics, chars, tokens = stream.metrics, len(self._speech.input), stream.metrics.tokens
            usage = {"input_tokens": chars, "output_tokens": tokens, "total_tokens": chars + tokens}
            shown = metrics_json(metrics, tokens=tokens, seed=stream.seed)
            yield _event("speech.audio.done", usage=usage, metrics=shown)

    def _start(self, stream: SpeechStream) -> dict[str, Any]:
        metrics = stream.metrics
        text_ms = metrics.stage_ms.get("text", 0.0)
        headers = {
            "content-type": self._media_type,
            "server-timing": f"text;dur={text_ms:.1f}, queue;dur={metrics.queue_ms:.1f}, "
            f"ttfa;dur={metrics.ttfa_ms:.1f}",
            "x-sample-rate": str(self._output.sample_rate_hz),
            "x-seed": str(stream.seed),
            "cache-control": "no-store",
            "x-accel-buffering": "no",  # otherwise nginx buffers the stream
        }
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        return {"type": "http.response.start", "status": 200, "headers": raw}

    async def _send(self, send: Send, message: dict[str, Any]) -> None:
        """Send, and give up on a stalled client, which occupies a slot meanwhile."""
        async with asyncio.timeout(self._service.settings.send_timeout):
            await send(message)


class CaptionsResponse(SpeechResponse):
    """Audio and timestamps as one document, sent at the end, so that all failures are HTTP errors."""

    def __init__(self, body: SpeechBody, service: SpeechService) -> None:
        super().__init__(body, service)
        self._sse, self._media_type = False, "application/json"

    async def _parts(self, stream: SpeechStream) -> AsyncGenerator[bytes, None]:
        audio, segments = bytearray(), list[TimedSegment]()
        async for ended, data in self._service.open_encoder(self._output).encode(stream):
            segments += ended
            audio += data
        captions = Captions(
            audio=base64.b64encode(audio).decode(),
            response_format=self._speech.response_format,
            sample_rate=self._output.sample_rate_hz,
            segments=segments,
            srt=format_srt(segments),
            metrics=metrics_json(stream.metrics, seed=stream.seed),
        )
        document = captions.model_dump_json().encode()
        for start in range(0, len(document), CAPTIONS_PART_BYTES):
            yield document[start : start + CAPTIONS_PART_BYTES]


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def _event(kind: str, **fields: Any) -> bytes:
    return f"data: {json.dumps({'type': kind, **fields}, separators=(',', ':'))}\n\n".encode()
