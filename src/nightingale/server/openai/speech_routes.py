"""POST /v1/audio/speech, which always streams.

Nothing is sent before the first audio, so that earlier failures become HTTP errors. The connection is watched
all the time, also while the request waits in the queue: if the client disconnects, the request is cancelled.
Unknown fields of a request are ignored: clients send what the newest of OpenAI's servers accepts.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Final, Literal, get_args

from fastapi import APIRouter, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nightingale.audio.encoders.streaming import FORMATS, RATES_HZ
from nightingale.engine.captions import format_srt, words_json
from nightingale.engine.stream_capacity import QueuePlace
from nightingale.errors import ConfigError, NightingaleError
from nightingale.server.http_errors import http_error
from nightingale.server.metrics import metrics_json
from nightingale.server.openai.catalog_routes import check_model
from nightingale.server.openai.speech_events import EVENT_STREAM, encode_event
from nightingale.server.request_fields import RequestBody, with_request_options
from nightingale.server.service.queue_reports import queued_event, with_queue_reports
from nightingale.server.service.speech_service import Service, SpeechService
from nightingale.server.service.speech_streams import OutputFormat, SpeechStream
from nightingale.types import TextWarning, TimedWord

router = APIRouter(tags=["speech"])
log = logging.getLogger("nightingale.server")

MAX_HEADER_BYTES: Final = 2048
"""Warnings beyond this length are left out of the header."""
ResponseFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
BINARY: Final = {"schema": {"type": "string", "format": "binary"}}
MEDIA_TYPES: Final = sorted({FORMATS[name].media_type for name in get_args(ResponseFormat)})
RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Audio while it is rendered; with stream_format=sse, events: speech.queued (if the "
        "request has to wait), speech.audio.delta (base64), speech.audio.segments or speech.audio.words (if "
        "requested) and speech.audio.done.",
        "content": dict.fromkeys(MEDIA_TYPES, BINARY) | {"text/event-stream": EVENT_STREAM},
    },
}


# Half of a surrogate pair, escaped in JSON, cannot be encoded.
UnicodeText = Annotated[str, AfterValidator(lambda text: text.encode().decode())]
Timestamps = Literal["none", "segment", "word"]
Lexicon = Annotated[
    dict[str, str] | None,
    Field(max_length=1000, description="Words and their respellings, before those of the server."),
]


class VoiceRef(BaseModel):
    """A voice as an object, as OpenAI's client may send it."""

    id: str


@with_request_options
class SpeechBody(RequestBody):
    """The body of POST /v1/audio/speech."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: str = Field("nightingale", max_length=200, description="The loaded model, or a name of OpenAI's.")
    input: UnicodeText = Field(description="The text to speak, or SSML. `[pause:500ms]` is silence.")
    voice: str | VoiceRef | None = Field(None, description="A name, an alias, or a blend: heart(2)+emma.")
    response_format: ResponseFormat = Field("mp3", description="24 kHz mono unless sample_rate is given.")
    stream_format: Literal["audio", "sse"] = Field("audio", description="Bytes, or events with base64.")
    instructions: str | None = Field(None, description="Accepted and ignored.")

    sample_rate: int | None = Field(None, description=f"In hertz, one of {', '.join(map(str, RATES_HZ))}.")
    timestamps: Timestamps | None = Field(
        None, description='With stream_format=sse: "segment" or "word", the time of each sentence or word.'
    )
    lexicon: Lexicon = None


@router.post("/v1/audio/speech", response_class=Response, responses=RESPONSES)
async def create_speech(body: SpeechBody, request: Request, service: Service) -> Response:
    """Speak a text."""
    check_model(body.model, service)
    if body.timestamps in ("segment", "word") and body.stream_format != "sse":
        raise ConfigError(
            "an audio stream cannot carry timestamps",
            got=f'timestamps="{body.timestamps}" with stream_format="audio"',
            allowed='stream_format="sse"',
            fix="Request events, or one document: POST /v1/audio/speech/captions.",
            param="timestamps",
        )
    log.debug("text", extra={"request_id": request.state.request_id, "text": body.input})
    return SpeechResponse(body, service)


class SpeechResponse(Response):
    """Streams the audio of one request, as bytes or as server-sent events."""

    def __init__(
        self, body: SpeechBody, service: SpeechService, *, output: OutputFormat | None = None
    ) -> None:
        """output: the encoding, if it is not that of the body."""
        super().__init__()
        self._speech, self._service = body, service
        rate_hz = service.sample_rate_hz if body.sample_rate is None else body.sample_rate
        self._output = OutputFormat(body.response_format, rate_hz) if output is None else output
        self._sse, self._started = body.stream_format == "sse", False
        self._media_type = "text/event-stream" if self._sse else FORMATS[self._output.codec].media_type

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
        async with await self._open() as stream:
            log_fields |= {"chars": len(body.input), "format": self._output.codec}
            log_fields["voice"] = stream.voice_name
            report = partial(self._report_place, send, stream)
            try:
                async with aclosing(with_queue_reports(self._parts(stream), stream, report)) as parts:
                    async for part in parts:
                        await self._send_start(send, stream)
                        await self._send(send, _body(part, more=True))
                await self._send_start(send, stream)
                await self._send(send, _body(b""))
            except TimeoutError:
                log_fields["stalled"] = True  # without a last part, the connection is closed
            except NightingaleError as error:
                if not self._started:
                    raise  # becomes an HTTP error
                log_fields["failed"] = type(error).__name__
                log.error("speech failed", extra={"request_id": state["request_id"], "error": str(error)})
                if self._sse:
                    await self._send(send, _body(encode_event("error", **http_error(error).envelope)))
            finally:
                log_fields |= metrics_json(stream.metrics)

    async def _report_place(self, send: Send, stream: SpeechStream, place: QueuePlace) -> None:
        """Send the place in the queue as an event. Other responses start with their first audio."""
        if self._sse:
            await self._send_start(send, stream)
            await self._send(send, _body(encode_event(**queued_event(place)), more=True))

    async def _open(self) -> SpeechStream:
        return await self._service.open(self._speech.input, **self._speech.request)

    async def _parts(self, stream: SpeechStream) -> AsyncGenerator[bytes, None]:
        """Yield the parts of the body."""
        words: list[TimedWord] = []
        async for timings, data in self._service.open_encoder(self._output).encode(stream):
            if timings.segments and self._speech.timestamps == "segment":
                segments = [each.model_dump() for each in timings.segments]
                yield encode_event("speech.audio.segments", segments=segments)
            if timings.words and self._sse:
                words += timings.words
                yield encode_event("speech.audio.words", words=words_json(timings.words))
            if data and self._sse:
                yield encode_event("speech.audio.delta", audio=base64.b64encode(data).decode())
            elif data:
                yield data
        if self._sse:
            metrics, chars, tokens = stream.metrics, len(self._speech.input), stream.metrics.tokens
            usage = {"input_tokens": chars, "output_tokens": tokens, "total_tokens": chars + tokens}
            shown = metrics_json(metrics, tokens=tokens, seed=stream.seed)
            timed = self._speech.timestamps == "word"
            srt = {"srt": format_srt(words, self._speech.request.get("language"))} if timed else {}
            yield encode_event("speech.audio.done", usage=usage, metrics=shown, **srt)

    async def _send_start(self, send: Send, stream: SpeechStream) -> None:
        """Send the head of the response once, not before the first part, so that earlier failures are HTTP errors."""
        if not self._started:
            self._started = True
            await self._send(send, self._start(stream))

    def _start(self, stream: SpeechStream) -> dict[str, Any]:
        metrics = stream.metrics
        headers = {
            "content-type": self._media_type,
            "x-queue-position": str(stream.queue_position),
            "x-sample-rate": str(self._output.sample_rate_hz),
            "x-seed": str(stream.seed),
            "cache-control": "no-store",
            "x-accel-buffering": "no",  # otherwise nginx buffers the stream
        }
        if stream.place is None:  # otherwise these are the headers of events that begin in the queue
            text_ms, queue_ms = metrics.stage_ms.get("text", 0.0), metrics.queue_ms
            headers["x-queue-wait-ms"] = str(round(queue_ms))
            headers["server-timing"] = (
                f"text;dur={text_ms:.1f}, queue;dur={queue_ms:.1f}, ttfa;dur={metrics.ttfa_ms:.1f}"
            )
        if stream.warnings:
            headers["x-warnings"] = warnings_header(stream.warnings)
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        return {"type": "http.response.start", "status": 200, "headers": raw}

    async def _send(self, send: Send, message: dict[str, Any]) -> None:
        """Send, and give up on a stalled client, whose audio is kept in memory meanwhile."""
        async with asyncio.timeout(self._service.settings.send_timeout):
            await send(message)


def warnings_header(warnings: Iterable[TextWarning]) -> str:
    """Return warnings as a JSON list of strings in ASCII, as many as fit into a header."""
    shown: list[str] = []
    for warning in warnings:
        if len(json.dumps([*shown, str(warning)])) > MAX_HEADER_BYTES:
            break
        shown.append(str(warning))
    return json.dumps(shown)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}
