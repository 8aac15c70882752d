"""A response of OpenAI's Realtime API: one message of the assistant, which is audio and its transcript."""

from __future__ import annotations

import base64
from typing import Any, Final

from nightingale.server.http_errors import http_error
from nightingale.server.openai.realtime_conversation import RealtimeConversation, new_id
from nightingale.server.openai.realtime_settings import RealtimeSettings
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.service.speech_streams import Timings
from nightingale.server.service.speech_turns import SpeechTurn

AUDIO_EVENTS: Final = ("response.output_audio", "response.audio")
"""The beginnings of the names of events with audio and its transcript: today's, and those of the beta version."""


class RealtimeResponse(SpeechTurn):
    """The events of one response, from response.created to response.done."""

    def __init__(
        self,
        conversation: RealtimeConversation,
        service: SpeechService,
        settings: RealtimeSettings,
        given: dict[str, Any],
    ) -> None:
        """given: the response object of response.create."""
        super().__init__(service, settings.request, settings.output)
        self.id, self._item_id = new_id("resp"), new_id("item")
        self._conversation, self._settings = conversation, settings
        self._is_out_of_band = given.get("conversation") == "none"
        metadata = given.get("metadata")
        self._metadata = metadata if isinstance(metadata, dict) else None
        self._audio = AUDIO_EVENTS[conversation.beta]

    async def announce(self) -> None:
        """Tell the client that the response was created."""
        await self._conversation.send("response.created", response=self._describe("in_progress"))

    async def send_start(self) -> None:
        item = self._item("in_progress")
        await self._send("response.output_item.added", item=item)
        if not self._is_out_of_band:
            await self._conversation.update(item)
        await self._send_part("response.content_part.added", part={"type": "audio", "transcript": ""})
        await self._send_part(f"{self._audio}_transcript.delta", delta=self.text)

    async def send_audio(self, timings: Timings, data: bytes) -> None:  # noqa: ARG002
        if data:
            await self._send_part(f"{self._audio}.delta", delta=base64.b64encode(data).decode())

    async def send_end(self) -> None:
        status = "failed" if self.error is not None else "cancelled" if self.cancelled else "completed"
        output = []
        if self.has_started:
            item = self._item("completed" if status == "completed" else "incomplete")
            await self._send_part(f"{self._audio}.done")
            await self._send_part(f"{self._audio}_transcript.done", transcript=self.text)
            part = {"type": "audio", "transcript": self.text}
            await self._send_part("response.content_part.done", part=part)
            await self._send("response.output_item.done", item=item)
            if not self._is_out_of_band:
                await self._conversation.update(item)
            output.append(item)
        await self._conversation.send("response.done", response=self._describe(status, output))

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._conversation.send(kind, response_id=self.id, output_index=0, **fields)

    async def _send_part(self, kind: str, **fields: Any) -> None:
        await self._send(kind, item_id=self._item_id, content_index=0, **fields)

    def _item(self, status: str) -> dict[str, Any]:
        part = {"type": "audio" if self._conversation.beta else "output_audio", "transcript": self.text}
        return {
            "id": self._item_id,
            "object": "realtime.item",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [] if status == "in_progress" else [part],
        }

    def _describe(self, status: str, output: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        details: dict[str, Any] | None = None
        if self.error is not None:
            body = http_error(self.error).envelope["error"]
            details = {"type": status, "error": {name: body[name] for name in ("type", "code", "message")}}
        elif status == "cancelled":
            details = {"type": status, "reason": "client_cancelled"}
        chars, tokens = len(self.text), self.metrics.tokens
        usage = {"total_tokens": chars + tokens, "input_tokens": chars, "output_tokens": tokens}
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": output or [],
            "conversation_id": None if self._is_out_of_band else self._conversation.id,
            "metadata": self._metadata,
            "usage": None if status == "in_progress" else usage,
            **self._settings.describe(beta=self._conversation.beta),
        }
