"""The WebSocket for text that is still being written: `WS /v1/audio/speech/stream`.

    C session.update {voice, …}    S session.created, session.updated
    C input_text.append {text} …   S speech.audio.start, then binary audio or speech.audio.delta
    C input_text.flush             S speech.audio.done {metrics}
    C input_text.end               S speech.audio.segments, if timestamps were requested
    C response.cancel              S speech.audio.cancelled

One socket carries many turns. A turn starts with its first text and ends with input_text.end; the audio of
the turns is sent one after the other. docs/websocket.md documents the protocol for clients.
"""

from __future__ import annotations

import base64
from typing import Any

from fastapi import APIRouter, WebSocket
from pydantic import ConfigDict, ValidationError

from nightingale.audio.encoders.streaming import check_format
from nightingale.errors import ConfigError, NightingaleError
from nightingale.server.http_errors import error_envelope
from nightingale.server.metrics import metrics_json
from nightingale.server.openai.schemas import NullableBody, ResponseFormat
from nightingale.server.service.async_encoder import AsyncEncoder
from nightingale.server.service.dependencies import Service
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.service.speech_turns import SpeechTurn, TurnQueue, check_text
from nightingale.server.service.timestamps import SegmentTimer, TimedSegment, Timestamps, check_timestamps
from nightingale.server.websocket_io import ClientSocket, accept, authorize, parse_object
from nightingale.types import AudioChunk

router = APIRouter()


class SessionOptions(NullableBody):
    """The options that `session.update` sets for the turns that start after it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    voice: str | dict[str, str] | None = None
    language: str | None = None
    response_format: ResponseFormat = "pcm"
    sample_rate: int | None = None
    binary: bool = True
    timestamps: Timestamps = "none"
    seed: int | None = None
    speed: float | None = None
    temperature: float | None = None
    exaggeration: float | None = None
    cfg_weight: float | None = None

    @property
    def request(self) -> dict[str, Any]:
        """Return the arguments of `SpeechService.session`."""
        return self.model_dump(
            exclude={"response_format", "sample_rate", "binary", "timestamps"}, exclude_none=True
        )


@router.websocket("/v1/audio/speech/stream")
async def speech_stream(websocket: WebSocket, service: Service) -> None:
    if await authorize(websocket):
        await RealtimeConnection(await accept(websocket), service).run()


class RealtimeConnection:
    """One socket, from its opening to its closing."""

    def __init__(self, socket: ClientSocket, service: SpeechService) -> None:
        self._socket, self._service = socket, service
        self._options = SessionOptions()
        self._turns = TurnQueue(service, service.settings.max_text_chars)
        self._turn_count = 0

    async def run(self) -> None:
        try:
            await self._send_session("created")
            await self._socket.receive(self._handle)
        finally:
            await self._turns.drop()
            await self._socket.close()

    async def _handle(self, data: str | bytes) -> None:
        try:
            await self._dispatch(parse_object(data))
        except NightingaleError as error:
            await self._socket.json({"type": "error", **error_envelope(error)})

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
                for turn in self._turns.turns:
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
        sender = TurnSender(f"r{self._turn_count + 1}", self._options, self._socket, self._service)
        turn = self._turns.open(self._options.request, sender.on_audio, sender.on_end)
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
        check_timestamps(options.timestamps)
        check_format(options.response_format, options.sample_rate or self._service.sample_rate_hz)
        await self._service.check(**options.request)
        self._options = options

    async def _send_session(self, what: str) -> None:
        await self._socket.json({"type": f"session.{what}", "session": self._options.model_dump()})


class TurnSender:
    """Sends the audio and the events of one turn."""

    def __init__(
        self, turn_id: str, options: SessionOptions, socket: ClientSocket, service: SpeechService
    ) -> None:
        self._id, self._options, self._socket, self._service = turn_id, options, socket, service
        self._encoder: AsyncEncoder | None = None
        self._timer = SegmentTimer(enabled=options.timestamps == "segment")

    async def on_audio(self, chunk: AudioChunk) -> None:
        if self._encoder is None:
            form, rate_hz = self._options.response_format, self._options.sample_rate or chunk.sample_rate_hz
            self._encoder = self._service.open_encoder(form, rate_hz, None)
            await self._send("start", sample_rate=rate_hz, response_format=form)
        await self._send_segments(self._timer.add(chunk))
        await self._send_audio(await self._encoder.encode(chunk.samples))

    async def on_end(self, turn: SpeechTurn) -> None:
        if turn.error is not None:
            await self._socket.json({"type": "error", "id": self._id, **error_envelope(turn.error)})
            return
        if not turn.cancelled:
            if self._encoder is not None:
                await self._send_audio(self._encoder.finish())
            await self._send_segments(self._timer.finish())
        # The clock starts with the first text of the turn, so the pauses of the writer count.
        metrics = metrics_json(turn.metrics, tokens=turn.metrics.tokens, retries=turn.metrics.retries)
        await self._send("cancelled" if turn.cancelled else "done", metrics=metrics)

    async def _send_audio(self, data: bytes) -> None:
        if data and self._options.binary:
            await self._socket.binary(data)
        elif data:
            await self._send("delta", audio=base64.b64encode(data).decode())

    async def _send_segments(self, segments: list[TimedSegment]) -> None:
        if segments:
            await self._send("segments", segments=[segment.model_dump() for segment in segments])

    async def _send(self, event: str, **fields: Any) -> None:
        await self._socket.json({"type": f"speech.audio.{event}", "id": self._id, **fields})
