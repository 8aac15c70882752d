"""Speak with Home Assistant's own code. test_home_assistant.py runs this where Home Assistant is installed."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import wave
from types import SimpleNamespace
from typing import Any


async def speak(port: int) -> dict[str, Any]:
    """Return what the integration finds and hears: languages, voices, and the recording of a sentence."""
    from homeassistant.components.wyoming.data import WyomingService
    from homeassistant.components.wyoming.tts import WyomingTtsProvider

    service = await WyomingService.create("127.0.0.1", port)
    provider = WyomingTtsProvider(SimpleNamespace(entry_id="1"), service)
    language = provider.default_language
    voices = [voice.voice_id for voice in provider.async_get_supported_voices(language)]
    kind, data = await provider.async_get_tts_audio("The lights are off.", language, {"voice": voices[0]})
    with wave.open(io.BytesIO(data)) as recording:
        seconds = recording.getnframes() / recording.getframerate()
    unknown, _ = await provider.async_get_tts_audio("The lights are off.", language, {"voice": "missing"})
    return {
        "name": service.get_name(),
        "platforms": service.platforms,
        "language": language,
        "voices": voices,
        "kind": kind,
        "seconds": seconds,
        "kind of an unknown voice": unknown,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(speak(int(sys.argv[1])))))
