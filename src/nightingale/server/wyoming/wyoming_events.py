"""Wyoming events: reading them with limits, and describing the server.

The reader of the package `wyoming` accepts any length that a client announces, so this is our own.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final

from wyoming.event import Event
from wyoming.info import Attribution, Info, TtsProgram, TtsVoice

from nightingale import __version__
from nightingale.server.service.voice_registry import VoiceInfo

MAX_LINE_BYTES: Final = 1 << 16
MAX_EXTRA_BYTES: Final = 1 << 20
"""Maximum length of an event's data and of its payload."""


async def read_event(reader: asyncio.StreamReader) -> Event | None:
    """Return the next event, or None at the end of the stream or if it is malformed."""
    try:
        head = json.loads(await reader.readline())
        kind, data = head["type"], head.get("data") or {}
        sizes = [head.get("data_length") or 0, head.get("payload_length") or 0]
        if not all(isinstance(size, int) and 0 <= size <= MAX_EXTRA_BYTES for size in sizes):
            return None
        if sizes[0]:
            data = {**data, **json.loads(await reader.readexactly(sizes[0]))}
        payload = await reader.readexactly(sizes[1]) if sizes[1] else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, EOFError):
        return None
    return Event(type=str(kind), data=data, payload=payload) if isinstance(data, dict) else None


def describe(voices: list[VoiceInfo]) -> Info:
    """Describe the server and its voices."""
    attribution = Attribution(name="Nightingale", url="")
    known = [
        TtsVoice(
            name=voice.id,
            description=voice.name,
            attribution=attribution,
            installed=True,
            version=None,
            languages=voice.languages,
        )
        for voice in voices
    ]
    program = TtsProgram(
        name="nightingale",
        description="Nightingale text to speech",
        attribution=attribution,
        installed=True,
        version=__version__,
        voices=known,
        supports_synthesize_streaming=True,
    )
    return Info(tts=[program])
