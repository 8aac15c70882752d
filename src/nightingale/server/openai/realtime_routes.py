"""OpenAI's Realtime API, as far as it is about speech: `WS /v1/realtime`.

There is no language model here: a response speaks the text of messages word by word. docs/websocket.md says
which text that is, and lists the events. With the header `OpenAI-Beta: realtime=v1`, events have the names
of the beta version.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, WebSocket

from nightingale.errors import ConfigError, EmptyText, NightingaleError
from nightingale.server.http_errors import http_error
from nightingale.server.openai.realtime_conversation import RealtimeConversation, new_id
from nightingale.server.openai.realtime_response import RealtimeResponse
from nightingale.server.openai.realtime_settings import RealtimeSettings
from nightingale.server.service.speech_service import Service, SpeechService
from nightingale.server.service.speech_turns import ClientGone, TurnQueue, log
from nightingale.server.websocket_io import ClientSocket, accept, parse_object

router = APIRouter()

SUBPROTOCOL: Final = "realtime"
ACCEPTED: Final = (
    "session.update, conversation.item.create, conversation.item.delete, conversation.item.retrieve, "
    "conversation.item.truncate, response.create, response.cancel"
)


@router.websocket("/v1/realtime")
async def realtime(websocket: WebSocket, service: Service) -> None:
    """Speak messages. The query parameter `model` is ignored: the loaded model speaks."""
    beta = "realtime=v1" in websocket.headers.get("openai-beta", "")
    await RealtimeApiConnection(await accept(websocket, SUBPROTOCOL), service, beta=beta).run()


class RealtimeApiConnection:
    """One socket: a session with one conversation."""

    def __init__(self, socket: ClientSocket, service: SpeechService, *, beta: bool) -> None:
        self._socket, self._service = socket, service
        self._conversation = RealtimeConversation(socket, beta=beta)
        self._settings, self._session_id = RealtimeSettings(), new_id("sess")
        self._turns = TurnQueue()
        self._refused: set[str] = set()
        """Events with audio of the client. They are many, so each type is refused once."""

    async def run(self) -> None:
        try:
            await self._send_session("created")
            conversation = {"id": self._conversation.id, "object": "realtime.conversation"}
            await self._conversation.send("conversation.created", conversation=conversation)
            await self._socket.receive(self._handle)
        except ClientGone:
            log.info("a client left before the session began")
        finally:
            await self._turns.drop()
            await self._socket.close()

    async def _handle(self, data: str | bytes) -> None:
        event: dict[str, Any] = {}
        try:
            event = parse_object(data)
            await self._dispatch(event)
        except NightingaleError as error:
            cause = event.get("event_id")
            body = {
                **http_error(error).envelope["error"],
                "event_id": cause if isinstance(cause, str) else None,
            }
            await self._conversation.send("error", error=body)

    async def _dispatch(self, event: dict[str, Any]) -> None:
        conversation, kind, item_id = self._conversation, event.get("type"), event.get("item_id")
        match kind:
            case "session.update":
                settings = self._settings.changed(event.get("session"))
                await self._service.check(**settings.request)
                self._settings = settings
                await self._send_session("updated")
            case "conversation.item.create":
                await conversation.add(event.get("item"))
            case "conversation.item.delete":
                conversation.remove(item_id)
                await conversation.send("conversation.item.deleted", item_id=item_id)
            case "conversation.item.retrieve":
                await conversation.send("conversation.item.retrieved", item=conversation.find(item_id))
            case "conversation.item.truncate":  # what was sent was sent; response.cancel stops the engine
                fields = {name: _count(event, name) for name in ("content_index", "audio_end_ms")}
                conversation.find(item_id)
                await conversation.send("conversation.item.truncated", item_id=item_id, **fields)
            case "response.create":
                await self._respond(event.get("response") or {})
            case "response.cancel":
                self._cancel(event.get("response_id"))
            case str() if kind.startswith("input_audio_buffer."):
                if kind not in self._refused:
                    self._refused.add(kind)
                    raise ConfigError("this server does not listen", got=kind, allowed=ACCEPTED, param="type")
            case _:
                got = repr(kind)[:80]
                raise ConfigError("unknown type of event", got=got, allowed=ACCEPTED, param="type")

    async def _respond(self, given: object) -> None:
        settings = self._settings.changed(given)
        assert isinstance(given, dict)
        text = self._conversation.text_for(given)
        if not text.strip():
            fix = "Add a message with text, or give input or instructions."
            raise EmptyText("there is nothing to say", fix=fix)
        self._service.check_length(len(text))
        response = RealtimeResponse(self._conversation, self._service, settings, given)
        self._turns.add(response)
        if not isinstance(given.get("input"), list):
            self._conversation.unspoken = []
        await response.announce()
        await response.push(text)
        response.end()

    def _cancel(self, response_id: object) -> None:
        active = [
            turn
            for turn in self._turns
            if isinstance(turn, RealtimeResponse)
            and not turn.finished.is_set()
            and response_id in (None, turn.id)
        ]
        if not active:
            raise ConfigError("no response is active", param="response_id")
        for turn in active:
            turn.cancel()

    async def _send_session(self, what: str) -> None:
        session = {
            "id": self._session_id,
            "object": "realtime.session",
            "type": "realtime",
            "model": self._service.model.id,
            **self._settings.describe(beta=self._conversation.beta),
        }
        await self._conversation.send(f"session.{what}", session=session)


def _count(event: dict[str, Any], name: str) -> int:
    value = event.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError("not a number", got=repr(value)[:80], param=name)
    return value
