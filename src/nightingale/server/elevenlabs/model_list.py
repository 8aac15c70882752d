"""The loaded model as ElevenLabs' clients read it: GET /v1/models, a path that they share with OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from nightingale.server.service.speech_service import SpeechService


class ModelLanguage(BaseModel):
    language_id: str
    name: str


class ElevenLabsModel(BaseModel):
    """A model in ElevenLabs' format."""

    model_id: str
    name: str
    can_do_text_to_speech: bool = True
    can_be_finetuned: bool = False
    can_use_style: bool = False
    can_use_speaker_boost: bool = False
    serves_pro_voices: bool = False
    requires_alpha_access: bool = False
    description: str
    languages: list[ModelLanguage]
    maximum_text_length_per_request: int


def is_elevenlabs_client(headers: Mapping[str, str]) -> bool:
    """Return whether the key is sent as ElevenLabs' clients send it, and OpenAI's do not."""
    return "xi-api-key" in headers and "authorization" not in headers


def elevenlabs_models(service: SpeechService) -> list[ElevenLabsModel]:
    """Return the loaded model. Requests may name any other; it is ignored."""
    model = service.model
    return [
        ElevenLabsModel(
            model_id=model.id,
            name=model.id,
            description=model.notice or "",
            languages=[ModelLanguage(language_id=code, name=code) for code in model.languages],
            maximum_text_length_per_request=service.settings.max_text_chars,
        )
    ]
