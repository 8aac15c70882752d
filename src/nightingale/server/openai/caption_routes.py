"""Audio with the times of its words: one document, or Kokoro-FastAPI's POST /dev/captioned_speech.

A model whose words cannot be timed gives the times of its segments, and captions that are estimated from them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from nightingale.audio.encoders.streaming import FORMATS
from nightingale.engine.captions import format_srt, spread_words, words_json
from nightingale.server.metrics import metrics_json
from nightingale.server.openai.catalog_routes import check_model
from nightingale.server.openai.speech_routes import ResponseFormat, SpeechBody, SpeechResponse
from nightingale.server.service.speech_service import Service, SpeechService
from nightingale.server.service.speech_streams import OutputFormat, SpeechStream, TimedSegment
from nightingale.types import TimedWord

router = APIRouter(tags=["speech"])

PART_BYTES: Final = 1 << 16
"""A document is sent in parts, so that the send timeout applies to each of them."""


class Captions(BaseModel):
    """The response of POST /v1/audio/speech/captions."""

    audio: str
    """The encoded audio in base64."""
    response_format: ResponseFormat
    sample_rate: int
    segments: list[TimedSegment]
    words: list[dict[str, Any]]
    """The words of `input`, with start and end in seconds; empty if the model's words cannot be timed."""
    srt: str
    """The words as subtitles."""
    metrics: dict[str, float | None]


class CaptionedBody(SpeechBody):
    """The body of Kokoro-FastAPI's POST /dev/captioned_speech."""

    stream: bool = Field(True, description="true: one JSON object per line while it is spoken.")
    return_timestamps: bool = Field(True, description="false: leave out the times of words.")


@router.post("/v1/audio/speech/captions", response_class=Response, responses={200: {"model": Captions}})
async def create_captions(body: SpeechBody, service: Service) -> Response:
    """Speak a text and say when each word and each part of it is said. Answered when all of it is spoken."""
    check_model(body.model, service)
    if body.timestamps is None and service.model.times_words:
        body.timestamps = "word"
    return CaptionsResponse(body, service)


@router.post("/dev/captioned_speech", response_class=Response)
async def captioned_speech(body: CaptionedBody, service: Service) -> Response:
    """Speak a text in Kokoro-FastAPI's format: base64 audio and the times of words. `model` is ignored."""
    body.timestamps = "word" if body.return_timestamps else None
    return CaptionedResponse(body, service, stream=body.stream)


class DocumentResponse(SpeechResponse):
    """A response in JSON."""

    def __init__(
        self, body: SpeechBody, service: SpeechService, *, output: OutputFormat | None = None
    ) -> None:
        super().__init__(body, service, output=output)
        self._sse, self._media_type = False, "application/json"


class CaptionsResponse(DocumentResponse):
    """Audio and timestamps as one document, sent at the end, so that all failures are HTTP errors."""

    async def _parts(self, stream: SpeechStream) -> AsyncGenerator[bytes, None]:
        audio, segments, words = bytearray(), list[TimedSegment](), list[TimedWord]()
        async for timings, data in self._service.open_encoder(self._output).encode(stream):
            segments += timings.segments
            words += timings.words
            audio += data
        captions = Captions(
            audio=base64.b64encode(audio).decode(),
            response_format=self._speech.response_format,
            sample_rate=self._output.sample_rate_hz,
            segments=segments,
            words=words_json(words),
            srt=format_srt(words or _estimated(segments), self._speech.request.get("language")),
            metrics=metrics_json(stream.metrics, seed=stream.seed),
        )
        for part in in_parts(captions.model_dump_json().encode()):
            yield part


class CaptionedResponse(DocumentResponse):
    """Objects with audio and words, one per line, or one for all."""

    def __init__(self, body: SpeechBody, service: SpeechService, *, stream: bool) -> None:
        super().__init__(body, service)
        self._streams = stream

    async def _parts(self, stream: SpeechStream) -> AsyncGenerator[bytes, None]:
        audio, words = bytearray(), list[TimedWord]()
        async for timings, data in self._service.open_encoder(self._output).encode(stream):
            audio += data
            words += timings.words
            if self._streams and (audio or words):
                yield self._line(audio, words)
                audio, words = bytearray(), []
        if not self._streams:
            for part in in_parts(self._line(audio, words)):
                yield part

    def _line(self, audio: bytes | bytearray, words: Sequence[TimedWord]) -> bytes:
        media_type = FORMATS[self._speech.response_format].media_type
        times = [
            {"word": word.word, "start_time": round(word.start_s, 3), "end_time": round(word.end_s, 3)}
            for word in words
        ]
        line = {"audio": base64.b64encode(audio).decode(), "audio_format": media_type, "timestamps": times}
        return json.dumps(line).encode() + b"\n"


def in_parts(document: bytes) -> list[bytes]:
    """Return a document in parts that are sent one by one."""
    return [document[start : start + PART_BYTES] for start in range(0, len(document), PART_BYTES)]


def _estimated(segments: Sequence[TimedSegment]) -> list[TimedWord]:
    return [word for one in segments for word in spread_words(one.text, one.start, one.end)]
