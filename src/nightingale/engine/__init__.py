"""Text in, audio chunks out. Knows no HTTP, no argv, and no audio file but the clips that become voices."""

from nightingale.engine.aio import AsyncTTS
from nightingale.engine.tts import TTS

__all__ = ["TTS", "AsyncTTS"]
