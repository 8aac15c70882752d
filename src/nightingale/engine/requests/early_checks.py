"""Checks of a call before its model is loaded, which may take long, or is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nightingale.backends import BACKENDS
from nightingale.backends.profiles import profile_named
from nightingale.backends.selection import find_machine
from nightingale.engine.rendering.word_timer import check_heads
from nightingale.engine.requests.controls import check_control
from nightingale.errors import VoiceNotFound
from nightingale.hub.cards import CARDS
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.request_options import NUMBERS
from nightingale.text.languages import LANGUAGES, check_language
from nightingale.text.sound_tags import tags_of as tags_of
from nightingale.voices import library
from nightingale.voices.aliases import DEFAULT, resolve_alias
from nightingale.voices.blend import is_blend, parse_blend


def languages_of(model: str) -> tuple[str, ...]:
    """Return the codes of the languages that a model of that name speaks."""
    return tuple(LANGUAGES) if model == "multilingual" else ("en",)


def check_call(
    model: str | None,
    *,
    profile: str | None,
    device: str,
    voice: str | None,
    language: str | None,
    timestamps: bool = False,
    **controls: Any,
) -> None:
    """Raise the error that a call would end with, as far as it is known without the model's files.

    Args:
        model: A name or a folder; None is wren. Nothing is known of the voices and languages of a folder.
        profile, device: As `TTS` takes them.
        voice, language, timestamps, controls: As `TTS.say` takes them.
    """
    name = model or "wren"
    if timestamps and name in PRESETS:
        check_heads(name, PRESETS[name].t3)
    profile_named(profile)
    if device != "auto":
        find_machine(BACKENDS, device)
    ignored = MODEL_DEFAULTS[name].ignored if name in MODEL_DEFAULTS else ()
    for control, value in controls.items():
        if control in NUMBERS:
            check_control(control, value, ignored)
    is_known = name == "wren" or name in CARDS
    if language is not None and is_known:
        check_language(language, languages_of(name))
    if voice is not None:
        blended = is_blend(voice) and not Path(voice).expanduser().is_file()
        for one in [name for name, _ in parse_blend(voice)] if blended else [voice]:
            _check_voice(one, any_name=not is_known)


def _check_voice(voice: str, *, any_name: bool) -> None:
    name, is_file = voice.lower(), Path(voice).expanduser().is_file()
    if is_file or (any_name and library.is_name(name)) or name == DEFAULT:
        return
    if not library.is_name(name):
        fix = "See `nightingale voices list`, or check the path."
        raise VoiceNotFound(
            "no such voice", got=repr(voice), allowed="a name, a clip or a voice file", fix=fix
        )
    builtin = [entry.name for entry in library.entries() if entry.builtin]
    if resolve_alias(name, builtin) is None:
        library.find(name)
