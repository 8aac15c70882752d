"""Descriptions of arguments and options, and those that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

from nightingale.request_options import OPTIONS


class Option(NamedTuple):
    """The description of an option; commands.py makes typer's of it."""

    names: tuple[str, ...]
    """The names as they are typed, such as -m and --model; none for the name of the parameter."""
    settings: dict[str, Any]
    """Other arguments of `typer.Option`."""


class Argument(NamedTuple):
    """The description of a positional argument: arguments of `typer.Argument`."""

    settings: dict[str, Any]


def option(text: str, *names: str, default: str | bool = False, **more: Any) -> Option:
    """Describe an option; `default` is what the help shows as its default, True for the value itself."""
    return Option(names, {"help": text, "show_default": default, **more})


def of_model(text: str) -> Option:
    """Describe an option whose default depends on the model."""
    return option(text, default="the model's")


def argument(name: str, text: str) -> Argument:
    return Argument({"metavar": name, "help": text, "show_default": False})


def complete_model(typed: str) -> list[str]:
    """Return the models whose names begin as typed, for shells."""
    from nightingale.hub.cards import CARDS

    return [name for name in ("wren", *CARDS) if name.startswith(typed)]


def complete_voice(typed: str) -> list[str]:
    """Return the voices whose names begin as typed, for shells; of a blend, its last part is completed."""
    from nightingale.voices.aliases import DEFAULT
    from nightingale.voices.library import entries

    before, plus, last = typed.rpartition("+")
    names = [] if plus else [DEFAULT]
    names += [entry.name for entry in entries()]
    return [f"{before}{plus}{name}" for name in names if name.startswith(last.lower())]


Model = Annotated[
    str | None,
    option(
        "A name of `nightingale models list`, or a folder.",
        "-m",
        "--model",
        default="wren, the built-in model",
        autocompletion=complete_model,
    ),
]
Device = Annotated[str, option("auto, cpu, cuda, cuda:1, mlx, mps.", default=True)]
Offline = Annotated[bool, option("Never use the network.", "--offline")]
Choices = Annotated[
    list[str] | None,
    option(
        "An option of the model: t3=v3, s3gen=meanflow, kind=multilingual.",
        "-O",
        "--option",
        metavar="KEY=VALUE",
    ),
]
Yes = Annotated[bool, option("Download a model that is not here without asking.", "-y", "--yes")]
AsJson = Annotated[bool, option("Print one line of JSON, last, on stdout.", "--json")]
Config = Annotated[
    str | None,
    option(
        "A TOML file with defaults, in a table of the command's name.",
        metavar="FILE",
        default="the user's nightingale.toml",
    ),
]
Quiet = Annotated[bool, option("Print only errors and notices on stderr.", "-q", "--quiet")]
VoiceName = Annotated[
    str | None,
    option(
        "A name, a blend such as heart(2)+emma, a clip (wav, flac, ogg, mp3) or a .safetensors voice.",
        "-v",
        "--voice",
        default="the model's own",
        autocompletion=complete_voice,
    ),
]
Profile = Annotated[
    str | None,
    of_model(
        "default, exact (upstream's computation in float32), balanced, or fast (also in lower precision). "
        "With options: balanced+stream=block+flow_steps=6 (docs/python.md).",
    ),
]
Stream = Annotated[
    str | None,
    of_model("segment: each text segment is rendered whole; block: also in parts (docs/streaming.md)."),
]
LexiconFile = Annotated[
    Path | None, option("A TOML file of words and their respellings (docs/text.md).", "--lexicon")
]
Output = Annotated[
    str | None,
    option(
        "Output file: .wav .flac .ogg .opus .mp3 .m4a .pcm, or - for stdout.",
        "-o",
        "--out",
        default="played at a terminal, else nightingale.wav",
    ),
]
Play = Annotated[bool, option("Play the audio, also if it is written.", "--play")]
BitRate = Annotated[str | None, option("Bits per second of mp3, opus and m4a, such as 64k.")]
Seed = Annotated[int | None, option(OPTIONS["seed"].help, default="random")]
Watermark = Annotated[
    bool,
    option("Mark the audio as upstream does; needs the extra watermark.", "--watermark"),
]
