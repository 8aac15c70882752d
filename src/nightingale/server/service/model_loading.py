"""Load, warm up and unload the engine of a server."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from typing import Any, Final, Literal

from pydantic import BaseModel

from nightingale.backends.profiles import profile_named, with_options
from nightingale.engine.load import default_model, load_model
from nightingale.engine.tts import TTS
from nightingale.errors import VoiceNotFound
from nightingale.server.service.voice_registry import VoiceRegistry
from nightingale.server.settings import ServerSettings

WARM_UP_TEXT: Final = "Ready at 1 or 2."
"""With digits, so that the normalization rules for numbers are compiled, too."""


REQUEST_CONTROLS: Final = ("speed", "temperature", "exaggeration", "cfg_weight")
"""Controls for which a request has fields."""


class ControlRange(BaseModel):
    min: float
    max: float
    default: float


class ModelCard(BaseModel):
    """The model as clients see it, which is also known while it is unloaded."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "nightingale"
    languages: list[str] = []
    controls: dict[str, ControlRange] = {}
    """Fields of a speech request that this model supports."""
    notice: str | None = None
    """A remark that must be shown to the user."""

    @classmethod
    def describe(cls, tts: TTS) -> ModelCard:
        controls = {
            name: ControlRange(min=control.low, max=control.high, default=control.default)
            for name, control in tts.controls.items()
            if name in REQUEST_CONTROLS
        }
        return cls(id=tts.name, languages=list(tts.languages), controls=controls, notice=tts.notice)


def load_engine(settings: ServerSettings) -> TTS:
    name = settings.model or default_model()
    model = load_model(name, offline=settings.offline, options=settings.option)
    asked = with_options(settings.profile, {"stream": settings.stream})
    profile = profile_named(asked, default=model.defaults.profile)
    profile = replace(profile, slots=settings.slots, queue_limit=settings.max_queue)
    return TTS.over(
        model,
        profile,
        max_chars=settings.max_text_chars,
        device=settings.device,
        max_streams=settings.max_streams,
    )


def warm_up(tts: TTS, voices: VoiceRegistry) -> None:
    """Synthesize once, so that the first request does not pay for one-time work."""
    try:
        voice = voices.resolve(None, tts)
    except VoiceNotFound as error:  # ends the server: the message is for its operator and not for a client
        raise VoiceNotFound(
            "the default voice (--voice) does not exist",
            got=error.got,
            allowed=error.allowed,
            fix="See `nightingale voices list`, or add it with `nightingale voices add NAME CLIP.wav`.",
        ) from error
    if voice is None and tts.default_voice is None:
        known = voices.entries(tts)
        if not known:
            return  # a model without voices waits for the first upload
        voice = voices.resolve(known[0].id, tts)
    for _ in tts.open(WARM_UP_TEXT, voice=voice, seed=0).chunks():
        pass


def release_memory() -> None:
    """Free what an unloaded model leaves behind. The CUDA context stays until the process ends."""
    gc.collect()
    if (cuda := _cuda()) is not None:
        cuda.empty_cache()


def gpu_memory_bytes() -> float:
    return 0.0 if (cuda := _cuda()) is None else float(cuda.memory_reserved())


def _cuda() -> Any:
    """Return torch.cuda if a backend has loaded torch and there is a GPU; the server needs no torch."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() else None
