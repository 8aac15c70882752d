"""Descriptions of arguments and options, and those that several commands share."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple


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


Model = Annotated[
    str | None,
    option(
        "A name of `nightingale models list`, or a folder.",
        "-m",
        "--model",
        default="wren, the built-in model",
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
AsJson = Annotated[bool, option("Print one line of JSON, last, on stdout.", "--json")]
Quiet = Annotated[bool, option("Print only errors and notices on stderr.", "-q", "--quiet")]
VoiceName = Annotated[
    str | None,
    option(
        "A name, a clip (wav, flac, ogg, mp3) or a .safetensors voice.",
        "-v",
        "--voice",
        default="the model's own",
    ),
]
Profile = Annotated[
    str | None,
    of_model(
        "default, exact (upstream's computation in float32), balanced, or fast (also in lower precision). "
        "With options: balanced+flow_steps=6+cache=int8 (docs/python.md).",
    ),
]
Stream = Annotated[
    str | None,
    of_model("segment: each text segment is rendered whole; block: also in parts (docs/streaming.md)."),
]
