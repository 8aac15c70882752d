"""Request and response bodies of OpenAI's API, with our additional fields.

Unknown fields of a request are ignored: clients send what the newest of OpenAI's servers accepts.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nightingale.audio.encoders.streaming import RATES_HZ
from nightingale.errors import ConfigError
from nightingale.server.service.timestamps import TimedSegment, Timestamps, check_timestamps
from nightingale.server.service.voice_registry import VoiceInfo

ResponseFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""Names that clients send by default; each means the loaded model."""


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
        return {
            "voice": self.voice.id if isinstance(self.voice, VoiceRef) else self.voice,
            "language": self.language,
            "seed": self.seed,
            "normalize": self.normalize is not False,
            "speed": None if self.speed == 1.0 else self.speed,
            "exaggeration": self.exaggeration,
            "cfg_weight": self.cfg_weight,
            "temperature": self.temperature,
        }

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


class ControlRange(BaseModel):
    min: float
    max: float
    default: float


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "nightingale"
    languages: list[str] = []
    controls: dict[str, ControlRange] = {}
    """Fields of a speech request that this model supports."""
    notice: str | None = None
    """A remark that must be shown to the user."""


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class AudioModelList(ModelList):
    models: list[ModelCard]
    """The same list as `data`, for Open WebUI."""


class VoiceList(BaseModel):
    object: Literal["list"] = "list"
    data: list[VoiceInfo]
    voices: list[VoiceInfo]
    """The same list as `data`, for Open WebUI."""
    aliases: list[str]
    """OpenAI's names, which are accepted, too."""


class DeletedVoice(BaseModel):
    id: str
    object: Literal["voice.deleted"] = "voice.deleted"
    deleted: bool = True
