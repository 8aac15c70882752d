"""Voices by name: the user's folder first, then the voices of the model.

Several processes and machines may share the user's folder: each lookup reads it, and a name is created atomically.
The folder of a tenant of a server comes before the user's own, and only requests of that tenant read it (`tenant`).

The voices of the model are the package's, unless the model was loaded from a folder that has voices of its own:
then `came_with` is that folder, and the package's voices, which were made for other weights, are not used. Listing
reads only file headers.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from safetensors import SafetensorError, safe_open

from nightingale.errors import OutputError, VoiceError, VoiceExists, VoiceNotFound
from nightingale.files import is_device_name, write_whole
from nightingale.voices.home import builtin_folder, voices_folder, voices_url
from nightingale.voices.remote_voices import RemoteVoices, remote_voices
from nightingale.voices.voice import Voice, file_contents


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A voice in the library."""

    name: str
    path: Path
    builtin: bool
    tenant: str | None
    """The tenant of a server whose own voice it is; None if all have it."""
    family: str
    """"?" for a file whose header cannot be read; opening it will say why."""
    provenance: str


def is_name(text: str) -> bool:
    return re.fullmatch(r"[a-z0-9_-]{1,64}", text) is not None and not is_device_name(text)


def entries(came_with: Path | None = None, *, tenant: str | None = None) -> list[Entry]:
    """Return all voices by name; a user's voice hides a built-in one of the same name, and a tenant's hides both."""
    found: dict[str, Entry] = {}
    folders: list[tuple[Path, bool, str | None]] = [(came_with or builtin_folder(), True, None)]
    for owner in _owners(tenant):
        if (remote := _remote(owner)) is not None:
            remote.refresh_all()
        folders.insert(1, (voices_folder(owner), False, owner))
    for folder, builtin, owner in folders:
        for path in folder.glob("*.safetensors"):
            if is_name(path.stem):
                header = _metadata(path)
                found[path.stem] = Entry(
                    name=path.stem,
                    path=path,
                    builtin=builtin,
                    tenant=owner,
                    family=header.get("family", "?"),
                    provenance=header.get("provenance", ""),
                )
    return [found[name] for name in sorted(found)]


def find(name: str, came_with: Path | None = None, *, tenant: str | None = None) -> Path:
    """Return the file of a named voice; raise VoiceNotFound if there is none."""
    _check(name)
    if (path := locate(name, came_with, tenant=tenant)) is not None:
        return path
    known = [entry.name for entry in entries(came_with, tenant=tenant)]
    close = " or ".join(get_close_matches(name, known, n=3))
    raise VoiceNotFound(
        "no such voice",
        got=repr(name),
        allowed=", ".join(known) or "none yet",
        fix=f"Did you mean {close}?" if close else f"Add it: `nightingale voices add {name} CLIP.wav`.",
    )


def locate(name: str, came_with: Path | None = None, *, tenant: str | None = None) -> Path | None:
    """Return the file of a named voice, or None if there is none."""
    if not is_name(name):
        return None
    for owner in _owners(tenant):
        if (remote := _remote(owner)) is not None:
            remote.refresh(name)
        if (path := voices_folder(owner) / f"{name}.safetensors").is_file():
            return path
    path = (came_with or builtin_folder()) / f"{name}.safetensors"
    return path if path.is_file() else None


def load(name: str, came_with: Path | None = None) -> Voice:
    return Voice.load(find(name, came_with))


def check_free(name: str, *, tenant: str | None = None) -> None:
    """Raise VoiceExists if a voice has the name: it would be lost, or hidden if it is built in."""
    _check(name)
    if (path := locate(name, tenant=tenant)) is not None:
        raise _taken(name, added=path.parent != builtin_folder())


def add(name: str, voice: Voice, *, replace: bool = False, tenant: str | None = None) -> Path:
    """Save a voice under a name; with `replace`, also if another voice has it."""
    _check(name)
    if not replace:
        check_free(name, tenant=tenant)
    path = voices_folder(tenant) / f"{name}.safetensors"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = "Set NIGHTINGALE_HOME to a writable folder."
        raise OutputError("the voice folder could not be made", got=str(error), fix=fix) from error
    contents = file_contents(dataclasses.replace(voice, name=name))
    try:
        if (remote := _remote(tenant)) is not None:
            remote.create(name, contents, replace=replace)
        else:
            write_whole(path, contents, replace=replace)
    except FileExistsError as error:  # another process has added it since the check
        raise _taken(name, added=True) from error
    return path


def remove(name: str, came_with: Path | None = None, *, tenant: str | None = None) -> None:
    """Delete a voice that the user, or the tenant, added; raise VoiceError for any other one."""
    path = find(name, came_with, tenant=tenant)
    if path.parent != voices_folder(tenant):
        fix = "See `nightingale voices list`."
        raise VoiceError("built-in voices stay", got=repr(name), allowed="a voice that was added", fix=fix)
    if (remote := _remote(tenant)) is not None:
        remote.remove(name)
    path.unlink(missing_ok=True)  # two requests may delete it at the same time


def export(name: str, out: Path) -> None:
    """Copy a voice's file to `out`."""
    write_whole(out, find(name).read_bytes())


def _owners(tenant: str | None) -> tuple[str | None, ...]:
    """Return whose added voices are looked up, the first one first."""
    return (None,) if tenant is None else (tenant, None)


def _remote(tenant: str | None) -> RemoteVoices | None:
    """Return the store of the added voices, unless it is a local folder."""
    url = voices_url(tenant)
    return None if url is None else remote_voices(url, voices_folder(tenant))


def _taken(name: str, *, added: bool) -> VoiceExists:
    return VoiceExists(
        "a voice of that name exists",
        got=repr(name) if added else f"{name!r}, which is built in",
        fix="Choose another name, or say --replace to have yours in its place.",
    )


def _check(name: str) -> None:
    if not is_name(name):
        raise VoiceNotFound(
            "not a voice name",
            got=repr(name),
            allowed="1 to 64 of a-z, 0-9, _ and -, and no name of a Windows device (con, nul, com1)",
            fix="Use such a name, or the path of a clip or of a .safetensors voice.",
        )


def _metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="np") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError):
        return {}
