"""ElevenLabs' routes: two sockets for text as it is written, and HTTP for a whole text and the voices.

WS   /v1/text-to-speech/{voice}/stream-input         one answer
WS   /v1/text-to-speech/{voice}/multi-stream-input   many answers, each in a context
POST /v1/text-to-speech/{voice}[/stream]             a whole text; the audio streams
GET  /v1/voices
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, WebSocket
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.requests import HTTPConnection
from starlette.responses import Response

from nightingale.errors import ConfigError, NightingaleError
from nightingale.server.elevenlabs.contexts import (
    FINAL_MESSAGE,
    MAX_CONTEXTS,
    POLICY_VIOLATION,
    ContextTurn,
    UrlOptions,
    error_message,
    with_context,
)
from nightingale.server.openai.schemas import SpeechBody
from nightingale.server.openai.speech_response import SpeechResponse
from nightingale.server.service.speech_service import Service, SpeechService
from nightingale.server.websocket_io import ClientSocket, accept, parse_object

router = APIRouter()

DEFAULT_CONTEXT: Final = "default"


async def parse_options(connection: HTTPConnection, voice_id: str) -> UrlOptions:
    return UrlOptions.parse(voice_id, connection.query_params)


Options = Annotated[UrlOptions, Depends(parse_options)]


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


@router.post("/v1/text-to-speech/{voice_id}", tags=["elevenlabs"], response_class=Response)
@router.post("/v1/text-to-speech/{voice_id}/stream", tags=["elevenlabs"], response_class=Response)
async def text_to_speech(options: Options, body: TextBody, service: Service) -> Response:
    """Speak a text; the audio streams. µ-law is available on sockets only."""
    try:
        speech = SpeechBody.model_validate(
            {
                "input": body.text,
                "voice": options.voice,
                "response_format": options.output.codec,
                "sample_rate": options.output.sample_rate_hz,
                "language": body.language_code or options.language,
                "seed": body.seed,
                "speed": (body.voice_settings or {}).get("speed"),
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


class MultiStreamInputSocket:
    """A socket for many answers. An error ends only the context in which it occurs."""

    def __init__(self, socket: ClientSocket, options: UrlOptions, service: SpeechService) -> None:
        self._socket, self._options, self._service = socket, options, service
        self._contexts: list[ContextTurn] = []
        """Those that accept text, and those whose audio is still being sent. The names of the latter may be
        used again."""
        self._closing = asyncio.Event()

    async def run(self) -> None:
        try:
            await self._socket.receive(self._handle, self._closing)
            if self._closing.is_set() and not self._socket.gone.is_set():
                await self._finish_contexts()
        finally:
            for context in self._contexts:
                await context.drop()
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
        context = self._find_open(name or DEFAULT_CONTEXT)
        if message.get("close_socket"):
            self._closing.set()
        elif message.get("close_context"):
            await self._close(name or DEFAULT_CONTEXT)
        elif message.get("text") or context is not None:
            await (context or self._open(name or DEFAULT_CONTEXT)).write(message)
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
        if (context := self._find_open(name)) is not None:
            context.close()
            return
        again = [context for context in self._contexts if context.name == name]
        for context in again:
            context.close()
        if not again:  # the client waits for this message even if the context never existed
            await self._socket.json(with_context(FINAL_MESSAGE, name))

    async def _finish_contexts(self) -> None:
        """Send the audio of everything that was flushed, unless the client leaves."""
        for context in self._contexts:
            if context.accepts_text:
                context.close()
        for context in self._contexts:
            await self._socket.receive(_ignore, context.finished)


async def _ignore(_data: str | bytes) -> None:
    """Drop messages that follow close_socket."""
