"""The settings of OpenAI's Realtime API that concern speech, as `session.update` and `response.create` send them.

The beta version of the API has other names for them; both are accepted. Everything else, such as tools and
turn detection, is for a language model and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import ConfigDict, ValidationError

from nightingale.errors import ConfigError
from nightingale.request_options import OPTIONS
from nightingale.server.openai.speech_routes import VoiceRef
from nightingale.server.request_fields import RequestBody, with_request_options
from nightingale.server.service.speech_streams import OutputFormat

AudioType = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
CODECS: Final[Mapping[AudioType, str]] = {"audio/pcm": "pcm", "audio/pcmu": "ulaw", "audio/pcma": "alaw"}
BETA_FORMATS: Final[Mapping[AudioType, str]] = {
    "audio/pcm": "pcm16",
    "audio/pcmu": "g711_ulaw",
    "audio/pcma": "g711_alaw",
}
PCM_RATE_HZ: Final = 24_000
TELEPHONY_RATE_HZ: Final = 8_000


@with_request_options
class RealtimeSettings(RequestBody):
    """The voice, format and speed of responses: of a session, or of one response."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    voice: str | VoiceRef | None = None
    format: AudioType = "audio/pcm"

    def changed(self, given: object) -> RealtimeSettings:
        """Return these settings with those of a session or response object, or raise ConfigError."""
        if not isinstance(given, Mapping):
            raise ConfigError("not an object", got=repr(given)[:80], param="session")
        modalities = given.get("output_modalities", given.get("modalities")) or ["audio"]
        if not isinstance(modalities, list) or "audio" not in modalities:
            raise ConfigError(
                "this server only speaks",
                got=repr(modalities)[:80],
                allowed='["audio"]',
                param="output_modalities",
            )
        try:
            return RealtimeSettings.model_validate(self.model_dump() | _speech_fields(given))
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            raise ConfigError(
                f"{name} is invalid", got=repr(first["input"])[:80], allowed=first["msg"], param=name
            ) from error

    @property
    def output(self) -> OutputFormat:
        return OutputFormat(
            CODECS[self.format], PCM_RATE_HZ if self.format == "audio/pcm" else TELEPHONY_RATE_HZ
        )

    def describe(self, *, beta: bool) -> dict[str, Any]:
        """Return them as the fields of a session or response object."""
        speed = self.request.get("speed", OPTIONS["speed"].default)
        voice = self.voice.id if isinstance(self.voice, VoiceRef) else self.voice
        if beta:
            names = {"voice": voice, "output_audio_format": BETA_FORMATS[self.format], "speed": speed}
            return {"modalities": ["audio", "text"], **names}
        form = {"type": self.format, **({"rate": PCM_RATE_HZ} if self.format == "audio/pcm" else {})}
        output = {"format": form, "voice": voice, "speed": speed}
        return {"output_modalities": ["audio"], "audio": {"output": output}}


def _speech_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given fields under the names of `RealtimeSettings`."""
    audio = given.get("audio")
    output = audio.get("output") if isinstance(audio, Mapping) else None
    nested = dict(output) if isinstance(output, Mapping) else {}
    if isinstance(form := nested.get("format"), Mapping):
        nested["format"] = form.get("type")
    flat = {name: given[name] for name in ("voice", *OPTIONS) if name in given}
    if (beta := given.get("output_audio_format")) is not None:
        flat["format"] = next((kind for kind, name in BETA_FORMATS.items() if name == beta), beta)
    return {name: value for name, value in (flat | nested).items() if value is not None}
