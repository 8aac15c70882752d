"""GET /v1/models and /v1/audio/models: the names of the one loaded model. No name loads another."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from nightingale.errors import UnknownModel
from nightingale.server.http_errors import HttpError
from nightingale.server.service.model_loading import ModelCard
from nightingale.server.service.speech_service import Service, SpeechService

router = APIRouter(tags=["models"])

OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""Names that clients send by default; each means the loaded model."""


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class AudioModelList(ModelList):
    models: list[ModelCard]
    """The same list as `data`, for Open WebUI."""


def model_names(service: SpeechService) -> list[str]:
    """Return every name of the loaded model, its own first."""
    return list(dict.fromkeys([service.model.id, "nightingale", "chatterbox", *OPENAI_MODELS]))


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


def model_cards(service: SpeechService) -> list[ModelCard]:
    return [service.model.model_copy(update={"id": name}) for name in model_names(service)]


@router.get("/v1/models")
async def list_models(service: Service) -> ModelList:
    """List the names of the loaded model."""
    return ModelList(data=model_cards(service))


@router.get("/v1/audio/models")
async def list_audio_models(service: Service) -> AudioModelList:
    """List the same, as Open WebUI reads it."""
    cards = model_cards(service)
    return AudioModelList(data=cards, models=cards)


@router.get("/v1/models/{model_id}")
async def get_model(model_id: str, service: Service) -> ModelCard:
    """Describe the model under one of its names."""
    if model_id not in model_names(service):
        message = f"No model {model_id!r} is loaded."
        raise HttpError(404, message, param="model", code="model_not_found")
    return service.model.model_copy(update={"id": model_id})
