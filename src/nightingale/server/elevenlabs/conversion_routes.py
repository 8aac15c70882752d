"""ElevenLabs' speech-to-speech: a recording in, the same words in another voice out, as a stream."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, File, Form, UploadFile
from starlette.responses import Response

from nightingale.errors import BadReference
from nightingale.server.elevenlabs.elevenlabs_routes import AUDIO_ROUTE, Options, request_body
from nightingale.server.openai.speech_routes import SpeechBody, SpeechResponse
from nightingale.server.service.speech_service import Service, SpeechService
from nightingale.server.service.speech_streams import OutputFormat, SpeechStream
from nightingale.types import Samples

router = APIRouter()

PCM_RATE_HZ = 16_000

FileFormat = Literal["other", "pcm_s16le_16"]


@router.post("/v1/speech-to-speech/{voice_id}", **AUDIO_ROUTE)
@router.post("/v1/speech-to-speech/{voice_id}/stream", **AUDIO_ROUTE)
async def speech_to_speech(
    options: Options,
    service: Service,
    audio: Annotated[UploadFile, File(description="A wav, flac, ogg or mp3 recording of up to ten minutes.")],
    seed: Annotated[int | None, Form(description="The same seed gives the same audio.")] = None,
    file_format: Annotated[
        FileFormat, Form(description="pcm_s16le_16: 16-bit samples at 16 kHz without a header.")
    ] = "other",
) -> Response:
    """Speak the words of a recording in another voice, with its timing. Other fields are ignored."""
    contents = await audio.read()
    recording = contents if file_format == "other" else _from_pcm(contents)
    body = request_body(options, input="", seed=seed)
    return ConversionResponse(body, service, recording, output=options.output)


class ConversionResponse(SpeechResponse):
    """Streams a recording in another voice."""

    def __init__(
        self,
        body: SpeechBody,
        service: SpeechService,
        recording: bytes | tuple[Samples, int],
        *,
        output: OutputFormat,
    ) -> None:
        super().__init__(body, service, output=output)
        self._recording = recording

    async def _open(self) -> SpeechStream:
        request = self._speech.request
        return await self._service.convert(
            self._recording, voice=request.get("voice"), seed=request.get("seed")
        )


def _from_pcm(contents: bytes) -> tuple[Samples, int]:
    if not contents or len(contents) % 2:
        raise BadReference("these are no 16-bit samples", got=f"{len(contents)} bytes")
    return np.frombuffer(contents, "<i2").astype(np.float32) / np.float32(32768), PCM_RATE_HZ
