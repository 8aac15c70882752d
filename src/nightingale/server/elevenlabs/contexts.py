"""ElevenLabs' WebSocket protocol as voice agents use it: output formats, options and contexts.

It follows the clients of LiveKit, Pipecat and ElevenLabs; docs/websocket.md lists what is supported. It has
no word timestamps, so `alignment` is null, which all three accept.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nightingale.errors import ConfigError, NightingaleError
from nightingale.server.http_errors import error_envelope
from nightingale.server.service.async_encoder import OutputFormat
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.service.speech_turns import SpeechTurn, check_text
from nightingale.server.service.timestamps import TimedSegment
from nightingale.server.websocket_io import ClientSocket

MAX_CONTEXTS: Final = 16
"""Per socket. ElevenLabs' own limit of 5 is too low for agents that are interrupted often."""
POLICY_VIOLATION: Final = 1008
FINAL_MESSAGE: Final = {"audio": None, "isFinal": True}
OUTPUT_FORMATS: Final = (
    *(f"pcm_{rate_hz}" for rate_hz in (8000, 16000, 22050, 24000, 32000, 44100, 48000)),
    *("mp3_22050_32", "mp3_24000_48", *(f"mp3_44100_{kbps}" for kbps in (32, 64, 96, 128, 192))),
    *(f"opus_48000_{kbps}" for kbps in (32, 64, 96, 128, 192)),
    "ulaw_8000",
)
"""Codec, sample rate, and kilobits per second for lossy codecs."""
DEFAULT_FORMAT: Final = "mp3_44100_128"


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

    @classmethod
    def parse(cls, voice: str, query: Mapping[str, str]) -> UrlOptions:
        try:
            inactivity_s = float(query["inactivity_timeout"])
        except (KeyError, ValueError):
            inactivity_s = math.nan
        if math.isnan(inactivity_s):  # asyncio could not order a timer with it
            inactivity_s = 20.0
        return cls(
            voice=voice,
            output=parse_format(query.get("output_format", DEFAULT_FORMAT)),
            language=query.get("language_code") or None,
            auto_mode=query.get("auto_mode", "false").lower() == "true",
            inactivity_s=min(max(inactivity_s, 5.0), 180.0),
        )


class ContextTurn(SpeechTurn):
    """One stream of text and its audio. A `stream-input` socket has one context without a name."""

    def __init__(
        self, name: str | None, options: UrlOptions, service: SpeechService, socket: ClientSocket
    ) -> None:
        request = {"voice": options.voice, "language": options.language}
        super().__init__(service, request, options.output, abandoned_s=options.inactivity_s)
        self.name = name
        self._auto_mode, self._socket = options.auto_mode, socket
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

    async def send_audio(self, segments: list[TimedSegment], data: bytes) -> None:  # noqa: ARG002
        if data:
            audio = base64.b64encode(data).decode()
            message = {"audio": audio, "isFinal": None, "alignment": None, "normalizedAlignment": None}
            await self._socket.json(with_context(message, self.name))

    async def send_end(self) -> None:
        if self.error is not None:
            await self._socket.json(with_context(error_message(self.error), self.name))
        await self._socket.json(with_context(FINAL_MESSAGE, self.name))


def with_context(message: dict[str, Any], name: str | None) -> dict[str, Any]:
    return message if name is None else {**message, "contextId": name}


def error_message(error: NightingaleError) -> dict[str, Any]:
    """Format an error as ElevenLabs does: `error` is a short code, `message` a sentence."""
    body = error_envelope(error)["error"]
    return {"message": body["message"], "error": body["code"] or body["type"], "code": POLICY_VIOLATION}
