"""GET /v1/models, /v1/audio/models: what may stand in `model`. One is loaded; no name loads another."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from nightingale.errors import UnknownModel
from nightingale.server.bodies import OPENAI_MODELS, AudioModelList, ControlOut, ModelCard, ModelList
from nightingale.server.problems import Problem
from nightingale.server.speaker import Speaker

router = APIRouter(tags=["models"])


def names(speaker: Speaker) -> list[str]:
    """Every name of the loaded model: its own first."""
    return list(dict.fromkeys([speaker.model_name, "nightingale", "chatterbox", *OPENAI_MODELS]))


REACHABLE = ("speed", "temperature", "exaggeration", "cfg_weight")
"""Controls that a request has fields for."""


def card(name: str, speaker: Speaker) -> ModelCard:
    return ModelCard(
        id=name,
        languages=list(speaker.languages),
        controls={
            key: ControlOut(min=control.low, max=control.high, default=control.default)
            for key, control in speaker.controls.items()
            if key in REACHABLE
        },
        notice=speaker.notice,
    )


def check_model(name: str, speaker: Speaker) -> None:
    """Refuse the name of another model: it is not loaded, and a request never downloads one."""
    known = names(speaker)
    # OpenAI dates its models (gpt-4o-mini-tts-2025-12-15).
    if name not in known and not any(name.startswith(f"{model}-20") for model in OPENAI_MODELS):
        raise UnknownModel(
            "this model is not loaded here",
            got=repr(name[:100]),
            allowed=", ".join(known),
            fix="Leave it out, or start the server with --model.",
        )


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """The names of the loaded model."""
    speaker: Speaker = request.app.state.speaker
    return ModelList(data=[card(name, speaker) for name in names(speaker)])


@router.get("/v1/audio/models")
async def list_audio_models(request: Request) -> AudioModelList:
    """The same, as Open WebUI asks for it."""
    speaker: Speaker = request.app.state.speaker
    cards = [card(name, speaker) for name in names(speaker)]
    return AudioModelList(data=cards, models=cards)


@router.get("/v1/models/{model_id}", response_model=ModelCard)
async def get_model(model_id: str, request: Request) -> Any:
    """One of the names."""
    if model_id not in names(request.app.state.speaker):
        return Problem(
            status=404, message=f"No model {model_id!r} is loaded.", param="model", code="model_not_found"
        ).response
    return card(model_id, request.app.state.speaker)
