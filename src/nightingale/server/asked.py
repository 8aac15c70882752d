"""Whether the engine will take what a client asks for, and which field is at fault if not.

The engine itself says so when speech begins. A client wants to be told by the name of the field, and one that
keeps a socket open wants to be told when it sets the field, not in the middle of a conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nightingale.engine.controls import RANGES, Control
from nightingale.engine.controls import check_controls as check_by_engine
from nightingale.engine.habits import ENGLISH
from nightingale.engine.tts import TTS
from nightingale.errors import ConfigError, UnsupportedLanguage, VoiceError
from nightingale.voices.voice import Voice


def check_controls(asked: Mapping[str, Any], offered: Mapping[str, Control]) -> None:
    """The engine's own check, one field at a time. offered: `TTS.controls`."""
    # Of a model's habits only `ignored` is looked at: the controls that it does not offer.
    habits = replace(ENGLISH, ignored=frozenset(RANGES) - frozenset(offered) - {"seed"})
    for name, value in asked.items():
        try:
            check_by_engine({name: value}, habits)
        except ConfigError as error:
            error.param = name
            raise


def check_language(language: str | None, tts: TTS) -> None:
    spoken = tts.languages
    if language is None or language.lower() in spoken or (not language and len(spoken) > 1):
        return
    raise UnsupportedLanguage(
        "this model does not speak that language",
        got=repr(language[:80]),
        allowed=", ".join(spoken),
        fix="Choose one of these codes, or leave it out.",
    )


def check_voice(voice: Voice | None, tts: TTS) -> None:
    """Sizes are the engine's affair; voices of one family have the same."""
    if voice is not None and voice.family != tts.voice_family:
        raise VoiceError(
            f"the voice {voice.name!r} was made for another model",
            got=f"family {voice.family!r}",
            allowed=f"family {tts.voice_family!r}, for the model {tts.name!r}",
            fix="See GET /v1/audio/voices, or make it again from its clip.",
        )
