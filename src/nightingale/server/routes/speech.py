"""POST /v1/audio/speech: OpenAI's route, streaming always."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from nightingale.errors import ConfigError
from nightingale.server.bodies import MEDIA_TYPES, SpeechBody
from nightingale.server.reply import SpeechReply
from nightingale.server.routes.models import check_model
from nightingale.server.speaker import Speaker

router = APIRouter(tags=["speech"])
log = logging.getLogger("nightingale.server")

BINARY = {"schema": {"type": "string", "format": "binary"}}
EVENTS = {
    "schema": {
        "type": "string",
        "description": "speech.audio.delta, speech.audio.segments if asked for, then speech.audio.done",
    }
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Audio as it is rendered; with stream_format=sse, events with base64.",
        "content": {**dict.fromkeys(MEDIA_TYPES, BINARY), "text/event-stream": EVENTS},
    },
}


@router.post("/v1/audio/speech", response_class=Response, responses=RESPONSES)
async def create_speech(body: SpeechBody, request: Request) -> Response:
    """Speak a text."""
    speaker: Speaker = request.app.state.speaker
    check_model(body.model, speaker)
    body.check()
    if body.timestamps == "segment" and body.stream_format != "sse":
        raise ConfigError(
            "a plain stream of sound has no place for timestamps",
            got='timestamps="segment" with stream_format="audio"',
            allowed='stream_format="sse"',
            fix="Ask for events, or for one document: POST /v1/audio/speech/captions.",
            param="timestamps",
        )
    log.debug("text", extra={"request_id": request.state.request_id, "text": body.input})
    return SpeechReply(body, speaker, request.app.state.encoders)
