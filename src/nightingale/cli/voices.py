"""`nightingale voices`: list, add, remove, export."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightingale.cli import options
from nightingale.cli.talk import busy, note, read_options
from nightingale.errors import ConfigError, VoiceNotFound

if TYPE_CHECKING:
    from nightingale.voices.voice import Voice

Name = Annotated[str, typer.Argument(metavar="NAME", help="a-z, 0-9, _ and -.", show_default=False)]

Reference = Annotated[
    Path,
    typer.Argument(
        metavar="REF", help="A clip, a .safetensors voice or upstream's conds.pt.", show_default=False
    ),
]


def list_voices(as_json: options.AsJson = False) -> None:
    """Show the voices that can be named."""
    from nightingale.voices.library import entries

    found = entries()
    if as_json:
        print(json.dumps([asdict(entry) | {"path": str(entry.path)} for entry in found]))
        return
    for entry in found:
        whose = "built in" if entry.builtin else "yours"
        print(f"{entry.name:<20}{entry.family:<12}{whose:<10}{entry.provenance}")
    if not found:
        note("no voices yet; add one with `nightingale voices add NAME CLIP.wav`")


def add(
    name: Name,
    reference: Reference,
    model: options.Model = None,
    device: options.Device = "auto",
    offline: options.Offline = False,
    choices: options.Choices = None,
    replace: Annotated[bool, typer.Option("--replace", help="Also if a voice has that name.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Make a voice from a clip and keep it under NAME. Clone only voices you may."""
    from nightingale.voices import library

    if not library.is_name(name):
        library.find(name)  # says what a name is
    if not replace:
        library.check_free(name)  # before a model is loaded, which takes time
    chosen = read_options(choices or [])
    with busy(f"listening to {reference} …", quiet=quiet):
        voice = _voice_of(reference, model, device=device, offline=offline, chosen=chosen)
    path = library.add(name, voice, replace=replace)
    if not quiet:
        note(f"{name}: a voice for {voice.family} models, kept in {path}")


def remove(name: Name) -> None:
    """Forget a voice that was added."""
    from nightingale.voices import library

    library.remove(name)


def export(
    name: Name,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A .safetensors file.", show_default=False)],
) -> None:
    """Copy a voice to a file that `-v` and `voices add` understand."""
    from nightingale.voices import library

    if out.suffix != ".safetensors":  # by which those two know a voice from a clip
        raise ConfigError(
            "a voice file is known by its suffix",
            got=str(out),
            allowed="a name that ends in .safetensors",
            fix=f"For example: nightingale voices export {name} {name}.safetensors",
        )
    library.export(name, out)


def _voice_of(
    reference: Path, model: str | None, *, device: str, offline: bool, chosen: dict[str, Any]
) -> Voice:
    """The voice in a file. Only a clip needs a model to listen to it."""
    from nightingale.voices.voice import Voice

    if not reference.is_file():
        raise VoiceNotFound(
            "no such file",
            got=str(reference),
            allowed="a clip, a .safetensors voice or conds.pt",
            fix="Check the path.",
        )
    if reference.suffix == ".safetensors":
        return Voice.load(reference)
    if reference.suffix == ".pt":
        from nightingale.hub.find import resolve

        if model is None:
            raise ConfigError(
                "a conds.pt does not say whose voice it is",
                got="no model",
                allowed="-m english, multilingual, turbo or nano",
                fix="Name the model it came with.",
            )
        return Voice.from_conds_pt(reference, family=resolve(model).card.family)
    from nightingale.engine import TTS

    return TTS(model, device=device, offline=offline, **chosen).voice(reference)
