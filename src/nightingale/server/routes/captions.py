"""POST /v1/audio/speech/captions: the sound and when each part of the text is said, in one JSON document."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from nightingale.server.bodies import Captions, SpeechBody
from nightingale.server.captioned import CaptionReply
from nightingale.server.routes.models import check_model
from nightingale.server.speaker import Speaker

router = APIRouter(tags=["speech"])


@router.post("/v1/audio/speech/captions", response_class=Response, responses={200: {"model": Captions}})
async def create_captions(body: SpeechBody, request: Request) -> Response:
    """Speak a text, and say when: answered when all of it was spoken."""
    speaker: Speaker = request.app.state.speaker
    check_model(body.model, speaker)
    body.check()
    return CaptionReply(body, speaker, request.app.state.encoders)
