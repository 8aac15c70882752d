"""Routes for the voices of tenants. All but the sharing of the admin's own voices name a tenant of the key file."""

from __future__ import annotations

from fastapi import APIRouter

from nightingale.errors import ConfigError, VoiceNotFound
from nightingale.server.http_errors import HttpError
from nightingale.server.openai.catalog_routes import DeletedVoice, VoiceList, check_uploads
from nightingale.server.service.speech_service import Service
from nightingale.server.service.voice_registry import VoiceInfo

router = APIRouter(tags=["tenants"])


@router.post("/v1/audio/voices/{voice_id}/share")
async def share_voice(voice_id: str, service: Service, tenant: str | None = None) -> VoiceInfo:
    """Give an own voice of the admin, or of another tenant, to all tenants. Needs the key of an admin."""
    check_uploads(service)
    try:
        return await service.share_voice(voice_id, tenant)
    except (VoiceNotFound, ConfigError) as error:
        raise _not_found(error) from error


@router.get("/v1/tenants/{tenant}/voices")
async def list_voices_of(tenant: str, service: Service) -> VoiceList:
    """List the own voices of a tenant. Those of others need the key of an admin."""
    try:
        voices = await service.voices(tenant)
    except ConfigError as error:
        raise _not_found(error) from error
    return VoiceList(data=voices, voices=voices, aliases=[])


@router.delete("/v1/tenants/{tenant}/voices/{voice_id}")
async def remove_voice_of(tenant: str, voice_id: str, service: Service) -> DeletedVoice:
    """Delete an own voice of a tenant. Those of others need the key of an admin."""
    check_uploads(service)
    try:
        await service.remove_voice(voice_id, tenant)
    except (VoiceNotFound, ConfigError) as error:
        raise _not_found(error) from error
    return DeletedVoice(id=voice_id)


def _not_found(error: VoiceNotFound | ConfigError) -> HttpError:
    is_voice = isinstance(error, VoiceNotFound)
    code, param = ("voice_not_found", "voice_id") if is_voice else ("tenant_not_found", "tenant")
    return HttpError(404, str(error), code, param)
