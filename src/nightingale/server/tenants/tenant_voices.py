"""The voices of a server as the tenant of the running request has them: its own, those of all, and the model's.

A voice that a tenant uploads is its own: no other one can list, use or delete it, and two may have the same name.
Voices of all are added by admins, who can also list, delete and share those of any tenant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nightingale.engine.tts import TTS
from nightingale.errors import VoiceNotFound
from nightingale.server.service.voice_registry import VoiceInfo, VoiceRegistry
from nightingale.server.settings import ServerSettings
from nightingale.server.tenants.access_errors import admin_required
from nightingale.server.tenants.tenant_registry import TenantRegistry
from nightingale.voices.library import is_name
from nightingale.voices.voice import Voice


class TenantVoices:
    """Voices for one engine. The methods read files: call them in a thread, with the context of the request."""

    def __init__(self, settings: ServerSettings, tenants: TenantRegistry) -> None:
        self.registry = VoiceRegistry(settings)
        self._tenants = tenants

    def entries(self, tts: TTS, of: str | None = None) -> list[VoiceInfo]:
        """Return the voices that the tenant may use; `of`: only the own ones of another tenant, for an admin."""
        found = self.registry.entries(tts, self._folder(of))
        if not self._tenants.current().is_admin:
            for voice in found:
                voice.deletable &= not voice.shared
        return found if of is None else [voice for voice in found if not voice.shared]

    def resolve(self, spec: Voice | str | Mapping[str, Any] | None, tts: TTS) -> Voice | None:
        """Return the voice for a name, an alias, {"id": name} or a blend; None is the model's own."""
        return self.registry.resolve(spec, tts, self._folder())

    def by_name(self, tts: TTS) -> NamedVoices:
        """Return the voices that the SSML of a request may name."""
        return NamedVoices(self, tts)

    def add(self, name: str, clip: bytes, shared: bool, tts: TTS) -> VoiceInfo:
        """Create a voice from a clip and store it under `name`; `shared`: for all tenants."""
        tenant = self._tenants.current()
        folder = None if shared else tenant.folder
        if folder is None and not tenant.is_admin:
            raise admin_required("voices for all tenants are added by admins")
        return self.registry.add(name, clip, tts, folder)

    def remove(self, name: str, tts: TTS, of: str | None = None) -> None:
        """Delete a voice that the tenant uploaded or, if it is an admin, one of all, or one `of` another tenant."""
        tenant, folder = self._tenants.current(), self._folder(of)
        if of is None and self.registry.is_own(name, None) and not self.registry.is_own(name, folder):
            if not tenant.is_admin:
                raise admin_required("voices of all tenants are deleted by admins")
            folder = None
        self.registry.remove(name, tts, folder)

    def share(self, name: str, tts: TTS, of: str | None = None) -> VoiceInfo:
        """Give an own voice of the admin, or `of` another tenant, to all tenants."""
        if not self._tenants.current().is_admin:
            raise admin_required("voices are shared by admins")
        if (folder := self._folder(of)) is None:  # a server without a key file: all voices are shared
            raise VoiceNotFound("no such voice of the tenant", got=repr(name[:80]))
        return self.registry.share(name, tts, folder)

    def _folder(self, of: str | None = None) -> str | None:
        """Return the folder of the tenant's voices, or of those `of` another one if it is an admin."""
        tenant = self._tenants.current()
        if of is None or of == tenant.name:
            return tenant.folder
        if not tenant.is_admin:
            raise admin_required("the voices of another tenant are managed by admins")
        return self._tenants.named(of).folder


class NamedVoices(Mapping[str, Voice]):
    """The voices of the tenant by name, each read when it is looked up; an unknown name raises VoiceNotFound."""

    def __init__(self, voices: TenantVoices, tts: TTS) -> None:
        self._voices, self._tts = voices, tts

    def __getitem__(self, name: str) -> Voice:
        voice = self._voices.resolve(name, self._tts) if is_name(name) else None
        if voice is None:  # the model's own; or no name, which the engine refuses
            raise KeyError(name)
        return voice

    def __iter__(self) -> Iterator[str]:
        return (voice.id for voice in self._voices.entries(self._tts))

    def __len__(self) -> int:
        return len(self._voices.entries(self._tts))
