"""ElevenLabs' socket protocol, as far as voice agents use it: contexts in, audio out.

The clients of LiveKit, Pipecat and ElevenLabs itself were the specification; docs/websocket.md lists what is
answered and what is ignored. Word times are not known to the engine, so `alignment` is null, which all three
accept.
"""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nightingale.errors import ConfigError, NightingaleError
from nightingale.server.problems import envelope
from nightingale.server.sockets import Outlet
from nightingale.server.speaker import Speaker
from nightingale.server.turn import Recording, Turn
from nightingale.types import AudioChunk

MAX_CONTEXTS: Final = 16
"""Of one socket at a time. ElevenLabs' own five are what agents with quick-tongued users run into."""
POLICY_VIOLATION: Final = 1008


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat:
    """`mp3_22050_32`: a codec, samples per second, and kilobits per second where that is a choice."""

    codec: str
    sample_rate_hz: int
    kbps: int | None = None

    @property
    def bit_rate(self) -> int | None:
        """In bits per second, as encoders count."""
        return None if self.kbps is None else 1000 * self.kbps


def _formats() -> dict[str, OutputFormat]:
    pcm = [("pcm", rate, None) for rate in (8000, 16000, 22050, 24000, 32000, 44100, 48000)]
    mp3 = [("mp3", 22050, 32), ("mp3", 24000, 48), *(("mp3", 44100, kbps) for kbps in (32, 64, 96, 128, 192))]
    opus = [("opus", 48000, kbps) for kbps in (32, 64, 96, 128, 192)]
    return {
        "_".join(str(part) for part in (codec, rate, kbps) if part is not None): OutputFormat(
            codec=codec, sample_rate_hz=rate, kbps=kbps
        )
        for codec, rate, kbps in [*pcm, *mp3, *opus, ("ulaw", 8000, None)]
    }


FORMATS: Final[Mapping[str, OutputFormat]] = _formats()
DEFAULT_FORMAT: Final = "mp3_44100_128"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the address of a socket says: /v1/text-to-speech/{voice}/…?output_format=…"""

    voice: str
    output: OutputFormat
    language: str | None
    auto_mode: bool
    """Each message is a sentence or phrase, to be spoken at once."""
    inactivity_s: float

    @classmethod
    def of(cls, voice: str, query: Mapping[str, str]) -> Terms:
        name = query.get("output_format", DEFAULT_FORMAT)
        if name not in FORMATS:
            raise ConfigError(
                "unknown output_format",
                got=repr(name),
                allowed=", ".join(FORMATS),
                fix="Use one of these.",
                param="output_format",
            )
        try:
            inactivity_s = float(query.get("inactivity_timeout", 20))
        except ValueError:
            inactivity_s = 20.0
        if math.isnan(inactivity_s):  # it is a number to Python, and a timer of it would never be in order
            inactivity_s = 20.0
        return cls(
            voice=voice,
            output=FORMATS[name],
            language=query.get("language_code") or None,
            auto_mode=query.get("auto_mode", "false").lower() == "true",
            inactivity_s=min(max(inactivity_s, 5.0), 180.0),
        )


class Context:
    """One stream of text and its audio. A plain `stream-input` socket is one of these without a name."""

    def __init__(
        self, name: str | None, terms: Terms, speaker: Speaker, outlet: Outlet, *, max_chars: int
    ) -> None:
        self.name = name
        self.over = asyncio.Event()
        self._terms, self._outlet = terms, outlet
        self._recording: Recording | None = None
        self._flush_asked = True
        self._request: dict[str, Any] = {"voice": terms.voice, "language": terms.language}
        self.turn = Turn(
            speaker,
            self._request,
            heard=self._heard,
            over=self._over,
            max_chars=max_chars,
            abandoned_s=terms.inactivity_s,
        )

    async def write(self, message: dict[str, Any]) -> None:
        """Text, perhaps with the word to speak it now. Neither of them keeps the context alive."""
        text, flush, settings = message.get("text"), bool(message.get("flush")), message.get("voice_settings")
        if text is not None and not isinstance(text, str):
            raise ConfigError("this is no text", got=repr(text)[:80], allowed="a string", fix="Send `text`.")
        if isinstance(settings, dict) and isinstance(settings.get("speed"), int | float):
            self._request["speed"] = float(settings["speed"])  # what was said before stays as it was
        if text:
            await self.turn.push(text)
            self._flush_asked = False
        if flush:
            self._flush_asked = True
        if flush or (text and self._terms.auto_mode):
            self.turn.flush()
        elif not text:
            self.turn.touch()

    def close(self) -> None:
        """No more text. What was flushed is still heard; a context closed without a flush is an interruption,
        and so is closing it again while it is still being heard."""
        if self.turn.writing and self._flush_asked:
            self.turn.end()
        else:
            self.turn.cancel()

    async def _heard(self, chunk: AudioChunk) -> None:
        if self._recording is None:
            output = self._terms.output
            self._recording = Recording(output.codec, output.sample_rate_hz, output.bit_rate)
        await self._audio(await self._recording.feed(chunk))

    async def _over(self, turn: Turn) -> None:
        if turn.error is not None:
            await self._outlet.json(self._named(error_message(turn.error)))
        elif self._recording is not None and not turn.cancelled:
            await self._audio(await self._recording.finish())
        await self._outlet.json(self._named({"audio": None, "isFinal": True}))
        self.over.set()

    async def _audio(self, data: bytes) -> None:
        if data:
            coded = base64.b64encode(data).decode()
            await self._outlet.json(
                self._named({"audio": coded, "isFinal": None, "alignment": None, "normalizedAlignment": None})
            )

    def _named(self, message: dict[str, Any]) -> dict[str, Any]:
        return message if self.name is None else {**message, "contextId": self.name}


def error_message(error: NightingaleError) -> dict[str, Any]:
    """As ElevenLabs words it: `error` is a short code, `message` a sentence."""
    told = envelope(error)["error"]
    return {"message": told["message"], "error": told["code"] or told["type"], "code": POLICY_VIOLATION}
