"""Speech and its segments as one document, for those who want both and can wait for the end."""

from __future__ import annotations

import base64
from typing import Any, Final

from starlette.types import Scope, Send

from nightingale.server.bodies import Captions
from nightingale.server.reply import SpeechReply, summary
from nightingale.server.timeline import Segment, Timeline, srt

PART_BYTES: Final = 1 << 16
"""Sent at a time, so that a slow client is waited for and one that takes nothing is not."""


class CaptionReply(SpeechReply):
    """It watches the client as its parent does; nothing is sent before the end, so faults are HTTP's."""

    async def _speak(self, scope: Scope, send: Send) -> None:
        async with await self._open(scope) as speech:
            encoder, timeline, sound = self._encoder(), Timeline(), bytearray()
            segments: list[Segment] = []
            async for chunk in speech:
                segments += timeline.heard(chunk)
                sound += await self._encoded(encoder, chunk.samples)
            segments += timeline.finish()
            sound += encoder.finish()
            scope["state"]["notes"] |= summary(speech.metrics)
            told = Captions(
                audio=base64.b64encode(sound).decode(),
                response_format=self._speech_body.response_format,
                sample_rate=self._rate_hz,
                segments=segments,
                srt=srt(segments),
                metrics={**summary(speech.metrics), "seed": speech.seed},
            )
            await self._put(send, self._start(speech, "application/json"))
        await self._send_all(send, told.model_dump_json().encode())

    async def _send_all(self, send: Send, body: bytes) -> None:
        for at in range(0, len(body), PART_BYTES):
            part: dict[str, Any] = {"type": "http.response.body", "body": body[at : at + PART_BYTES]}
            await self._put(send, {**part, "more_body": at + PART_BYTES < len(body)})
