"""Nightingale: text to speech with the Chatterbox family of models.

This file is the whole public face. What needs torch or numpy is imported when it is first asked for, so that
`import nightingale` and `nightingale --help` stay instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nightingale.errors import (
    BadReference,
    CapacityError,
    CheckpointError,
    ConfigError,
    DeviceError,
    EmptyText,
    EngineFault,
    LanguagePackageMissing,
    MemoryFull,
    ModelError,
    ModelMissing,
    NightingaleError,
    OutputError,
    QueueFull,
    TextError,
    TextTooLong,
    UnknownModel,
    UnsupportedLanguage,
    VoiceError,
    VoiceExists,
    VoiceNotFound,
)

if TYPE_CHECKING:
    from nightingale.audio.encoders.recording import save
    from nightingale.engine import TTS, AsyncTTS
    from nightingale.types import Audio, AudioChunk, Metrics, Sampling
    from nightingale.voices.voice import Voice

__version__ = "0.1.0"

__all__ = [
    "TTS",
    "AsyncTTS",
    "Audio",
    "AudioChunk",
    "BadReference",
    "CapacityError",
    "CheckpointError",
    "ConfigError",
    "DeviceError",
    "EmptyText",
    "EngineFault",
    "LanguagePackageMissing",
    "MemoryFull",
    "Metrics",
    "ModelError",
    "ModelMissing",
    "NightingaleError",
    "OutputError",
    "QueueFull",
    "Sampling",
    "TextError",
    "TextTooLong",
    "UnknownModel",
    "UnsupportedLanguage",
    "Voice",
    "VoiceError",
    "VoiceExists",
    "VoiceNotFound",
    "__version__",
    "save",
]

_LATE = {
    "TTS": "nightingale.engine",
    "AsyncTTS": "nightingale.engine",
    "Audio": "nightingale.types",
    "AudioChunk": "nightingale.types",
    "Metrics": "nightingale.types",
    "Sampling": "nightingale.types",
    "Voice": "nightingale.voices.voice",
    "save": "nightingale.audio.encoders.recording",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'nightingale' has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
