"""ElevenLabs' routes besides speech: voices (list, search, get, add, delete) and the user.

There are no accounts and no payments here: the user is the tenant of the key, and the subscription states its
limits.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Final, Literal

import numpy as np
from fastapi import APIRouter, File, Form, Query, UploadFile
from pydantic import BaseModel

from nightingale.audio.read import read_audio
from nightingale.audio.resample import resample
from nightingale.audio.samples import wav_bytes
from nightingale.errors import ConfigError, VoiceError, VoiceExists
from nightingale.server.http_errors import HttpError
from nightingale.server.openai.catalog_routes import check_uploads, remove_voice
from nightingale.server.service.speech_service import Service, SpeechService
from nightingale.server.service.voice_registry import VoiceInfo
from nightingale.server.tenants.key_file import Tenant
from nightingale.server.tenants.usage_store import until_tomorrow_s

router = APIRouter(tags=["elevenlabs"])

UNLIMITED: Final = 2**53 - 1
"""The number of characters that may be spoken: there is no limit, and JavaScript can hold no larger number."""
MAX_CLIPS: Final = 25
"""Clips of one voice, as many as ElevenLabs takes."""
MAX_ID_CHARS: Final = 64

Category = Literal["premade", "cloned"]


class ElevenLabsVoice(BaseModel):
    """A voice in ElevenLabs' format."""

    voice_id: str
    name: str
    category: Category
    description: str
    labels: dict[str, str] = {}
    created_at_unix: int | None
    is_owner: bool

    @classmethod
    def of(cls, voice: VoiceInfo, tenant: Tenant) -> ElevenLabsVoice:
        """Describe a voice for a tenant. Where there are no tenants, all uploads belong to every client."""
        return cls(
            voice_id=voice.id,
            name=voice.name,
            category="premade" if voice.builtin else "cloned",
            description=voice.description,
            created_at_unix=voice.created or None,
            is_owner=not voice.builtin and (not voice.shared or tenant.folder is None),
        )


class VoiceListing(BaseModel):
    voices: list[ElevenLabsVoice]


class VoicePage(VoiceListing):
    has_more: bool
    total_count: int
    next_page_token: str | None


class AddedVoice(BaseModel):
    voice_id: str
    requires_verification: bool = False


class Status(BaseModel):
    status: Literal["ok"] = "ok"


class Price(BaseModel):
    amount: str = "0"
    currency: str = "usd"


class Subscription(BaseModel):
    """The limits of a tenant in ElevenLabs' format."""

    tier: str = "self-hosted"
    status: str = "active"
    character_count: int
    """Characters of today (UTC)."""
    character_limit: int
    next_character_count_reset_unix: int
    max_credit_limit_extension: Literal["unlimited"] = "unlimited"
    can_extend_character_limit: bool = False
    allowed_to_extend_character_limit: bool = False
    voice_slots_used: int
    voice_limit: int
    voice_add_edit_counter: int = 0
    can_extend_voice_limit: bool = False
    can_use_instant_voice_cloning: bool
    can_use_professional_voice_cloning: bool = False
    professional_voice_limit: int = 0
    professional_voice_slots_used: int = 0
    professional_voice_slots_used_in_workspace: int = 0
    current_overage: Price = Price()
    open_invoices: list[Price] = []
    has_open_invoices: bool = False


class User(BaseModel):
    user_id: str
    """The name of the tenant."""
    workspace_id: str = "nightingale"
    subscription: Subscription
    is_new_user: bool = False
    is_onboarding_completed: bool = True
    is_onboarding_checklist_completed: bool = True
    can_use_delayed_payment_methods: bool = False
    created_at: int = 0
    seat_type: str = "workspace_admin"


@router.get("/v1/voices")
async def list_voices(service: Service) -> VoiceListing:
    """List the voices in ElevenLabs' format."""
    return VoiceListing(voices=await _voices(service))


async def _voices(service: SpeechService) -> list[ElevenLabsVoice]:
    tenant = service.tenants.current()
    return [ElevenLabsVoice.of(voice, tenant) for voice in await service.voices()]


@router.get("/v2/voices")
async def search_voices(
    service: Service,
    search: Annotated[str | None, Query(description="A part of a name or description.")] = None,
    category: str | None = None,
    voice_type: Annotated[str | None, Query(description="default, personal, non-default or others.")] = None,
    voice_ids: Annotated[list[str] | None, Query()] = None,
    sort: Literal["name", "created_at_unix"] | None = None,
    sort_direction: Literal["asc", "desc"] = "asc",
    page_size: Annotated[int, Query(ge=1, le=100)] = 10,
    next_page_token: Annotated[str | None, Query(description="As the page before gave it.")] = None,
) -> VoicePage:
    """Search the voices, page by page. Other filters are ignored."""
    start = _parse_token(next_page_token)
    found = [
        voice
        for voice in await _voices(service)
        if category in (None, voice.category)
        and (voice_ids is None or voice.voice_id in voice_ids)
        and _has_type(voice, voice_type)
        and (search or "").lower() in f"{voice.name} {voice.description} {voice.category}".lower()
    ]
    if sort is not None:
        key = (lambda voice: voice.name) if sort == "name" else (lambda voice: voice.created_at_unix or 0)
        found.sort(key=key, reverse=sort_direction == "desc")
    end = start + page_size
    more = end < len(found)
    return VoicePage(
        voices=found[start:end],
        has_more=more,
        total_count=len(found),
        next_page_token=str(end) if more else None,
    )


def _parse_token(token: str | None) -> int:
    if token is None or re.fullmatch(r"[0-9]{1,9}", token):
        return int(token or 0)
    raise ConfigError("invalid page token", got=repr(token[:80]), param="next_page_token")


def _has_type(voice: ElevenLabsVoice, kind: str | None) -> bool:
    if kind == "default":
        return voice.category == "premade"
    own_types = ("personal", "workspace", "non-default", "non-community", "saved")
    return voice.category == "cloned" if kind in own_types else kind != "community"


@router.get("/v1/voices/{voice_id}")
async def get_voice(voice_id: str, service: Service) -> ElevenLabsVoice:
    """Describe a voice, by its name or one of its aliases."""
    try:
        voice = await service.resolve_voice(voice_id)
    except VoiceError as error:
        raise HttpError(404, str(error), param="voice_id", code="voice_not_found") from error
    named = [each for each in await _voices(service) if voice is not None and each.voice_id == voice.name]
    if not named:
        raise HttpError(404, "A blend has no description.", param="voice_id", code="voice_not_found")
    return named[0]


@router.post("/v1/voices/add")
async def add_voice(
    service: Service,
    name: Annotated[
        str, Form(max_length=200, description="Any name; the answer has the voice's identifier.")
    ],
    files: Annotated[list[UploadFile], File(description="wav, flac, ogg or mp3 clips of one speaker.")],
) -> AddedVoice:
    """Create a voice from clips and store it. Other fields are ignored. Clone only what you are allowed to."""
    check_uploads(service)
    if len(files) > MAX_CLIPS:
        raise ConfigError("too many clips", got=str(len(files)), allowed=f"{MAX_CLIPS}", param="files")
    clip = partial(_join, [await file.read() for file in files], service.settings.max_clip_seconds)
    voice_id = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")[:MAX_ID_CHARS] or "voice"
    try:
        added = await service.add_voice(voice_id, clip)
    except VoiceExists:  # names need not be unique here
        suffix = f"-{secrets.token_hex(3)}"
        added = await service.add_voice(voice_id[: MAX_ID_CHARS - len(suffix)] + suffix, clip)
    return AddedVoice(voice_id=added.id)


def _join(clips: Sequence[bytes], max_seconds: float) -> bytes:
    """Return clips as one, of at most so many seconds; a single one as it is."""
    if len(clips) == 1:
        return clips[0]
    parts, rate_hz, left_s = [], 0, max_seconds
    for clip in clips:
        samples, hz = read_audio(clip, max_seconds=left_s)
        rate_hz = rate_hz or hz
        left_s -= len(samples) / hz
        parts.append(resample(samples, hz, rate_hz))
    return wav_bytes(np.concatenate(parts), rate_hz)


@router.delete("/v1/voices/{voice_id}")
async def delete_voice(voice_id: str, service: Service) -> Status:
    """Delete an uploaded voice. Built-in voices cannot be deleted."""
    await remove_voice(voice_id, service)
    return Status()


@router.get("/v1/user")
async def get_user(service: Service) -> User:
    """Describe the tenant of the key."""
    name = service.tenants.current().name
    return User(user_id=name, subscription=await get_subscription(service))


@router.get("/v1/user/subscription")
async def get_subscription(service: Service) -> Subscription:
    """State the limits of the tenant of the key."""
    tenant, limit = service.tenants.current(), service.tenants.current().characters_per_day
    return Subscription(
        character_count=service.tenants.used_today(tenant.name),
        character_limit=UNLIMITED if limit is None else limit,
        next_character_count_reset_unix=round(time.time() + until_tomorrow_s()),
        voice_slots_used=sum(voice.is_owner for voice in await _voices(service)),
        voice_limit=service.settings.max_voices,
        can_use_instant_voice_cloning=service.settings.uploads,
    )
