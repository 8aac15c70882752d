"""`nightingale voices`: list, add, remove and export named voices."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from nightingale.cli import options
from nightingale.cli.console import note, parse_options, progress_line
from nightingale.cli.options import argument, option
from nightingale.errors import ConfigError, VoiceNotFound

if TYPE_CHECKING:
    from nightingale.voices.voice import Voice

Name = Annotated[str, argument("NAME", "a-z, 0-9, _ and -.")]


def list_voices(as_json: options.AsJson = False) -> None:
    """List the named voices. `default` means the voice of requests that name none; for wren, the one marked so.

    OpenAI's names, such as nova, and names in capital letters are accepted too.
    """
    from nightingale.voices.library import entries
    from nightingale.wren import default_voice

    found, default = entries(), default_voice()
    if as_json:
        more = [{"path": str(entry.path), "default": entry.name == default} for entry in found]
        print(json.dumps([asdict(entry) | extra for entry, extra in zip(found, more, strict=True)]))
        return
    for entry in found:
        origin = "built in" if entry.builtin else "yours"
        origin += ", default" if entry.name == default else ""
        print(f"{entry.name:<20}{entry.family:<12}{origin:<19}{entry.provenance}")
    if not found:
        note("no voices yet; add one with `nightingale voices add NAME CLIP.wav`")


def add(
    name: Name,
    reference: Annotated[Path, argument("REF", "A clip, a .safetensors voice or upstream's conds.pt.")],
    model: options.Model = None,
    device: options.Device = "auto",
    offline: options.Offline = False,
    choices: options.Choices = None,
    replace: Annotated[bool, option("Replace a voice of that name.", "--replace")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Create a voice from a clip and store it as NAME. Clone only voices that you are allowed to use."""
    from nightingale.voices import library

    if not (replace and library.is_name(name)):
        library.check_free(name)  # before a model is loaded, which takes time
    with progress_line(f"reading {reference} …", quiet=quiet):
        voice = _read_voice(reference, model, device=device, offline=offline, **parse_options(choices))
    path = library.add(name, voice, replace=replace)
    if not quiet:
        note(f"{name}: a voice for {voice.family} models, stored in {path}")


def remove(name: Name) -> None:
    """Delete a voice that was added."""
    from nightingale.voices import library

    library.remove(name)


def export(name: Name, out: Annotated[Path, argument("OUT", "A .safetensors file.")]) -> None:
    """Copy a voice to a file, for `-v` and `voices add`."""
    from nightingale.voices import library

    if out.suffix != ".safetensors":  # otherwise -v and `voices add` would read it as a clip
        raise ConfigError(
            "a voice file must have the suffix .safetensors",
            got=str(out),
            fix=f"For example: nightingale voices export {name} {name}.safetensors",
        )
    library.export(name, out)


def _read_voice(reference: Path, model: str | None, **options: Any) -> Voice:
    """Read a voice from a file. Only a clip needs a model."""
    from nightingale.voices.voice import Voice

    if not reference.is_file():
        raise VoiceNotFound(
            "no such file", got=str(reference), allowed="a clip, a .safetensors voice or conds.pt"
        )
    if reference.suffix == ".safetensors":
        return Voice.load(reference)
    if reference.suffix == ".pt":
        from nightingale.hub.find import resolve

        if model is None:
            raise ConfigError(
                "conds.pt does not say which model it is for",
                allowed="-m english, multilingual, turbo or nano",
                fix="Name the model it came with.",
            )
        return Voice.from_conds_pt(reference, family=resolve(model).card.family)
    from nightingale.engine import TTS

    return TTS(model, **options).voice(reference)
