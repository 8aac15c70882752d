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
    "OutOfMemory",
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
    "nightingale.audio.encoders.recording": ("save",),
    "nightingale.engine": ("TTS",),
    "nightingale.engine.aio": ("AsyncTTS",),
    "nightingale.types": ("Audio", "AudioChunk", "Metrics", "Sampling"),
    "nightingale.voices.voice": ("Voice",),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATE.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'nightingale' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
