"""The engine of a server: made from its settings, warmed up before anybody waits for it, and let go of."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import Final, Self

import torch

from nightingale.backends.profiles import profile_named
from nightingale.engine.load import load_model
from nightingale.engine.model import default_model
from nightingale.engine.requests.controls import Control
from nightingale.engine.tts import TTS
from nightingale.errors import VoiceNotFound
from nightingale.server.roster import Roster
from nightingale.server.settings import Settings

WARM_UP: Final = "Ready at 1 or 2."
"""With figures: the rules that read them are made when there are some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What is known of the model, also while it is unloaded."""

    name: str
    languages: tuple[str, ...]
    controls: dict[str, Control]
    notice: str | None

    @classmethod
    def of(cls, tts: TTS) -> Self:
        return cls(name=tts.name, languages=tts.languages, controls=tts.controls, notice=tts.notice)


def load(settings: Settings) -> TTS:
    model = load_model(
        settings.model or default_model(),
        device=settings.device,
        dtype="auto",
        offline=settings.offline,
        options=settings.option,
    )
    profile = profile_named(settings.profile or model.defaults.profile)
    profile = replace(profile, slots=settings.slots, queue_limit=settings.max_queue)
    return TTS.over(model, profile, max_chars=settings.max_text_chars)


def warm_up(tts: TTS, roster: Roster) -> None:
    """Speak once, so that the first listener does not pay for what is only slow the first time."""
    try:
        voice = roster.resolve(None, tts)
    except VoiceNotFound as error:  # it ends the server; whoever starts it has a command line, and no client
        raise VoiceNotFound(
            "the voice that speaks if none is asked for (--voice) is not here",
            got=error.got,
            allowed=error.allowed,
            fix="See `nightingale voices list`, or add it with `nightingale voices add NAME CLIP.wav`.",
        ) from error
    if voice is None and tts.default_voice is None:
        cards = roster.cards(tts)
        if not cards:
            return  # a model without a voice waits for somebody to bring one
        voice = roster.resolve(cards[0].id, tts)
    for _ in tts.open(WARM_UP, voice=voice, seed=0).chunks():
        pass


def give_back_memory() -> None:
    """What an unloaded model leaves behind. CUDA's own context stays until the process ends."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def gpu_bytes() -> float:
    return float(torch.cuda.memory_reserved()) if torch.cuda.is_available() else 0.0
