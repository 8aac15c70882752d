"""ElevenLabs' routes: two sockets for text as it is written, and HTTP for a whole text and the voices.

WS   /v1/text-to-speech/{voice}/stream-input         one answer
WS   /v1/text-to-speech/{voice}/multi-stream-input   many answers, each in a context
POST /v1/text-to-speech/{voice}[/stream]             a whole text; the audio streams
GET  /v1/voices
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import APIRouter, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from nightingale.errors import ConfigError, NightingaleError
from nightingale.server.elevenlabs.contexts import (
    FINAL_MESSAGE,
    MAX_CONTEXTS,
    POLICY_VIOLATION,
    SpeechContext,
    UrlOptions,
    error_message,
    with_context,
)
from nightingale.server.openai.schemas import SpeechBody
from nightingale.server.openai.speech_response import SpeechResponse
from nightingale.server.service.dependencies import Service
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.websocket_io import ClientSocket, accept, authorize, deny, parse_object

router = APIRouter()

DEFAULT_CONTEXT: Final = "default"


@router.websocket("/v1/text-to-speech/{voice_id}/stream-input")
async def stream_input(websocket: WebSocket, voice_id: str, service: Service) -> None:
    if (options := await _authorize(websocket, voice_id, service)) is not None:
        await StreamInputSocket(await accept(websocket), options, service).run()


@router.websocket("/v1/text-to-speech/{voice_id}/multi-stream-input")
async def multi_stream_input(websocket: WebSocket, voice_id: str, service: Service) -> None:
    if (options := await _authorize(websocket, voice_id, service)) is not None:
        await MultiStreamInputSocket(await accept(websocket), options, service).run()


async def _authorize(websocket: WebSocket, voice_id: str, service: SpeechService) -> UrlOptions | None:
    """Check access and the URL; if one of them is wrong, deny the handshake and return None."""
    if not await authorize(websocket):
        return None
    try:
        options = UrlOptions.parse(voice_id, websocket.query_params)
        await service.resolve_voice(voice_id)
    except NightingaleError as error:
        await deny(websocket, error)
        return None
    return options


class TextBody(BaseModel):
    """The body of a request for a whole text. Other fields are ignored."""

    text: str
    language_code: str | None = None
    seed: int | None = None
    voice_settings: dict[str, Any] | None = None


@router.post("/v1/text-to-speech/{voice_id}", tags=["elevenlabs"], response_class=Response)
@router.post("/v1/text-to-speech/{voice_id}/stream", tags=["elevenlabs"], response_class=Response)
async def text_to_speech(request: Request, voice_id: str, body: TextBody, service: Service) -> Response:
    """Speak a text; the audio streams. µ-law is available on sockets only."""
    options = UrlOptions.parse(voice_id, request.query_params)
    speed = (body.voice_settings or {}).get("speed")
    try:
        speech = SpeechBody.model_validate(
            {
                "input": body.text,
                "voice": voice_id,
                "response_format": options.output.codec,
                "sample_rate": options.output.sample_rate_hz,
                "language": body.language_code or options.language,
                "seed": body.seed,
                "speed": speed,
            }
        )
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    speech.check()
    return SpeechResponse(speech, service, bit_rate=options.output.bit_rate)


@router.get("/v1/voices", tags=["elevenlabs"])
async def voices(service: Service) -> dict[str, list[dict[str, Any]]]:
    """List the voices in ElevenLabs' format."""
    return {
        "voices": [
            {
                "voice_id": voice.id,
                "name": voice.id,
                "category": "premade" if voice.builtin else "cloned",
                "description": voice.description,
                "labels": {},
            }
            for voice in await service.voices()
        ]
    }


class StreamInputSocket:
    """A socket for one answer. An empty text ends the answer, and then the socket is closed."""

    def __init__(self, socket: ClientSocket, options: UrlOptions, service: SpeechService) -> None:
        self._socket = socket
        self._context = SpeechContext(None, options, service, socket)

    async def run(self) -> None:
        turn = self._context.turn
        try:
            await self._socket.receive(self._handle, self._context.finished)
        finally:
            await turn.drop()
            await self._socket.close(1000 if turn.error is None else POLICY_VIOLATION)

    async def _handle(self, data: str | bytes) -> None:
        try:
            message = parse_object(data)
            await self._context.write(message)
        except ConfigError as error:
            self._context.turn.fail(error)
            return
        if message.get("text") == "":
            self._context.turn.end()


class MultiStreamInputSocket:
    """A socket for many answers. An error ends only the context in which it occurs."""

    def __init__(self, socket: ClientSocket, options: UrlOptions, service: SpeechService) -> None:
        self._socket, self._options, self._service = socket, options, service
        self._open: dict[str, SpeechContext] = {}
        """Contexts that accept text."""
        self._closed: list[SpeechContext] = []
        """Contexts whose audio is still being sent. Their names may be used again."""
        self._closing = asyncio.Event()

    async def run(self) -> None:
        try:
            await self._socket.receive(self._handle, self._closing)
            if self._closing.is_set() and not self._socket.gone.is_set():
                await self._finish_contexts()
        finally:
            for context in self._contexts():
                await context.turn.drop()
            await self._socket.close()

    async def _handle(self, data: str | bytes) -> None:
        name = None
        try:
            message = parse_object(data)
            name = message.get("context_id", message.get("contextId"))
            name = None if name is None else str(name)[:200]
            await self._dispatch(name, message)
        except NightingaleError as error:
            await self._socket.json(with_context(error_message(error), name))

    async def _dispatch(self, name: str | None, message: dict[str, Any]) -> None:
        if message.get("close_socket"):
            self._closing.set()
        elif message.get("close_context"):
            await self._close(name or DEFAULT_CONTEXT)
        elif message.get("text") or (name or DEFAULT_CONTEXT) in self._open:
            await self._context(name or DEFAULT_CONTEXT).write(message)
        elif name is None:  # keeps the socket and all of its contexts alive
            for context in self._open.values():
                context.turn.touch()

    def _context(self, name: str) -> SpeechContext:
        self._remove_finished()
        if name not in self._open:
            if len(self._contexts()) >= MAX_CONTEXTS:
                raise ConfigError(
                    "too many contexts on one socket",
                    allowed=f"at most {MAX_CONTEXTS}",
                    fix="Close one first.",
                )
            self._open[name] = SpeechContext(name, self._options, self._service, self._socket)
        return self._open[name]

    async def _close(self, name: str) -> None:
        if (context := self._open.pop(name, None)) is not None:
            context.close()
            self._closed.append(context)
            return
        again = [context for context in self._closed if context.name == name]
        for context in again:
            context.close()
        if not again:  # the client waits for this message even if the context never existed
            await self._socket.json(with_context(FINAL_MESSAGE, name))

    def _remove_finished(self) -> None:
        ended = [context for context in self._open.values() if not context.turn.accepts_text]
        self._open = {name: context for name, context in self._open.items() if context.turn.accepts_text}
        self._closed = [context for context in (*self._closed, *ended) if not context.turn.finished]

    def _contexts(self) -> list[SpeechContext]:
        return [*self._open.values(), *self._closed]

    async def _finish_contexts(self) -> None:
        """Send the audio of everything that was flushed, unless the client leaves."""
        for context in self._open.values():
            context.close()
        for context in self._contexts():
            await self._socket.receive(_ignore, context.finished)


async def _ignore(_data: str | bytes) -> None:
    """Drop messages that follow close_socket."""
