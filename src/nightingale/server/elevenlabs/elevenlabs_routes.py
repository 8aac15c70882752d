"""ElevenLabs' routes for speech: two sockets for text as it is written, and HTTP for a whole text.

The sockets follow the clients of LiveKit, Pipecat and ElevenLabs; docs/websocket.md lists what is supported.
Where the model's words cannot be timed, `alignment` is null, which all three accept.
"""

from __future__ import annotations

import asyncio
import base64
import math
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, WebSocket
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.requests import HTTPConnection
from starlette.responses import Response

from nightingale.audio.encoders.streaming import FORMATS
from nightingale.errors import ConfigError, NightingaleError
from nightingale.server.elevenlabs.character_alignment import CharacterAligner, socket_alignment
from nightingale.server.http_errors import http_error
from nightingale.server.openai.speech_routes import BINARY, SpeechBody, SpeechResponse
from nightingale.server.service.speech_service import Service, SpeechService
from nightingale.server.service.speech_streams import OutputFormat, Timings
from nightingale.server.service.speech_turns import SpeechTurn, check_text
from nightingale.server.websocket_io import ClientSocket, accept, parse_object
from nightingale.types import TimedWord

router = APIRouter()

DEFAULT_CONTEXT: Final = "default"
MAX_CONTEXTS: Final = 16
"""Per socket. ElevenLabs' own limit of 5 is too low for agents that are interrupted often."""
POLICY_VIOLATION: Final = 1008
FINAL_MESSAGE: Final = {"audio": None, "isFinal": True}
RATES_HZ: Final = (8000, 16000, 22050, 24000, 32000, 44100, 48000)
OUTPUT_FORMATS: Final = (
    *(f"{codec}_{rate_hz}" for codec in ("pcm", "wav") for rate_hz in RATES_HZ),
    *("mp3_22050_32", "mp3_24000_48", *(f"mp3_44100_{kbps}" for kbps in (32, 64, 96, 128, 192))),
    *(f"opus_48000_{kbps}" for kbps in (32, 64, 96, 128, 192)),
    *("ulaw_8000", "alaw_8000"),
)
"""Codec, sample rate, and kilobits per second for lossy codecs."""
_MEDIA_TYPES: Final = [FORMATS[codec].media_type for codec in ("mp3", "pcm", "wav", "opus", "ulaw", "alaw")]
AUDIO_ROUTE: Final[dict[str, Any]] = {
    "tags": ["elevenlabs"],
    "response_class": Response,
    "responses": {
        200: {
            "description": "Audio while it is rendered, in the format of the query parameter output_format.",
            "content": dict.fromkeys(_MEDIA_TYPES, BINARY),
        }
    },
}
"""The arguments of a route that answers with audio."""
DEFAULT_FORMAT: Final = "mp3_44100_128"
MIN_INACTIVITY_S: Final = 5.0


def parse_format(name: str) -> OutputFormat:
    if name not in OUTPUT_FORMATS:
        allowed = ", ".join(OUTPUT_FORMATS)
        raise ConfigError("unknown output_format", got=repr(name), allowed=allowed, param="output_format")
    codec, rate_hz, *kbps = name.split("_")
    return OutputFormat(codec, int(rate_hz), 1000 * int(kbps[0]) if kbps else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlOptions:
    """The options in the URL of a request: the voice and the query parameters."""

    voice: str
    output: OutputFormat
    language: str | None
    auto_mode: bool
    """Each message is a sentence or phrase to be spoken at once."""
    inactivity_s: float
    sync_alignment: bool
    """Times of characters count from the beginning of the answer, not from the message before."""


async def parse_options(connection: HTTPConnection, voice_id: str) -> UrlOptions:
    query = connection.query_params
    try:
        inactivity_s = float(query.get("inactivity_timeout", "nan"))
    except ValueError:
        inactivity_s = math.nan
    if math.isnan(inactivity_s):  # asyncio could not order a timer with it
        inactivity_s = 20.0
    return UrlOptions(
        voice=voice_id,
        output=parse_format(query.get("output_format", DEFAULT_FORMAT)),
        language=query.get("language_code") or None,
        auto_mode=query.get("auto_mode", "false").lower() == "true",
        inactivity_s=min(max(inactivity_s, MIN_INACTIVITY_S), 180.0),
        sync_alignment=query.get("sync_alignment", "false").lower() == "true",
    )


Options = Annotated[UrlOptions, Depends(parse_options)]


class ContextTurn(SpeechTurn):
    """One stream of text and its audio. A `stream-input` socket has one context without a name."""

    def __init__(
        self, name: str | None, options: UrlOptions, service: SpeechService, socket: ClientSocket
    ) -> None:
        request: dict[str, Any] = {"voice": options.voice, "language": options.language}
        if service.model.times_words:
            request["timestamps"] = True
        super().__init__(service, request, options.output)
        self._aligner, self._words = CharacterAligner(), list[TimedWord]()
        self.name, self._abandoned_s = name, options.inactivity_s
        self._auto_mode, self._sync, self._socket = options.auto_mode, options.sync_alignment, socket
        self._flush_requested = True

    async def write(self, message: dict[str, Any]) -> None:
        """Handle a message with text, `flush` or both. One with neither keeps the context alive."""
        text, flush, settings = message.get("text"), bool(message.get("flush")), message.get("voice_settings")
        if text is not None:
            check_text(text)
        if isinstance(settings, dict) and isinstance(settings.get("speed"), int | float):
            self._request["speed"] = float(settings["speed"])  # of a turn that has not started yet
        if text:
            await self.push(text)
            self._flush_requested = False
        if flush:
            self._flush_requested = True
        if flush or (text and self._auto_mode):
            self.flush()
        elif not text:
            self.touch()

    def close(self) -> None:
        """End the text. What was flushed is still spoken; without a flush, or if called again, cancel."""
        if self.accepts_text and self._flush_requested:
            self.end()
        else:
            self.cancel()

    async def send_audio(self, timings: Timings, data: bytes) -> None:
        self._words += timings.words
        if data:
            # Pipecat adds up the times of messages. LiveKit asks for sync_alignment and takes them as they are.
            audio, start_s = base64.b64encode(data).decode(), 0.0 if self._sync else self._aligner.end_s
            characters = self._aligner.add(self.text, self._words)
            self._words.clear()
            alignment = socket_alignment(characters, start_s)
            message = {
                "audio": audio,
                "isFinal": None,
                "alignment": alignment,
                "normalizedAlignment": alignment,
            }
            await self._socket.json(with_context(message, self.name))

    async def send_end(self) -> None:
        if self.error is not None:
            await self._socket.json(with_context(error_message(self.error), self.name))
        await self._socket.json(with_context(FINAL_MESSAGE, self.name))


def with_context(message: dict[str, Any], name: str | None) -> dict[str, Any]:
    return message if name is None else {**message, "contextId": name}


def error_message(error: NightingaleError) -> dict[str, Any]:
    """Format an error as ElevenLabs does: `error` is a short code, `message` a sentence."""
    body = http_error(error).envelope["error"]
    return {"message": body["message"], "error": body["code"] or body["type"], "code": POLICY_VIOLATION}


@router.websocket("/v1/text-to-speech/{voice_id}/stream-input")
async def stream_input(websocket: WebSocket, options: Options, service: Service) -> None:
    """Speak one answer. An empty text ends the answer, and then the socket is closed."""
    await service.resolve_voice(options.voice)
    socket = await accept(websocket)
    turn = ContextTurn(None, options, service, socket)

    async def handle(data: str | bytes) -> None:
        try:
            message = parse_object(data)
            await turn.write(message)
        except ConfigError as error:
            turn.fail(error)
            return
        if message.get("text") == "":
            turn.end()

    try:
        await socket.receive(handle, turn.finished)
    finally:
        await turn.drop()
        await socket.close(1000 if turn.error is None else POLICY_VIOLATION)


@router.websocket("/v1/text-to-speech/{voice_id}/multi-stream-input")
async def multi_stream_input(websocket: WebSocket, options: Options, service: Service) -> None:
    """Speak many answers, each in a context."""
    await service.resolve_voice(options.voice)
    await MultiStreamInputSocket(await accept(websocket), options, service).run()


class TextBody(BaseModel):
    """The body of a request for a whole text. Other fields are ignored."""

    text: str
    language_code: str | None = None
    seed: int | None = None
    voice_settings: dict[str, Any] | None = None


@router.post("/v1/text-to-speech/{voice_id}", **AUDIO_ROUTE)
@router.post("/v1/text-to-speech/{voice_id}/stream", **AUDIO_ROUTE)
async def text_to_speech(options: Options, body: TextBody, service: Service) -> Response:
    """Speak a text; the audio streams."""
    return SpeechResponse(speech_body(options, body), service, output=options.output)


def speech_body(options: UrlOptions, body: TextBody) -> SpeechBody:
    """Return the request in OpenAI's format."""
    return request_body(
        options,
        input=body.text,
        language=body.language_code or options.language,
        seed=body.seed,
        speed=(body.voice_settings or {}).get("speed"),
    )


def request_body(options: UrlOptions, **fields: Any) -> SpeechBody:
    """Return a request in OpenAI's format with the voice of the URL."""
    try:
        return SpeechBody.model_validate({"voice": options.voice, **fields})
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


class MultiStreamInputSocket:
    """A socket for many answers. An error ends only the context in which it occurs."""

    def __init__(self, socket: ClientSocket, options: UrlOptions, service: SpeechService) -> None:
        self._socket, self._options, self._service = socket, options, service
        self._contexts: list[ContextTurn] = []
        """Those that accept text, and those whose audio is still being sent, whose names may be used again."""
        self._closing = asyncio.Event()

    async def run(self) -> None:
        try:
            await self._socket.receive(self._handle, self._closing)
            # After close_socket, send the audio of everything that was flushed, unless the client leaves.
            for context in self._contexts if self._closing.is_set() else []:
                await self._socket.receive(self._handle, context.finished)
        finally:
            for context in self._contexts:
                await context.drop()
            await self._socket.close()

    async def _handle(self, data: str | bytes) -> None:
        name = None
        if self._closing.is_set():
            return
        try:
            message = parse_object(data)
            name = message.get("context_id", message.get("contextId"))
            name = None if name is None else str(name)[:200]
            await self._dispatch(name, message)
        except NightingaleError as error:
            await self._socket.json(with_context(error_message(error), name))

    async def _dispatch(self, name: str | None, message: dict[str, Any]) -> None:
        found = self._find_open(name or DEFAULT_CONTEXT)
        if message.get("close_socket"):
            self._closing.set()
            for context in self._contexts:
                if context.accepts_text:
                    context.close()
        elif message.get("close_context"):
            await self._close(name or DEFAULT_CONTEXT)
        elif message.get("text") or found is not None:
            await (found or self._open(name or DEFAULT_CONTEXT)).write(message)
        elif name is None:  # keeps the socket and all of its contexts alive
            for context in self._contexts:
                context.touch()

    def _find_open(self, name: str) -> ContextTurn | None:
        found = (context for context in self._contexts if context.name == name and context.accepts_text)
        return next(found, None)

    def _open(self, name: str) -> ContextTurn:
        self._contexts = [
            context for context in self._contexts if context.accepts_text or not context.finished.is_set()
        ]
        if len(self._contexts) >= MAX_CONTEXTS:
            allowed = f"at most {MAX_CONTEXTS}"
            raise ConfigError("too many contexts on one socket", allowed=allowed, fix="Close one first.")
        self._contexts.append(ContextTurn(name, self._options, self._service, self._socket))
        return self._contexts[-1]

    async def _close(self, name: str) -> None:
        named = [context for context in self._contexts if context.name == name]
        for context in [context for context in named if context.accepts_text] or named:
            context.close()
        if not named:  # the client waits for this message even if the context never existed
            await self._socket.json(with_context(FINAL_MESSAGE, name))
