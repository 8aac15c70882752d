"""ElevenLabs' addresses: two sockets for text as it is written, two requests for text that is finished.

WS   /v1/text-to-speech/{voice}/stream-input         one answer
WS   /v1/text-to-speech/{voice}/multi-stream-input   many, each in a context
POST /v1/text-to-speech/{voice}[/stream]             the whole text, audio as it is spoken
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
from nightingale.server.bodies import SpeechBody
from nightingale.server.elevenlabs import MAX_CONTEXTS, POLICY_VIOLATION, Context, Terms, error_message
from nightingale.server.reply import SpeechReply
from nightingale.server.sockets import Outlet, admit, converse, hang_up, read_object, refuse, welcome

router = APIRouter()

DEFAULT_CONTEXT: Final = "default"


@router.websocket("/v1/text-to-speech/{voice_id}/stream-input")
async def stream_input(websocket: WebSocket, voice_id: str) -> None:
    if (terms := await _agreed(websocket, voice_id)) is not None:
        await Single(websocket, terms).run()


@router.websocket("/v1/text-to-speech/{voice_id}/multi-stream-input")
async def multi_stream_input(websocket: WebSocket, voice_id: str) -> None:
    if (terms := await _agreed(websocket, voice_id)) is not None:
        await Multi(websocket, terms).run()


async def _agreed(websocket: WebSocket, voice_id: str) -> Terms | None:
    """Accepted, and on what terms; what is wrong with them is said before the handshake."""
    if not await admit(websocket):
        return None
    try:
        terms = Terms.of(voice_id, websocket.query_params)
        await websocket.app.state.speaker.resolve_voice(voice_id)
    except NightingaleError as error:
        await refuse(websocket, error)
        return None
    await welcome(websocket)
    return terms


class TextBody(BaseModel):
    """The body of a request for a whole text; what is not named here is ignored."""

    text: str
    language_code: str | None = None
    seed: int | None = None
    voice_settings: dict[str, Any] | None = None


@router.post("/v1/text-to-speech/{voice_id}", tags=["elevenlabs"], response_class=Response)
@router.post("/v1/text-to-speech/{voice_id}/stream", tags=["elevenlabs"], response_class=Response)
async def text_to_speech(request: Request, voice_id: str, body: TextBody) -> Response:
    """The whole text, audio as it is spoken. µ-law is for sockets."""
    terms = Terms.of(voice_id, request.query_params)
    speed = (body.voice_settings or {}).get("speed")
    try:
        asked = SpeechBody.model_validate(
            {
                "input": body.text,
                "voice": voice_id,
                "response_format": terms.output.codec,
                "sample_rate": terms.output.sample_rate_hz,
                "language": body.language_code or terms.language,
                "seed": body.seed,
                "speed": 1.0 if speed is None else speed,
            }
        )
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    asked.check()
    state = request.app.state
    return SpeechReply(asked, state.speaker, state.encoders, bit_rate=terms.output.bit_rate)


@router.get("/v1/voices", tags=["elevenlabs"])
async def voices(request: Request) -> dict[str, list[dict[str, Any]]]:
    """The voices, as ElevenLabs lists them."""
    return {
        "voices": [
            {
                "voice_id": card.id,
                "name": card.id,
                "category": "premade" if card.builtin else "cloned",
                "description": card.description,
                "labels": {},
            }
            for card in await request.app.state.speaker.voices()
        ]
    }


class Single:
    """A socket with one answer; an empty text ends it, and the socket with it."""

    def __init__(self, websocket: WebSocket, terms: Terms) -> None:
        state = websocket.app.state
        self._websocket = websocket
        self._outlet = Outlet(websocket, state.settings.send_timeout)
        self._context = Context(
            None, terms, state.speaker, self._outlet, max_chars=state.settings.max_text_chars
        )

    async def run(self) -> None:
        turn = self._context.turn
        try:
            await converse(self._websocket, self._each, self._outlet.gone, self._context.over)
        finally:
            await turn.drop()
            await hang_up(self._websocket, 1000 if turn.error is None else POLICY_VIOLATION)

    async def _each(self, message: str | bytes) -> None:
        try:
            read = read_object(message)
            await self._context.write(read)
        except ConfigError as error:
            self._context.turn.fail(error)
            return
        if read.get("text") == "":
            self._context.turn.end()


class Multi:
    """A socket with many answers. What goes wrong in one context ends that context, and no other."""

    def __init__(self, websocket: WebSocket, terms: Terms) -> None:
        self._websocket, self._terms = websocket, terms
        self._state = websocket.app.state
        self._outlet = Outlet(websocket, self._state.settings.send_timeout)
        self._contexts: dict[str, Context] = {}
        self._closed: list[Context] = []
        """Contexts that take no more text, and are still being heard. Their names may be used again."""
        self._leaving = asyncio.Event()

    async def run(self) -> None:
        try:
            await converse(self._websocket, self._each, self._outlet.gone, self._leaving)
            if self._leaving.is_set() and not self._outlet.gone.is_set():
                await self._goodbye()
        finally:
            for context in self._all():
                await context.turn.drop()
            await hang_up(self._websocket)

    async def _each(self, message: str | bytes) -> None:
        name = None
        try:
            read = read_object(message)
            name = read.get("context_id", read.get("contextId"))
            name = None if name is None else str(name)[:200]
            await self._obey(name, read)
        except NightingaleError as error:
            told = error_message(error)
            await self._outlet.json(told if name is None else {**told, "contextId": name})

    async def _obey(self, name: str | None, message: dict[str, Any]) -> None:
        if message.get("close_socket"):
            self._leaving.set()
        elif message.get("close_context"):
            await self._close(name or DEFAULT_CONTEXT)
        elif message.get("text") or (name or DEFAULT_CONTEXT) in self._contexts:
            await self._context(name or DEFAULT_CONTEXT).write(message)
        elif name is None:
            for context in self._contexts.values():  # keeps the socket alive, and whoever is on it
                context.turn.touch()

    def _context(self, name: str) -> Context:
        self._forget()
        if name not in self._contexts:
            if len(self._all()) >= MAX_CONTEXTS:
                raise ConfigError(
                    "too many contexts on one socket",
                    got=f"{len(self._all())} open",
                    allowed=f"at most {MAX_CONTEXTS}",
                    fix="Close one first.",
                )
            self._contexts[name] = Context(
                name,
                self._terms,
                self._state.speaker,
                self._outlet,
                max_chars=self._state.settings.max_text_chars,
            )
        return self._contexts[name]

    async def _close(self, name: str) -> None:
        context = self._contexts.pop(name, None)
        if context is not None:
            context.close()
            self._closed.append(context)
            return
        again = [context for context in self._closed if context.name == name]
        for context in again:
            context.close()
        if not again:  # whoever closes what never was still waits for the answer
            await self._outlet.json({"audio": None, "isFinal": True, "contextId": name})

    def _forget(self) -> None:
        """Those that ended of themselves are closed; those that were heard are gone."""
        ended = [context for context in self._contexts.values() if not context.turn.writing]
        self._contexts = {name: one for name, one in self._contexts.items() if one.turn.writing}
        self._closed = [context for context in (*self._closed, *ended) if not context.turn.finished]

    def _all(self) -> list[Context]:
        return [*self._contexts.values(), *self._closed]

    async def _goodbye(self) -> None:
        """What was flushed is heard to its end, unless the client leaves; the rest is not."""
        for context in self._contexts.values():
            context.close()
        for context in self._all():
            await converse(self._websocket, _ignore, self._outlet.gone, context.over)


async def _ignore(_message: str | bytes) -> None:
    """After goodbye."""
