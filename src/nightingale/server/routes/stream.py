"""The socket for text that is still being written: `WS /v1/audio/speech/stream`.

    C session.update {voice, …}    S session.created, session.updated
    C input_text.append {text} …   S speech.audio.start, then binary audio or speech.audio.delta
    C input_text.flush             S speech.audio.done {metrics}
    C input_text.end               S speech.audio.segments, if timestamps were asked for
    C response.cancel              S speech.audio.cancelled

One socket carries many turns. A turn begins with its first text and ends with input_text.end; turns are heard
one after the other. docs/websocket.md tells clients the rest.
"""

from __future__ import annotations

import base64
from typing import Any, Final, Literal

from fastapi import APIRouter, WebSocket
from pydantic import ConfigDict, ValidationError

from nightingale.audio.encoders.streaming import check_format
from nightingale.errors import ConfigError, NightingaleError
from nightingale.server.bodies import Asked
from nightingale.server.problems import envelope
from nightingale.server.sockets import Outlet, admit, converse, hang_up, read_object, welcome
from nightingale.server.timeline import Segment, Timeline, Timestamps, check_timestamps
from nightingale.server.turn import Recording, Turn
from nightingale.types import AudioChunk, Metrics

router = APIRouter()

MAX_PENDING: Final = 4
"""Turns of one socket that may wait behind each other."""


class SpeechSession(Asked):
    """What `session.update` may set; it holds for the turns that begin after it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    voice: str | dict[str, str] | None = None
    language: str | None = None
    response_format: Literal["pcm", "wav", "mp3", "opus", "aac", "flac"] = "pcm"
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
        """What the engine is asked for."""
        asked = self.model_dump(exclude={"response_format", "sample_rate", "binary", "timestamps"})
        return {name: value for name, value in asked.items() if value is not None}


@router.websocket("/v1/audio/speech/stream")
async def speech_stream(websocket: WebSocket) -> None:
    if await admit(websocket):
        await welcome(websocket)
        await Conversation(websocket).run()


class Conversation:
    """One socket, from its opening to its closing."""

    def __init__(self, websocket: WebSocket) -> None:
        state = websocket.app.state
        self._websocket, self._speaker, self._settings = websocket, state.speaker, state.settings
        self._outlet = Outlet(websocket, self._settings.send_timeout)
        self._session = SpeechSession()
        self._turns: list[Turn] = []
        """Those not yet over, in order; the last may still be taking text."""
        self._count = 0

    async def run(self) -> None:
        try:
            await self._outlet.json({"type": "session.created", "session": self._shown()})
            await converse(self._websocket, self._each, self._outlet.gone)
        finally:
            for turn in self._turns:
                await turn.drop()
            await hang_up(self._websocket)

    async def _each(self, message: str | bytes) -> None:
        try:
            await self._obey(read_object(message))
        except NightingaleError as error:
            await self._outlet.json({"type": "error", **envelope(error)})

    async def _obey(self, message: dict[str, Any]) -> None:
        match message.get("type"):
            case "input_text.append":
                text = message.get("text")
                if not isinstance(text, str):
                    raise ConfigError("no text", got=repr(text)[:80], allowed="a string", fix="Send `text`.")
                await (self._writing or self._open()).push(text)
            case "input_text.flush":
                if self._writing is not None:
                    self._writing.flush()
            case "input_text.end":
                (self._writing or self._open()).end()
            case "response.cancel":
                for turn in self._turns:
                    turn.cancel()
            case "session.update":
                await self._update(message.get("session"))
                await self._outlet.json({"type": "session.updated", "session": self._shown()})
            case "ping":
                await self._outlet.json({"type": "pong"})
            case other:
                raise ConfigError(
                    "unknown type of message",
                    got=repr(other)[:80],
                    allowed="session.update, input_text.append, input_text.flush, input_text.end, "
                    "response.cancel, ping",
                    fix="Send one of these.",
                )

    @property
    def _writing(self) -> Turn | None:
        """The turn that still takes text."""
        return self._turns[-1] if self._turns and self._turns[-1].writing else None

    def _open(self) -> Turn:
        self._turns = [turn for turn in self._turns if not turn.finished]
        if len(self._turns) >= MAX_PENDING:
            raise ConfigError(
                "too many turns at once",
                got=f"{len(self._turns)} not yet heard",
                allowed=f"at most {MAX_PENDING}",
                fix="Wait for speech.audio.done, or send response.cancel.",
            )
        self._count += 1
        reply = Reply(f"r{self._count}", self._session, self._outlet)
        turn = Turn(
            self._speaker,
            self._session.request,
            heard=reply.heard,
            over=reply.over,
            max_chars=self._settings.max_text_chars,
            after=self._turns[-1] if self._turns else None,
        )
        self._turns.append(turn)
        return turn

    async def _update(self, changes: object) -> None:
        """All of the changes or, if one of them cannot be, none."""
        try:
            if not isinstance(changes, dict):
                raise ConfigError(
                    "no session", got=repr(changes)[:80], allowed="an object", fix="Send `session`."
                )
            session = SpeechSession.model_validate({**self._session.model_dump(), **changes})
            check_timestamps(session.timestamps)
            check_format(session.response_format, session.sample_rate or self._speaker.sample_rate_hz)
            await self._speaker.check(**session.request)
            self._session = session
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError(
                f"session.{'.'.join(str(part) for part in first['loc'])} cannot be right",
                got=repr(first["input"])[:80],
                allowed=first["msg"],
                fix=f"The fields are {', '.join(SpeechSession.model_fields)}.",
                param=str(first["loc"][0]) if first["loc"] else None,
            ) from error

    def _shown(self) -> dict[str, Any]:
        return self._session.model_dump()


class Reply:
    """How one turn sounds on the wire."""

    def __init__(self, name: str, session: SpeechSession, outlet: Outlet) -> None:
        self._name, self._session, self._outlet = name, session, outlet
        self._recording: Recording | None = None
        self._timeline = Timeline() if session.timestamps == "segment" else None

    async def heard(self, chunk: AudioChunk) -> None:
        if self._recording is None:
            rate_hz = self._session.sample_rate or chunk.sample_rate_hz
            self._recording = Recording(self._session.response_format, rate_hz)
            await self._tell("start", sample_rate=rate_hz, response_format=self._session.response_format)
        if self._timeline is not None:
            await self._segments(self._timeline.heard(chunk))
        await self._audio(await self._recording.feed(chunk))

    async def over(self, turn: Turn) -> None:
        if turn.error is not None:
            await self._outlet.json({"type": "error", "id": self._name, **envelope(turn.error)})
        elif turn.cancelled:
            await self._tell("cancelled", metrics=shown(turn.metrics))
        else:
            if self._recording is not None:
                await self._audio(await self._recording.finish())
            if self._timeline is not None:
                await self._segments(self._timeline.finish())
            await self._tell("done", metrics=shown(turn.metrics))

    async def _audio(self, data: bytes) -> None:
        if not data:
            return
        if self._session.binary:
            await self._outlet.binary(data)
        else:
            await self._tell("delta", audio=base64.b64encode(data).decode())

    async def _segments(self, ended: list[Segment]) -> None:
        if ended:
            await self._tell("segments", segments=[segment.model_dump() for segment in ended])

    async def _tell(self, what: str, **more: Any) -> None:
        await self._outlet.json({"type": f"speech.audio.{what}", "id": self._name, **more})


def shown(metrics: Metrics) -> dict[str, float | None]:
    """What a turn cost. Its clock starts with its first text, so the writer's own pauses count."""
    return {
        "ttfa_ms": round(metrics.ttfa_ms, 1),
        "queue_ms": round(metrics.queue_ms, 1),
        "total_ms": round(metrics.total_ms, 1),
        "audio_seconds": round(metrics.audio_seconds, 3),
        "rtf": round(metrics.rtf, 4) if metrics.audio_seconds else None,
        "tokens": metrics.tokens,
        "tokens_per_s": round(metrics.tokens_per_s, 1),
        "retries": metrics.retries,
    }
