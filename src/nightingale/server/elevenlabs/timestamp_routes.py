"""ElevenLabs' routes with-timestamps: a whole text in, base64 audio and the time of each character out."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator

from fastapi import APIRouter
from starlette.responses import Response

from nightingale.server.elevenlabs.character_alignment import CharacterAligner, TimedCharacter, http_alignment
from nightingale.server.elevenlabs.elevenlabs_routes import Options, TextBody, UrlOptions, speech_body
from nightingale.server.openai.caption_routes import DocumentResponse, in_parts
from nightingale.server.service.speech_service import Service, SpeechService
from nightingale.server.service.speech_streams import SpeechStream

router = APIRouter(tags=["elevenlabs"])


@router.post("/v1/text-to-speech/{voice_id}/with-timestamps", response_class=Response)
async def with_timestamps(options: Options, body: TextBody, service: Service) -> Response:
    """Speak a text; audio and times as one document."""
    return TimestampsResponse(options, body, service, stream=False)


@router.post("/v1/text-to-speech/{voice_id}/stream/with-timestamps", response_class=Response)
async def stream_with_timestamps(options: Options, body: TextBody, service: Service) -> Response:
    """Speak a text; audio and times as one JSON object per line."""
    return TimestampsResponse(options, body, service, stream=True)


class TimestampsResponse(DocumentResponse):
    """Audio and the times of characters, which are those of the text as it was given."""

    def __init__(self, options: UrlOptions, body: TextBody, service: SpeechService, *, stream: bool) -> None:
        speech = speech_body(options, body)
        speech.timestamps = "word"
        super().__init__(speech, service, output=options.output)
        self._streams = stream

    async def _parts(self, stream: SpeechStream) -> AsyncGenerator[bytes, None]:
        text, aligner = self._speech.input, CharacterAligner()
        audio, characters = bytearray(), list[TimedCharacter]()
        async for timings, data in self._service.open_encoder(self._output).encode(stream):
            audio += data
            characters += aligner.add(text, timings.words)
            if self._streams and audio:
                yield _line(audio, characters)
                audio, characters = bytearray(), []
        characters += aligner.finish(text)
        if not self._streams or audio or characters:
            for part in in_parts(_line(audio, characters)):
                yield part


def _line(audio: bytes | bytearray, characters: list[TimedCharacter]) -> bytes:
    alignment = http_alignment(characters) if characters else None
    line = {
        "audio_base64": base64.b64encode(audio).decode(),
        "alignment": alignment,
        "normalized_alignment": alignment,
    }
    return json.dumps(line).encode() + b"\n"
