"""Load, warm up and unload the engine of a server."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel

from nightingale.backends.profiles import profile_named, with_options
from nightingale.engine.load import default_model, load_model
from nightingale.engine.requests.early_checks import tags_of
from nightingale.engine.tts import TTS
from nightingale.errors import ConfigError, VoiceError, VoiceNotFound
from nightingale.server.service.voice_registry import VoiceRegistry
from nightingale.server.settings import ServerSettings

WARM_UP_TEXT: Final = "Ready at 1 or 2."
"""With digits, so that the normalization rules for numbers are compiled, too."""

MALLOPT_HEAPS: Final = -8  # M_ARENA_MAX in glibc's malloc.h
MIMALLOC_DELAY_S: Final = 0.15
MIMALLOC_LARGE_BYTES: Final = 64 << 20


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
    tags: list[str] = []
    """Sounds and ways of speaking that a text may have, such as [laugh]."""
    notice: str | None = None
    """A remark that must be shown to the user."""
    times_words: bool = False
    """True if timestamps="word" is available."""
    max_input_chars: int | None = None
    """The longest text of one request."""

    @classmethod
    def describe(cls, tts: TTS) -> ModelCard:
        controls = {
            name: ControlRange(min=control.low, max=control.high, default=control.default)
            for name, control in tts.controls.items()
        }
        return cls(
            id=tts.name,
            languages=list(tts.languages),
            controls=controls,
            tags=list(tags_of(tts.name)),
            notice=tts.notice,
            times_words=_times_words(tts),
        )


def _times_words(tts: TTS) -> bool:
    try:
        tts.check(timestamps=True)
    except ConfigError:
        return False
    except VoiceError:
        return True  # a model without a voice of its own: that is found after the timestamps were checked
    return True


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
        watermark=settings.watermark,
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


def share_heap() -> None:
    """Let all threads of this process allocate from one heap. Call it before there are any (glibc only).

    By default each thread has its own, of which `malloc_trim` does not return the unused end: after each unload of
    wren 30 MB more were kept. Speech takes as much processor time with one heap as with many.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(MALLOPT_HEAPS, 1)


def release_memory() -> None:
    """Free what an unloaded model leaves behind. The CUDA context stays until the process ends."""
    gc.collect()
    # glibc keeps freed memory between blocks that are still used. Other systems have no such function.
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
    if (torch := sys.modules.get("torch")) is not None:
        # On ARM, PyTorch allocates with mimalloc, which returns memory only when a large block is freed after
        # its delay (`mi_option_purge_delay` times 10). This one is never touched, so it takes no memory.
        time.sleep(MIMALLOC_DELAY_S)
        torch.empty(MIMALLOC_LARGE_BYTES, dtype=torch.uint8)
    if (cuda := _cuda()) is not None:
        cuda.empty_cache()


def resident_bytes() -> int:
    """Return the memory of this process, as far as it is in RAM; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def gpu_memory_bytes() -> float:
    return 0.0 if (cuda := _cuda()) is None else float(cuda.memory_reserved())


def _cuda() -> Any:
    """Return torch.cuda if a backend has loaded torch and there is a GPU; the server needs no torch."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() else None
