"""POST /v1/audio/speech, which always streams, and /v1/audio/speech/captions."""

from __future__ import annotations

import logging
from typing import Any, Final, get_args

from fastapi import APIRouter, Request
from starlette.responses import Response

from nightingale.audio.encoders.streaming import FORMATS
from nightingale.errors import ConfigError
from nightingale.server.openai.model_routes import check_model
from nightingale.server.openai.schemas import Captions, ResponseFormat, SpeechBody
from nightingale.server.openai.speech_response import CaptionsResponse, SpeechResponse
from nightingale.server.service.speech_service import Service

router = APIRouter(tags=["speech"])
log = logging.getLogger("nightingale.server")

BINARY: Final = {"schema": {"type": "string", "format": "binary"}}
MEDIA_TYPES: Final = sorted({FORMATS[name].media_type for name in get_args(ResponseFormat)})
RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Audio while it is rendered; with stream_format=sse, the events speech.audio.delta "
        "(base64), speech.audio.segments (if requested) and speech.audio.done.",
        "content": dict.fromkeys(MEDIA_TYPES, BINARY) | {"text/event-stream": {"schema": {"type": "string"}}},
    },
}


@router.post("/v1/audio/speech", response_class=Response, responses=RESPONSES)
async def create_speech(body: SpeechBody, request: Request, service: Service) -> Response:
    """Speak a text."""
    check_model(body.model, service)
    body.check()
    if body.timestamps == "segment" and body.stream_format != "sse":
        raise ConfigError(
            "an audio stream cannot carry timestamps",
            got='timestamps="segment" with stream_format="audio"',
            allowed='stream_format="sse"',
            fix="Request events, or one document: POST /v1/audio/speech/captions.",
            param="timestamps",
        )
    log.debug("text", extra={"request_id": request.state.request_id, "text": body.input})
    return SpeechResponse(body, service)


@router.post("/v1/audio/speech/captions", response_class=Response, responses={200: {"model": Captions}})
async def create_captions(body: SpeechBody, service: Service) -> Response:
    """Speak a text and say when each part of it is said. Answered when all of it is spoken."""
    check_model(body.model, service)
    body.check()
    return CaptionsResponse(body, service)
