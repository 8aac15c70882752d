"""Nightingale: text to speech with the Chatterbox family of models.

This file is the public API. Names that need torch or numpy are imported on first use, so that `import nightingale`
and `nightingale --help` stay fast.
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
    OutOfMemory,
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
    from nightingale.engine import TTS
    from nightingale.engine.aio import AsyncTTS
    from nightingale.engine.captions import format_srt, format_webvtt
    from nightingale.engine.conversion import VoiceConverter
    from nightingale.types import Audio, AudioChunk, Metrics, Sampling, SpeechProgress, TimedWord
    from nightingale.voices.voice import Voice

__version__ = "0.2.0"

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
    "OutOfMemory",
    "OutputError",
    "QueueFull",
    "Sampling",
    "SpeechProgress",
    "TextError",
    "TextTooLong",
    "TimedWord",
    "UnknownModel",
    "UnsupportedLanguage",
    "Voice",
    "VoiceConverter",
    "VoiceError",
    "VoiceExists",
    "VoiceNotFound",
    "__version__",
    "format_srt",
    "format_webvtt",
    "save",
]

_LATE = {
    "nightingale.audio.encoders.recording": ("save",),
    "nightingale.engine": ("TTS",),
    "nightingale.engine.aio": ("AsyncTTS",),
    "nightingale.engine.captions": ("format_srt", "format_webvtt"),
    "nightingale.engine.conversion": ("VoiceConverter",),
    "nightingale.types": ("Audio", "AudioChunk", "Metrics", "Sampling", "SpeechProgress", "TimedWord"),
    "nightingale.voices.voice": ("Voice",),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATE.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'nightingale' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
