"""What clients send and what they get back, as OpenAI spells it, with our additions.

Fields nobody knows are ignored: clients send what the newest of OpenAI's servers understands.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nightingale.audio.encoders.streaming import FORMATS, RATES_HZ
from nightingale.errors import ConfigError
from nightingale.server.timeline import Segment, Timestamps, check_timestamps

Form = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""Names that every client knows; each means the model that is loaded."""


class Asked(BaseModel):
    """What a client asks for. Some write null into each field that nobody has set; that is leaving it out."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, asked: Any) -> Any:
        if not isinstance(asked, dict):
            return asked
        return {name: value for name, value in asked.items() if value is not None}


class VoiceRef(BaseModel):
    """A voice as an object, as OpenAI's client may send it."""

    id: str


class SpeechBody(Asked):
    """The body of POST /v1/audio/speech."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: str = Field(
        "nightingale", max_length=200, description="The loaded model, or one of OpenAI's names."
    )
    input: str = Field(description="What to say. `[pause:500ms]` is silence.")
    voice: str | VoiceRef | None = Field(
        None, description="A voice, one of OpenAI's names, or a blend such as `heart(2)+emma`."
    )
    response_format: Form = Field("mp3", description="24 kHz mono unless sample_rate says otherwise.")
    speed: Annotated[float, Field(ge=0.25, le=4.0, description="The pitch stays.")] = 1.0
    stream_format: Literal["audio", "sse"] = Field("audio", description="Bytes, or events with base64.")
    instructions: str | None = Field(None, description="Accepted, and not acted upon.")

    language: str | None = Field(None, max_length=35, description="Language code, for multilingual models.")
    seed: int | None = Field(None, description="The same seed, alone, gives the same bytes.")
    exaggeration: float | None = Field(None, description="Strength of emotion, where the model has it.")
    cfg_weight: float | None = Field(None, description="Guidance towards the text, where the model has it.")
    temperature: float | None = Field(None, description="Spread of the draw.")
    sample_rate: int | None = Field(None, description=f"In hertz, one of {', '.join(map(str, RATES_HZ))}.")
    timestamps: Timestamps | None = Field(
        None,
        description='"segment" (with stream_format=sse): when each sentence is said. "word" is not known.',
    )
    normalize: bool | None = Field(None, description="false reads digits and symbols as they are written.")

    def controls(self) -> dict[str, Any]:
        """What the engine is told besides text and voice."""
        return {
            "language": self.language,
            "seed": self.seed,
            "normalize": self.normalize is not False,
            "speed": None if self.speed == 1.0 else self.speed,
            "exaggeration": self.exaggeration,
            "cfg_weight": self.cfg_weight,
            "temperature": self.temperature,
        }

    def check(self) -> None:
        """What pydantic cannot see."""
        check_timestamps(self.timestamps)
        try:
            self.input.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair, written as an escape in JSON
            raise ConfigError(
                "the text is not Unicode",
                got=str(error.reason),
                allowed="valid Unicode",
                fix="Correct it.",
                param="input",
            ) from error


class Captions(BaseModel):
    """What POST /v1/audio/speech/captions answers."""

    audio: str
    """In base64."""
    response_format: Form
    sample_rate: int
    segments: list[Segment]
    srt: str
    """The segments as subtitles."""
    metrics: dict[str, float | None]


class ControlOut(BaseModel):
    min: float
    max: float
    default: float


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "nightingale"
    languages: list[str] = []
    controls: dict[str, ControlOut] = {}
    """Fields of a request that this model understands."""
    notice: str | None = None
    """What a listener must know."""


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class AudioModelList(ModelList):
    models: list[ModelCard]
    """The same again: Open WebUI looks here."""


class VoiceOut(BaseModel):
    id: str
    name: str
    object: Literal["voice"] = "voice"
    language: str | None
    """The one it speaks, if it is one."""
    languages: list[str]
    builtin: bool
    default: bool
    description: str
    created: int


class VoiceList(BaseModel):
    object: Literal["list"] = "list"
    data: list[VoiceOut]
    voices: list[VoiceOut]
    """The same again: Open WebUI looks here."""
    aliases: list[str]
    """More names that are understood: OpenAI's."""


class Deleted(BaseModel):
    id: str
    object: Literal["voice.deleted"] = "voice.deleted"
    deleted: bool = True


MEDIA_TYPES = sorted({FORMATS[name].media_type for name in ("mp3", "opus", "aac", "flac", "wav", "pcm")})
