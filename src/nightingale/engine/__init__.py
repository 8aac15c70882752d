"""Text in, audio chunks out. Knows no HTTP, no argv, and no audio file but the clips that become voices.

`AsyncTTS` is in `nightingale.engine.aio`, so that a program without asyncio does not import it.
"""

from nightingale.engine.tts import TTS

__all__ = ["TTS"]
