"""/v1/models and /v1/audio/models: the names of the one loaded model, none of which loads another.
/v1/audio/voices: list voices, add one from a clip, delete one."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, File, Form, Request, UploadFile
from pydantic import BaseModel

from nightingale.errors import BadReference, UnknownModel, VoiceError, VoiceNotFound
from nightingale.server.elevenlabs.model_list import (
    ElevenLabsModel,
    elevenlabs_models,
    is_elevenlabs_client,
)
from nightingale.server.http_errors import HttpError
from nightingale.server.service.model_loading import ModelCard
from nightingale.server.service.speech_service import Service, SpeechService
from nightingale.server.service.voice_registry import VoiceInfo
from nightingale.voices.aliases import OPENAI_VOICES
from nightingale.voices.library import is_name

router = APIRouter()

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


def model_card(service: SpeechService, name: str) -> ModelCard:
    """Describe the loaded model under one of its names, with the limits of this server."""
    return service.model.model_copy(update={"id": name, "max_input_chars": service.settings.max_text_chars})


def model_cards(service: SpeechService) -> list[ModelCard]:
    return [model_card(service, name) for name in model_names(service)]


@router.get("/v1/models", tags=["models"])
async def list_models(request: Request, service: Service) -> ModelList | list[ElevenLabsModel]:
    """List the names of the loaded model; for a client with the header xi-api-key, as ElevenLabs does."""
    if is_elevenlabs_client(request.headers):
        return elevenlabs_models(service)
    return ModelList(data=model_cards(service))


@router.get("/v1/audio/models", tags=["models"])
async def list_audio_models(service: Service) -> AudioModelList:
    """List the same, as Open WebUI reads it."""
    cards = model_cards(service)
    return AudioModelList(data=cards, models=cards)


@router.get("/v1/models/{model_id}", tags=["models"])
async def get_model(model_id: str, service: Service) -> ModelCard:
    """Describe the model under one of its names."""
    if model_id not in model_names(service):
        raise HttpError(404, f"No model {model_id!r} is loaded.", "model_not_found", "model")
    return model_card(service, model_id)


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


@router.get("/v1/audio/voices", tags=["voices"])
async def list_voices(service: Service) -> VoiceList:
    """List the voices, the default first."""
    voices = await service.voices()
    taken = {voice.id for voice in voices}
    aliases = [name for name in OPENAI_VOICES if name not in taken]
    return VoiceList(data=voices, voices=voices, aliases=aliases)


@router.post("/v1/audio/voices", status_code=201, tags=["voices"])
async def add_voice(
    service: Service,
    name: Annotated[str, Form(description="1 to 64 of a-z, 0-9, _ and -.")],
    audio: Annotated[UploadFile | None, File(description="A wav, flac, ogg or mp3 clip.")] = None,
    audio_sample: Annotated[UploadFile | None, File(description="Another name for `audio`.")] = None,
    shared: Annotated[bool, Form(description="For all tenants, with the key of an admin.")] = False,
) -> VoiceInfo:
    """Create a voice from a clip and store it. Clone only voices that you are allowed to use."""
    check_uploads(service)
    if not is_name(name):
        allowed = "1 to 64 of a-z, 0-9, _ and -"
        raise VoiceError("invalid voice name", got=repr(name[:80]), allowed=allowed, param="name")
    clip = audio or audio_sample
    if clip is None:
        raise BadReference(
            "no clip was sent",
            allowed="a wav, flac, ogg or mp3 file in the field audio",
            fix="For example: curl -F name=anna -F audio=@anna.wav …",
        )
    return await service.add_voice(name, await clip.read(), shared=shared)


@router.delete("/v1/audio/voices/{voice_id}", tags=["voices"])
async def remove_voice(voice_id: str, service: Service) -> DeletedVoice:
    """Delete an uploaded voice. Built-in voices cannot be deleted."""
    check_uploads(service)
    try:
        await service.remove_voice(voice_id)
    except VoiceNotFound as error:
        raise HttpError(404, str(error), param="voice_id", code="voice_not_found") from error
    return DeletedVoice(id=voice_id)


def check_uploads(service: SpeechService) -> None:
    if not service.settings.uploads:
        raise HttpError(403, "Uploads are disabled on this server (uploads).", code="uploads_off")
