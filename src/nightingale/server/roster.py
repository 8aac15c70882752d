"""The voices a server offers: who there is, who is meant, who comes and who goes.

A client's words never become a path: only names of the library, of the model's own voice, and their aliases
are looked up.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nightingale.engine.tts import TTS
from nightingale.errors import CapacityError, VoiceError, VoiceExists, VoiceNotFound
from nightingale.server.aliases import read_blend, stand_in
from nightingale.server.settings import Settings
from nightingale.voices import library
from nightingale.voices.blend import blend
from nightingale.voices.voice import Voice

KEPT: Final = 128
"""Opened voices and blends that are remembered."""
DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceCard:
    """A voice as clients see it."""

    id: str
    name: str
    languages: tuple[str, ...]
    builtin: bool
    default: bool
    """Speaks when no voice is named."""
    description: str
    created: int
    """Unix time; 0 if it came with the model."""


class Roster:
    """Voices of one engine. Its methods read files: call them from a thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opened: OrderedDict[tuple[Any, ...], Voice] = OrderedDict()
        self._lock = threading.Lock()
        self._builtin: list[str] | None = None

    def cards(self, tts: TTS) -> list[VoiceCard]:
        """Everybody this engine can be, the default first."""
        default, own = self._default_name(tts), tts.default_voice
        found = [
            self._card(entry.name, tts, entry.builtin, entry.provenance, entry.path)
            for entry in library.entries(tts.voices_folder)
            if entry.family == tts.voice_family
        ]
        if own is not None and own.name not in {card.id for card in found}:
            found.append(self._card(own.name, tts, True, own.provenance))
        return sorted(found, key=lambda card: (card.id != default, card.id))

    def resolve(self, spec: str | Mapping[str, Any] | None, tts: TTS) -> Voice | None:
        """The voice that is meant; None is the model's own."""
        words = spec.get("id") if isinstance(spec, Mapping) else spec
        if words is None or (isinstance(words, str) and words.strip().lower() in ("", DEFAULT)):
            words = self._settings.voice
        if words is None:
            return None
        if not isinstance(words, str):
            raise VoiceError(
                "not a voice", got=repr(spec)[:100], allowed='a name, or {"id": name}', fix="Send one."
            )
        parts = [(self._named(name, tts), weight) for name, weight in read_blend(words)]
        if len(parts) == 1:
            return parts[0][0]
        key = tuple((voice.content_hash, weight) for voice, weight in parts)
        with self._lock:
            if key not in self._opened:
                self._keep(key, blend(parts))
            return self._opened[key]

    def add(self, name: str, clip: bytes, tts: TTS) -> VoiceCard:
        """Compute a voice once and keep it by name."""
        known = {entry.name: entry for entry in library.entries(tts.voices_folder)}
        if (meaning := self._meaning(name, known, tts)) is not None:
            raise VoiceExists(
                "the name is taken",
                got=f"{name!r}, which is {meaning}",
                allowed="a name that means nobody here",
                fix="Choose another, or delete the voice that has it if that was added.",
            )
        mine = [entry for entry in known.values() if not entry.builtin]
        if len(mine) >= self._settings.max_voices:
            raise CapacityError(
                "no more voices can be kept",
                got=f"{len(mine)} voices",
                allowed=f"at most {self._settings.max_voices}",
                fix="Delete one, or raise max_voices.",
            )
        voice = tts.learn(clip, name=name, max_seconds=self._settings.max_clip_seconds)
        path = library.add(name, voice)
        return self._card(name, tts, False, voice.provenance, path)

    def _meaning(self, name: str, known: Mapping[str, library.Entry], tts: TTS) -> str | None:
        """Whom a name means already, in words: a voice kept under it would never be asked for, or would hide
        somebody, perhaps another model's."""
        if name == DEFAULT:
            return "whoever speaks when none is named"
        if (other := self._settings.voice_aliases.get(name)) is not None:
            return f"an alias of {other}"
        if (entry := known.get(name)) is not None:
            return f"a voice for {entry.family} models"
        if tts.default_voice is not None and name == tts.default_voice.name:
            return "the model's own voice"
        # Names that clients of OpenAI and Kokoro send unasked: they would suddenly hear somebody's upload.
        other = stand_in(name, self._cast(tts))
        return None if other is None else f"another name of {other}"

    def remove(self, name: str, tts: TTS) -> None:
        library.remove(name, tts.voices_folder)

    def _card(
        self, name: str, tts: TTS, builtin: bool, description: str, path: Path | None = None
    ) -> VoiceCard:
        return VoiceCard(
            id=name,
            name=name,
            languages=tts.languages,
            builtin=builtin,
            default=name == self._default_name(tts),
            description=description,
            created=0 if builtin or path is None else _born(path),
        )

    def _default_name(self, tts: TTS) -> str | None:
        return self._settings.voice or (tts.default_voice.name if tts.default_voice else None)

    def _named(self, name: str, tts: TTS) -> Voice:
        name = self._settings.voice_aliases.get(name, name)
        own = tts.default_voice
        if (path := library.locate(name, tts.voices_folder)) is not None:
            return self._open(path)
        if own is not None and name == own.name:
            return own
        other = stand_in(name, self._cast(tts))
        if other is None:
            raise VoiceNotFound(
                "no such voice",
                got=repr(name),
                allowed=", ".join(card.id for card in self.cards(tts)) or "none yet",
                fix="See GET /v1/audio/voices, or add one with POST.",
            )
        return (
            own
            if own is not None and other == own.name
            else self._open(library.find(other, tts.voices_folder))
        )

    def _cast(self, tts: TTS) -> list[str]:
        """Who answers to names of others: the voices that came with the model, so that nobody who is added
        changes whose voice a name is."""
        if self._builtin is None:
            found = [
                entry for entry in library.entries(tts.voices_folder) if entry.family == tts.voice_family
            ]
            builtin = sorted(entry.name for entry in found if entry.builtin)
            own = tts.default_voice
            self._builtin = builtin or ([own.name] if own is not None else [])
        # A model without any voice of its own speaks with the ones it was given.
        return self._builtin or [card.id for card in self.cards(tts)]

    def _open(self, path: Path) -> Voice:
        """A voice from its file, read once until the file changes."""
        try:
            status = path.stat()
        except OSError as error:
            raise VoiceNotFound(
                "no such voice", got=repr(path.stem), allowed="one that is kept", fix="It was just removed."
            ) from error
        key = (str(path), status.st_mtime_ns, status.st_size)
        with self._lock:
            if key not in self._opened:
                self._keep(key, Voice.load(path))
            self._opened.move_to_end(key)
            return self._opened[key]

    def _keep(self, key: tuple[Any, ...], voice: Voice) -> None:
        self._opened[key] = voice
        if len(self._opened) > KEPT:
            self._opened.popitem(last=False)


def _born(path: Path) -> int:
    try:
        return int(path.stat().st_mtime)
    except OSError:
        return 0
