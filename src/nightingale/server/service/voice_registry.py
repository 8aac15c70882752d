"""The voices of a server: listing, lookup by name, alias or blend, adding and removing.

Words of a client never become a path. They are compared with the names of the library and of the model's own
voice, and with aliases of these. Some clients accept only OpenAI's thirteen names, so each of them has a voice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel

from nightingale.engine.tts import TTS
from nightingale.errors import CapacityError, OutputError, VoiceError, VoiceExists, VoiceNotFound
from nightingale.server.settings import ServerSettings
from nightingale.voices import library
from nightingale.voices.aliases import DEFAULT, resolve_alias
from nightingale.voices.blend import blend, invalid_voice, parse_blend
from nightingale.voices.home import builtin_folder, voices_folder
from nightingale.voices.traits import BUILTIN_TRAITS, VoiceTraits
from nightingale.voices.voice import Voice

log = logging.getLogger("nightingale.server")

CACHE_SIZE: Final = 128
"""Voices and blends that are kept in memory."""


class VoiceInfo(BaseModel):
    """A voice as clients see it."""

    id: str
    name: str
    object: Literal["voice"] = "voice"
    language: str | None
    """Its language, if it has only one."""
    languages: list[str]
    builtin: bool
    default: bool
    """True for the voice of requests that name none."""
    shared: bool
    """True if all tenants of the server have it."""
    deletable: bool
    """True if the client may delete it: a tenant its own voices, an admin also those of all."""
    description: str
    gender: str | None
    """"female" or "male", if known."""
    accent: str | None
    """Such as "British", if known."""
    created: int
    """Unix time; 0 if it came with the model."""


class VoiceRegistry:
    """Voices for one engine. The methods read files: call them in a thread.

    tenant: the name of the folder of the tenant that asks. No method shows or uses the voices of another one; None has
    only those that all have.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._blend = lru_cache(CACHE_SIZE)(blend)
        self._read = lru_cache(CACHE_SIZE)(lambda path, _modified_ns, _size: Voice.load(path))
        self._builtin: list[str] | None = None

    def entries(self, tts: TTS, tenant: str | None = None) -> list[VoiceInfo]:
        """Return all voices that the engine can use, the default first."""
        own = tts.default_voice
        found = [
            self._info(tts, entry.name, entry.provenance, None if entry.builtin else entry.path, entry.tenant)
            for entry in library.entries(tts.voices_folder, tenant=tenant)
            if entry.family == tts.voice_family
        ]
        if own is not None and own.name not in {voice.id for voice in found}:
            found.append(self._info(tts, own.name, own.provenance, None))
        return sorted(found, key=lambda voice: (not voice.default, voice.id))

    def resolve(
        self, spec: Voice | str | Mapping[str, Any] | None, tts: TTS, tenant: str | None = None
    ) -> Voice | None:
        """Return the voice for a name, an alias, {"id": name} or a blend; None is the model's own."""
        if isinstance(spec, Voice):
            return spec
        words = spec.get("id") if isinstance(spec, Mapping) else spec
        if words is None or (isinstance(words, str) and words.strip().lower() in ("", DEFAULT)):
            words, tenant = self._settings.voice, None  # the operator means a voice that all have
        if words is None:
            return None
        if not isinstance(words, str):
            raise invalid_voice(spec)
        parts = tuple((self._find(name, tts, tenant), weight) for name, weight in parse_blend(words))
        return parts[0][0] if len(parts) == 1 else self._blend(parts)

    def add(self, name: str, clip: bytes, tts: TTS, tenant: str | None = None) -> VoiceInfo:
        """Create a voice from a clip and store it under `name`, as one of the tenant's own; None: for all."""
        known = {entry.name: entry for entry in library.entries(tts.voices_folder, tenant=tenant)}
        if (meaning := self._meaning(name, known, tts)) is not None:
            raise VoiceExists(
                "the name is taken",
                got=f"{name!r}, which is {meaning}",
                fix="Choose another, or delete the voice if it was uploaded.",
            )
        uploaded = sum(not entry.builtin and entry.tenant == tenant for entry in known.values())
        if uploaded >= self._settings.max_voices:
            allowed = f"at most {self._settings.max_voices}"
            raise CapacityError("too many voices", allowed=allowed, fix="Delete one, or raise max_voices.")
        voice = tts.learn(clip, name=name, max_seconds=self._settings.max_clip_seconds)
        with _storage():
            path = library.add(name, voice, tenant=tenant)
        return self._info(tts, name, voice.provenance, path, tenant)

    def remove(self, name: str, tts: TTS, tenant: str | None = None) -> None:
        """Delete an uploaded voice of the tenant's own; None: one that all have."""
        with _storage():
            library.remove(name, tts.voices_folder, tenant=tenant)

    def is_own(self, name: str, tenant: str | None) -> bool:
        """Return whether a voice of that name was uploaded by the tenant, or for all if that is None."""
        path = library.locate(name, tenant=tenant)
        return path is not None and path.parent == voices_folder(tenant)

    def share(self, name: str, tts: TTS, tenant: str) -> VoiceInfo:
        """Give a voice of a tenant's own to all; raise VoiceExists if all have one of that name."""
        if not self.is_own(name, tenant):
            raise VoiceNotFound("no such voice of the tenant", got=repr(name[:80]))
        voice = Voice.load(library.find(name, tts.voices_folder, tenant=tenant))
        with _storage():
            path = library.add(name, voice)
            library.remove(name, tts.voices_folder, tenant=tenant)
        return self._info(tts, name, voice.provenance, path)

    def _meaning(self, name: str, known: Mapping[str, library.Entry], tts: TTS) -> str | None:
        """Describe what a name, perhaps one of OpenAI's or Kokoro's, means already; None if it is free."""
        if name == DEFAULT:
            return "the voice for requests that name none"
        if (other := self._settings.voice_aliases.get(name)) is not None:
            return f"an alias of {other}"
        if (entry := known.get(name)) is not None:
            return f"a voice for {entry.family} models"
        if tts.default_voice is not None and name == tts.default_voice.name:
            return "the model's own voice"
        other = resolve_alias(name, self._builtin_names(tts))
        return None if other is None else f"another name of {other}"

    def _info(
        self, tts: TTS, name: str, description: str, uploaded: Path | None, tenant: str | None = None
    ) -> VoiceInfo:
        own = tts.default_voice
        # A model's folder may have voices of the same names that sound differently.
        is_package = uploaded is None and tts.voices_folder in (None, builtin_folder())
        traits = BUILTIN_TRAITS.get(name, VoiceTraits()) if is_package else VoiceTraits()
        return VoiceInfo(
            id=name,
            name=name,
            language=tts.languages[0] if len(tts.languages) == 1 else None,
            languages=list(tts.languages),
            builtin=uploaded is None,
            default=tenant is None and name == (self._settings.voice or (own.name if own else None)),
            shared=tenant is None,
            deletable=uploaded is not None and self._settings.uploads,
            description=description,
            gender=traits.gender,
            accent=traits.accent,
            created=0 if uploaded is None else _modified(uploaded),
        )

    def _find(self, name: str, tts: TTS, tenant: str | None) -> Voice:
        own = tts.default_voice
        if name in self._settings.voice_aliases:  # the operator means a voice that all have
            name, tenant = self._settings.voice_aliases[name], None
        if (path := library.locate(name, tts.voices_folder, tenant=tenant)) is not None:
            return self._load(path)
        own_name = None if own is None else own.name
        target = name if name == own_name else resolve_alias(name, self._builtin_names(tts))
        if target is None:
            raise VoiceNotFound(
                "no such voice",
                got=repr(name),
                allowed=", ".join(voice.id for voice in self.entries(tts, tenant)) or "none yet",
                fix="See GET /v1/audio/voices, or add one with POST.",
            )
        if own is not None and target == own_name:
            return own
        return self._load(library.find(target, tts.voices_folder))

    def _builtin_names(self, tts: TTS) -> list[str]:
        """Return the voices that aliases refer to: those of the model, so that an upload changes no alias."""
        if self._builtin is None:
            own = tts.default_voice
            builtin = sorted(
                entry.name
                for entry in library.entries(tts.voices_folder)
                if entry.builtin and entry.family == tts.voice_family
            )
            self._builtin = builtin or ([own.name] if own is not None else [])
        # A model without voices of its own has only the uploaded ones.
        return self._builtin or [voice.id for voice in self.entries(tts)]

    def _load(self, path: Path) -> Voice:
        """Read a voice file, once until it changes."""
        try:
            status = path.stat()
        except OSError as error:  # removed since it was located
            raise VoiceNotFound("no such voice", got=repr(path.stem)) from error
        try:
            return self._read(path, status.st_mtime_ns, status.st_size)
        except VoiceError as error:  # its message has the path of the file
            log.error("a voice file cannot be read", extra={"error": str(error)})
            fix = "Delete it and add it again."
            raise VoiceError("the file of the voice is damaged", got=repr(path.stem), fix=fix) from error


@contextmanager
def _storage() -> Iterator[None]:
    """Log why voices cannot be stored, and tell the client only that they cannot."""
    try:
        yield
    except (OutputError, OSError) as error:
        log.error("the voice folder cannot be written", extra={"error": str(error)})
        raise CapacityError(
            "the server cannot store voices now", fix="Ask its operator: the server's log has the cause."
        ) from error


def _modified(path: Path) -> int:
    try:
        return int(path.stat().st_mtime)
    except OSError:
        return 0
