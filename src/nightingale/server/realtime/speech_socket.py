"""The WebSocket for text that is still being written: `WS /v1/audio/speech/stream`.

One socket carries many turns. A turn starts with its first text and ends with input_text.end; the audio of
the turns is sent one after the other. docs/websocket.md documents the protocol for clients.
"""

from __future__ import annotations

import base64
from typing import Any

from fastapi import APIRouter, WebSocket
from pydantic import ConfigDict, ValidationError

from nightingale.engine.captions import words_json
from nightingale.engine.stream_capacity import QueuePlace
from nightingale.errors import ConfigError, NightingaleError
from nightingale.server.http_errors import http_error
from nightingale.server.metrics import metrics_json
from nightingale.server.openai.speech_routes import Lexicon, ResponseFormat, Timestamps
from nightingale.server.request_fields import RequestBody, with_request_options
from nightingale.server.service.queue_reports import queued_event
from nightingale.server.service.speech_service import Service, SpeechService
from nightingale.server.service.speech_streams import OutputFormat, Timings
from nightingale.server.service.speech_turns import ClientGone, SpeechTurn, TurnQueue, check_text, log
from nightingale.server.websocket_io import ClientSocket, accept, parse_object

router = APIRouter()


@with_request_options
class SessionOptions(RequestBody):
    """The options that `session.update` sets for the turns that start after it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    voice: str | dict[str, str] | None = None
    response_format: ResponseFormat = "pcm"
    sample_rate: int | None = None
    binary: bool = True
    timestamps: Timestamps = "none"
    lexicon: Lexicon = None

    def output(self, service: SpeechService) -> OutputFormat:
        rate_hz = service.sample_rate_hz if self.sample_rate is None else self.sample_rate
        return OutputFormat(self.response_format, rate_hz)


@router.websocket("/v1/audio/speech/stream")
async def speech_stream(websocket: WebSocket, service: Service) -> None:
    await RealtimeConnection(await accept(websocket), service).run()


class RealtimeConnection:
    """One socket, from its opening to its closing."""

    def __init__(self, socket: ClientSocket, service: SpeechService) -> None:
        self._socket, self._service = socket, service
        self._options = SessionOptions()
        self._turns = TurnQueue()
        self._turn_count = 0

    async def run(self) -> None:
        try:
            await self._send_session("created")
            await self._socket.receive(self._handle)
        except ClientGone:
            log.info("a client left before the session began")
        finally:
            await self._turns.drop()
            await self._socket.close()

    async def _handle(self, data: str | bytes) -> None:
        try:
            await self._dispatch(parse_object(data))
        except NightingaleError as error:
            await self._socket.json({"type": "error", **http_error(error).envelope})

    async def _dispatch(self, message: dict[str, Any]) -> None:
        match message.get("type"):
            case "input_text.append":
                text = check_text(message.get("text"))
                await (self._turns.writing or self._open_turn()).push(text)
            case "input_text.flush":
                if self._turns.writing is not None:
                    self._turns.writing.flush()
            case "input_text.end":
                (self._turns.writing or self._open_turn()).end()
            case "response.cancel":
                for turn in self._turns:
                    turn.cancel()
            case "session.update":
                await self._update(message.get("session"))
                await self._send_session("updated")
            case "ping":
                await self._socket.json({"type": "pong"})
            case other:
                raise ConfigError(
                    "unknown type of message",
                    got=repr(other)[:80],
                    allowed="session.update, input_text.append, input_text.flush, input_text.end, "
                    "response.cancel, ping",
                )

    def _open_turn(self) -> SpeechTurn:
        turn_id = f"r{self._turn_count + 1}"
        turn = self._turns.add(RealtimeTurn(turn_id, self._options, self._socket, self._service))
        self._turn_count += 1
        return turn

    async def _update(self, changes: object) -> None:
        """Apply all changes, or none if one of them is invalid."""
        if not isinstance(changes, dict):
            raise ConfigError("the session is not an object", got=repr(changes)[:80], fix="Send `session`.")
        try:
            options = SessionOptions.model_validate({**self._options.model_dump(), **changes})
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError(
                f"session.{'.'.join(str(part) for part in first['loc'])} is invalid",
                got=repr(first["input"])[:80],
                allowed=first["msg"],
                fix=f"The fields are {', '.join(SessionOptions.model_fields)}.",
                param=str(first["loc"][0]) if first["loc"] else None,
            ) from error
        options.output(self._service)
        await self._service.check(**options.request)
        self._options = options

    async def _send_session(self, what: str) -> None:
        await self._socket.json({"type": f"session.{what}", "session": self._options.model_dump()})


class RealtimeTurn(SpeechTurn):
    """A turn with the options that held when it started."""

    def __init__(
        self, turn_id: str, options: SessionOptions, socket: ClientSocket, service: SpeechService
    ) -> None:
        super().__init__(service, options.request, options.output(service))
        self._id, self._options, self._socket = turn_id, options, socket

    async def send_queued(self, place: QueuePlace) -> None:
        await self._socket.json({**queued_event(place), "id": self._id})

    async def send_start(self) -> None:
        output = self._output
        await self._send("start", sample_rate=output.sample_rate_hz, response_format=output.codec)

    async def send_audio(self, timings: Timings, data: bytes) -> None:
        if timings.segments and self._options.timestamps == "segment":
            segments = [segment.model_dump() for segment in timings.segments]
            await self._send("segments", segments=segments)
        if timings.words:
            await self._send("words", words=words_json(timings.words))
        if data and self._options.binary:
            await self._socket.binary(data)
        elif data:
            await self._send("delta", audio=base64.b64encode(data).decode())

    async def send_end(self) -> None:
        if self.error is not None:
            await self._socket.json({"type": "error", "id": self._id, **http_error(self.error).envelope})
            return
        # The clock starts with the first text of the turn, so the pauses of the writer count.
        metrics = metrics_json(self.metrics, tokens=self.metrics.tokens, retries=self.metrics.retries)
        event = "cancelled" if self.cancelled else "done"
        await self._send(event, metrics=metrics, warnings=self.warnings)

    async def _send(self, event: str, **fields: Any) -> None:
        await self._socket.json({"type": f"speech.audio.{event}", "id": self._id, **fields})
