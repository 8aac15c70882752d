"""Request and response bodies of OpenAI's API, with our additional fields.

Unknown fields of a request are ignored: clients send what the newest of OpenAI's servers accepts.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nightingale.audio.encoders.streaming import RATES_HZ
from nightingale.errors import ConfigError
from nightingale.server.service.audio_output import TimedSegment, Timestamps, check_timestamps

ResponseFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
REQUEST_FIELDS = {
    "voice", "language", "seed", "normalize", "speed", "exaggeration", "cfg_weight", "temperature",
}  # fmt: skip
"""Fields that are arguments of `SpeechService.open` and `SpeechService.session`."""


class NullableBody(BaseModel):
    """A request body in which null means the same as leaving the field out."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        return {name: value for name, value in body.items() if value is not None}


class VoiceRef(BaseModel):
    """A voice as an object, as OpenAI's client may send it."""

    id: str


class SpeechBody(NullableBody):
    """The body of POST /v1/audio/speech."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: str = Field(
        "nightingale", max_length=200, description="The loaded model, or one of OpenAI's names."
    )
    input: str = Field(description="The text to speak. `[pause:500ms]` is silence.")
    voice: str | VoiceRef | None = Field(
        None, description="A voice, one of OpenAI's names, or a blend such as `heart(2)+emma`."
    )
    response_format: ResponseFormat = Field("mp3", description="24 kHz mono unless sample_rate is given.")
    speed: Annotated[float, Field(ge=0.25, le=4.0, description="The pitch does not change.")] = 1.0
    stream_format: Literal["audio", "sse"] = Field("audio", description="Bytes, or events with base64.")
    instructions: str | None = Field(None, description="Accepted and ignored.")

    language: str | None = Field(None, max_length=35, description="Language code, for multilingual models.")
    seed: int | None = Field(None, description="The same seed gives the same bytes for a request by itself.")
    exaggeration: float | None = Field(None, description="Strength of emotion, if the model supports it.")
    cfg_weight: float | None = Field(
        None, description="Weight of classifier-free guidance, if the model supports it."
    )
    temperature: float | None = Field(None, description="Sampling temperature.")
    sample_rate: int | None = Field(None, description=f"In hertz, one of {', '.join(map(str, RATES_HZ))}.")
    timestamps: Timestamps | None = Field(
        None,
        description='"segment" (with stream_format=sse): time of each sentence. "word" is not available.',
    )
    normalize: bool | None = Field(None, description="false: do not write out digits and symbols in words.")

    def request(self) -> dict[str, Any]:
        """Return the arguments of `SpeechService.open` besides the text."""
        return self.model_dump(include=REQUEST_FIELDS, exclude_defaults=True)

    def check(self) -> None:
        """Check what pydantic does not."""
        check_timestamps(self.timestamps)
        try:
            self.input.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair, escaped in JSON
            raise ConfigError("the text is not valid Unicode", got=error.reason, param="input") from error


class Captions(BaseModel):
    """The response of POST /v1/audio/speech/captions."""

    audio: str
    """The encoded audio in base64."""
    response_format: ResponseFormat
    sample_rate: int
    segments: list[TimedSegment]
    srt: str
    """The segments as subtitles."""
    metrics: dict[str, float | None]
