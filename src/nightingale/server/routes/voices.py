"""/v1/audio/voices: list, add from a clip, remove."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Request, UploadFile

from nightingale.errors import BadReference, VoiceError, VoiceNotFound
from nightingale.server.aliases import OPENAI_VOICES
from nightingale.server.bodies import Deleted, VoiceList, VoiceOut
from nightingale.server.problems import Problem
from nightingale.server.roster import VoiceCard
from nightingale.server.speaker import Speaker
from nightingale.voices.library import is_name

router = APIRouter(tags=["voices"])
CLOSED = Problem(status=403, message="Uploads are switched off here (uploads).", code="uploads_off")


def shown(card: VoiceCard) -> VoiceOut:
    return VoiceOut(
        id=card.id,
        name=card.name,
        language=card.languages[0] if len(card.languages) == 1 else None,
        languages=list(card.languages),
        builtin=card.builtin,
        default=card.default,
        description=card.description,
        created=card.created,
    )


@router.get("/v1/audio/voices")
async def list_voices(request: Request) -> VoiceList:
    """Everybody who can speak here, the default first."""
    speaker: Speaker = request.app.state.speaker
    found = [shown(card) for card in await speaker.voices()]
    taken = {voice.id for voice in found}
    return VoiceList(data=found, voices=found, aliases=[name for name in OPENAI_VOICES if name not in taken])


@router.post("/v1/audio/voices", status_code=201, response_model=VoiceOut)
async def add_voice(
    request: Request,
    name: Annotated[str, Form(description="1 to 64 of a-z, 0-9, _ and -.")],
    audio: Annotated[UploadFile | None, File(description="A wav, flac, ogg or mp3 clip.")] = None,
    audio_sample: Annotated[UploadFile | None, File(description="The same, as others spell it.")] = None,
) -> Any:
    """Make a voice from a clip, once, and keep it. Clone only voices you may."""
    speaker: Speaker = request.app.state.speaker
    if not speaker.settings.uploads:
        return CLOSED.response
    if not is_name(name):
        raise VoiceError(
            "not a voice name", got=repr(name[:80]), allowed="1 to 64 of a-z, 0-9, _ and -", fix="Rename it."
        )
    clip = audio or audio_sample
    if clip is None:
        raise BadReference(
            "no clip was sent",
            got="no field audio",
            allowed="a wav, flac, ogg or mp3 file in the field audio",
            fix="For example: curl -F name=anna -F audio=@anna.wav …",
        )
    return shown(await speaker.add_voice(name, await clip.read()))


@router.delete("/v1/audio/voices/{voice_id}", response_model=Deleted)
async def remove_voice(voice_id: str, request: Request) -> Any:
    """Forget a voice that was added; the built-in ones stay."""
    speaker: Speaker = request.app.state.speaker
    if not speaker.settings.uploads:
        return CLOSED.response
    try:
        await speaker.remove_voice(voice_id)
    except VoiceNotFound as error:
        return Problem(status=404, message=str(error), param="voice_id", code="voice_not_found").response
    return Deleted(id=voice_id)
