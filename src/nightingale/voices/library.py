"""Voices by name: the user's folder first, then the ones that came with the model.

Those are the package's, unless the model was loaded from a folder that has voices of its own: then
`came_with` is that folder, and the package's, which were made for other weights, are not looked at.

Listing reads only file headers and needs no torch; it is imported when a voice is opened.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nightingale.errors import OutputError, VoiceError, VoiceExists, VoiceNotFound
from nightingale.files import write_whole
from nightingale.voices.home import builtin_folder, voices_folder

if TYPE_CHECKING:
    from nightingale.voices.voice import Voice

_NAME = re.compile(r"[a-z0-9_-]{1,64}")
_HEADER_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A voice in the library."""

    name: str
    path: Path
    builtin: bool
    family: str
    """"?" for a file whose header cannot be read; opening it will say why."""
    provenance: str


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def entries(came_with: Path | None = None) -> list[Entry]:
    """Every voice that can be named, sorted; a user's voice hides a built-in one of the same name."""
    found: dict[str, Entry] = {}
    for folder, builtin in ((came_with or builtin_folder(), True), (voices_folder(), False)):
        for path in sorted(folder.glob("*.safetensors")):
            if is_name(path.stem):
                header = _metadata(path)
                found[path.stem] = Entry(
                    name=path.stem,
                    path=path,
                    builtin=builtin,
                    family=header.get("family", "?"),
                    provenance=header.get("provenance", ""),
                )
    return [found[name] for name in sorted(found)]


def find(name: str, came_with: Path | None = None) -> Path:
    """The file of a named voice."""
    _check(name)
    if (path := locate(name, came_with)) is not None:
        return path
    known = [entry.name for entry in entries(came_with)]
    close = get_close_matches(name, known, n=3)
    raise VoiceNotFound(
        "no such voice",
        got=repr(name),
        allowed=", ".join(known) or "none yet",
        fix=f"Did you mean {' or '.join(close)}?"
        if close
        else f"Add it: `nightingale voices add {name} CLIP.wav`.",
    )


def locate(name: str, came_with: Path | None = None) -> Path | None:
    """The same, or None: for those who ask for names that may be nobody's."""
    for folder in (voices_folder(), came_with or builtin_folder()):
        path = folder / f"{name}.safetensors"
        if is_name(name) and path.is_file():
            return path
    return None


def load(name: str, came_with: Path | None = None) -> Voice:
    from nightingale.voices.voice import Voice

    return Voice.load(find(name, came_with))


def check_free(name: str) -> None:
    """Refuse a name that a voice has: one that was added would be lost, a built-in one hidden."""
    _check(name)
    if (path := locate(name)) is None:
        return
    added = path.parent == voices_folder()
    raise VoiceExists(
        "a voice of that name exists",
        got=repr(name) if added else f"{name!r}, which is built in",
        allowed="a new name",
        fix=f"Choose another, remove it with `nightingale voices remove {name}`, or say --replace."
        if added
        else "Choose another, or say --replace to have yours in its place.",
    )


def add(name: str, voice: Voice, *, replace: bool = False) -> Path:
    """Keep a voice under a name. replace: also if somebody has it."""
    _check(name)
    if not replace:
        check_free(name)
    path = voices_folder() / f"{name}.safetensors"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            "the voice folder could not be made",
            got=str(error),
            allowed="a writable folder",
            fix="Set NIGHTINGALE_HOME to one.",
        ) from error
    from dataclasses import replace as changed

    changed(voice, name=name).save(path)
    return path


def remove(name: str, came_with: Path | None = None) -> None:
    """Forget a voice of the user's; the built-in ones stay."""
    path = find(name, came_with)
    if path.parent != voices_folder():
        raise VoiceError(
            "built-in voices stay",
            got=repr(name),
            allowed="a voice that was added",
            fix="See `nightingale voices list`.",
        )
    path.unlink()


def export(name: str, out: Path) -> None:
    """Copy a voice's file to `out`."""
    write_whole(out, find(name).read_bytes())


def _check(name: str) -> None:
    if not is_name(name):
        raise VoiceNotFound(
            "not a voice name",
            got=repr(name),
            allowed="1 to 64 of a-z, 0-9, _ and -",
            fix="Use such a name, or the path of a clip or of a .safetensors voice.",
        )


def _metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file: 8 bytes of length, then JSON."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header: Any = json.loads(file.read(size)) if size <= _HEADER_LIMIT_BYTES else {}
        return dict(header.get("__metadata__", {}))
    except (OSError, ValueError, AttributeError):
        return {}
