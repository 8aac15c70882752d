"""GET /v1/models and /v1/audio/models: the names of the one loaded model. No name loads another."""

from __future__ import annotations

from typing import Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from nightingale.errors import UnknownModel
from nightingale.server.http_errors import HttpError
from nightingale.server.service.speech_service import Service, SpeechService

router = APIRouter(tags=["models"])

OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""Names that clients send by default; each means the loaded model."""


REQUEST_CONTROLS: Final = ("speed", "temperature", "exaggeration", "cfg_weight")
"""Controls for which a request has fields."""


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


def model_names(service: SpeechService) -> list[str]:
    """Return every name of the loaded model, its own first."""
    return list(dict.fromkeys([service.model.name, "nightingale", "chatterbox", *OPENAI_MODELS]))


def check_model(name: str, service: SpeechService) -> None:
    """Refuse the name of a model that is not loaded: a request never downloads or loads one."""
    known = model_names(service)
    # OpenAI's names may have a date: gpt-4o-mini-tts-2025-12-15.
    if name not in known and not any(name.startswith(f"{model}-20") for model in OPENAI_MODELS):
        raise UnknownModel(
            "this model is not loaded",
            got=repr(name[:100]),
            allowed=", ".join(known),
            fix="Leave it out, or start the server with --model.",
        )


def model_card(name: str, service: SpeechService) -> ModelCard:
    model = service.model
    controls = {
        key: ControlRange(min=control.low, max=control.high, default=control.default)
        for key, control in model.controls.items()
        if key in REQUEST_CONTROLS
    }
    return ModelCard(id=name, languages=list(model.languages), controls=controls, notice=model.notice)


@router.get("/v1/models")
async def list_models(service: Service) -> ModelList:
    """List the names of the loaded model."""
    return ModelList(data=[model_card(name, service) for name in model_names(service)])


@router.get("/v1/audio/models")
async def list_audio_models(service: Service) -> AudioModelList:
    """List the same, as Open WebUI reads it."""
    cards = [model_card(name, service) for name in model_names(service)]
    return AudioModelList(data=cards, models=cards)


@router.get("/v1/models/{model_id}")
async def get_model(model_id: str, service: Service) -> ModelCard:
    """Describe the model under one of its names."""
    if model_id not in model_names(service):
        message = f"No model {model_id!r} is loaded."
        raise HttpError(404, message, param="model", code="model_not_found")
    return model_card(model_id, service)
